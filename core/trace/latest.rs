//! The latest calls of each CPU as text: for a panic handler, which can rely on nothing but a place to write to.

use core::fmt;

use crate::ring::Buffer;
use crate::text::{CpuState, Options, Printer, Resolve};
use crate::wire::Record;
use crate::wire::tree::{ExtraRoom, Key, Node, Tree};

/// Writes the last calls that a CPU recorded, in the layout of function_graph and in the order in which they were made: as many as there
/// are nodes, if there are so many. A call whose end is not among them is not shown, as ever.
///
/// Takes no lock and allocates nothing; key and names must do as well. Any context. The buffer may still be written, and lose what is
/// shown here.
///
/// # Errors
/// What `out` refuses.
pub fn write_latest(
    buffer: &Buffer,
    nodes: &mut [Node],
    key: &dyn Key,
    names: &dyn Resolve,
    out: &mut dyn fmt::Write,
) -> fmt::Result {
    let count = nodes.len() as u64;
    let mut tree = Tree::new(nodes);
    // Calls of this kind are all that is shown: there is no room for what others have beside themselves.
    let whole = buffer.latest(count, &mut |record| {
        if matches!(record, Record::Call(_) | Record::Hit(_)) {
            // There is a node for each.
            let _ = tree.push(record);
        }
    });
    let cpu = u32::from(buffer.cpu());
    if tree.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "  latest calls of CPU {cpu}{}:",
        if whole { "" } else { ", some were overwritten meanwhile" }
    )?;
    let mut state = CpuState::NEW;
    let options = Options::DURATION | Options::OVERHEAD | Options::PROC | Options::ABSTIME | Options::IRQS;
    let mut printer = Printer::of_cpu(options | Options::RETVAL, cpu, &mut state);
    tree.close();
    let mut room = ExtraRoom::NEW;
    while let Some((line, _)) = tree.next_line() {
        let [first, second] = line.events(cpu, key, &[], &mut room);
        let Some(first) = first else { continue };
        printer.event(&first, second.as_ref(), names, out).map_err(|_| fmt::Error)?;
        if let Some(second) = second {
            printer.event(&second, None, names, out).map_err(|_| fmt::Error)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Plain, WHO, buffer};
    use super::*;
    use crate::text::NoNames;
    use crate::wire::Call;
    use std::string::String;

    #[test]
    fn the_last_calls_are_shown_in_the_order_in_which_they_were_made() {
        let (ring, buffer) = buffer(3, 1024);
        for (func, depth, start, end) in
            [(9, 0, 100, 200), (2, 1, 1010, 1100), (3, 1, 1200, 1300), (1, 0, 1000, 1400)]
        {
            assert!(ring.record(&Record::Call(Call::new(func, depth, WHO, start, end))));
        }
        let mut nodes = [Node::EMPTY; 3];
        let mut text = String::new();
        write_latest(buffer, &mut nodes, &Plain, &NoNames, &mut text).expect("strings take everything");
        let should = "  latest calls of CPU 3:
    0.000002 |       t-1       |               |  0x1() {
    0.000002 |       t-1       |   0.180 us    |    0x2();
    0.000002 |       t-1       |   0.200 us    |    0x3();
    0.000002 |       t-1       |   0.800 us    |  }\n";
        assert_eq!(text, should);
        let mut nothing = String::new();
        write_latest(super::super::tests::buffer(0, 1024).1, &mut nodes, &Plain, &NoNames, &mut nothing)
            .expect("strings take everything");
        assert_eq!(nothing, "");
    }
}
