//! What a user is told of a call: function, caller, arguments, return value; once, and in order.

use core::hint::black_box;
use core::sync::atomic::Ordering::Relaxed;

use fgraph::{Filter, OpsFlags};

use super::probe::{Graph, Op, Probe, addr, note_entry, only};
use super::{CaseResult, check, check_eq};
use crate::{sched, smp, tracing::Named};

#[inline(never)]
extern "C" fn sum(a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> usize {
    black_box(a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f)
}

#[inline(never)]
extern "C" fn caller(n: usize) -> usize {
    black_box(sum(n, n + 1, n + 2, n + 3, n + 4, n + 5)) + 1
}

const ARGUMENTS: [usize; 6] = [10, 11, 12, 13, 14, 15];
const SUM: usize = 10 + 22 + 36 + 52 + 70 + 90;

/// Whether `addr` is in the function that starts at `func`, by the image's symbols.
fn is_in(addr: usize, func: usize) -> bool {
    let symbols = crate::tracing::symbols().ok();
    symbols.and_then(|s| s.by_address(addr as u64)).is_some_and(|symbol| symbol.start == func as u64)
}

pub fn one_call_is_one_entry_and_one_return() -> CaseResult {
    let probe = Probe::new();
    {
        let _user = Graph::probing(probe, only(&[addr!(sum)]))?;
        check_eq!(black_box(caller(black_box(10))), SUM + 1, "result");
    }
    check_eq!(caller(black_box(10)), SUM + 1, "result untraced");
    let log = probe.log();
    check_eq!(log.len(), 2, "events");
    let (entry, ret) = (log[0], log[1]);
    check!(!entry.is_return && ret.is_return, "an entry and a return, in this order");
    for event in log {
        check_eq!(event.func, addr!(sum), "ip");
        check!(is_in(event.parent, addr!(caller)), "parent_ip is in {}", Named(event.parent));
        check_eq!(event.pid, crate::machine::current().pid, "task");
        check_eq!(event.depth, 0, "depth");
    }
    check_eq!(entry.parent, ret.parent, "parent_ip at both ends");
    check_eq!(entry.values, ARGUMENTS, "arguments");
    check_eq!(ret.values[0], SUM, "return value");
    Ok(())
}

pub fn an_op_sees_ip_parent_and_arguments() -> CaseResult {
    for flags in [OpsFlags::empty(), OpsFlags::SAVE_REGS] {
        let probe = Probe::new();
        {
            let _user = Op::register(note_entry, flags, only(&[addr!(sum)]), probe.word())?;
            check_eq!(caller(black_box(10)), SUM + 1, "result");
        }
        check_eq!(caller(black_box(10)), SUM + 1, "result untraced");
        let log = probe.log();
        check_eq!(log.len(), 1, "events");
        check_eq!(log[0].func, addr!(sum), "ip");
        check!(is_in(log[0].parent, addr!(caller)), "parent_ip is in {}", Named(log[0].parent));
        check_eq!(log[0].values, ARGUMENTS, "arguments");
    }
    Ok(())
}

pub fn both_ends_of_every_call_are_seen_in_order() -> CaseResult {
    let probe = Probe::new();
    {
        let _user = Graph::probing(probe, only(&[addr!(sum), addr!(caller)]))?;
        check_eq!(caller(black_box(10)), SUM + 1, "result");
        check_eq!(caller(black_box(10)), SUM + 1, "result");
    }
    let order: alloc::vec::Vec<_> =
        probe.log().iter().map(|event| (event.func, event.depth, event.is_return)).collect();
    let (outer, inner) = (addr!(caller), addr!(sum));
    let one = [(outer, 0, false), (inner, 1, false), (inner, 1, true), (outer, 0, true)];
    check_eq!(order, [one, one].concat(), "order");
    check_eq!(probe.mismatches.load(Relaxed), 0, "mismatches");
    Ok(())
}

pub fn what_is_not_wanted_is_not_patched() -> CaseResult {
    let before = fgraph::stats();
    check_eq!(before.patched, 0, "patched before");
    let probe = Probe::new();
    {
        let _user = Graph::probing(probe, only(&[addr!(sum)]))?;
        check_eq!(fgraph::stats().patched, 1, "patched for one function");
        {
            let _other = Op::register(
                note_entry,
                OpsFlags::empty(),
                only(&[addr!(sum), addr!(caller)]),
                probe.word(),
            )?;
            check_eq!(fgraph::stats().patched, 2, "patched for two users");
        }
        check_eq!(fgraph::stats().patched, 1, "patched for the first alone");
        let _nobody = Graph::probing(probe, Filter::NONE)?;
        check_eq!(fgraph::stats().patched, 1, "patched for a user of nothing");
    }
    check_eq!(fgraph::stats().patched, 0, "patched after");
    check_eq!(probe.counts(), (0, 0), "events");
    Ok(())
}

pub fn interrupt_handlers_are_traced_as_interrupts() -> CaseResult {
    let probe = Probe::new();
    {
        let _user = Graph::probing(probe, only(&[addr!(sched::tick)]))?;
        sched::sleep_ms(30);
    }
    let (entries, returns) = probe.counts();
    check!(entries >= 2, "only {entries} ticks were seen");
    // Ticks of other CPUs that were under way at the end return untold.
    let untold = entries.saturating_sub(returns);
    check!(returns <= entries && untold < smp::count() as u64, "{returns} returns of {entries} calls");
    check_eq!(probe.interrupts.load(Relaxed), entries, "entries in interrupt context");
    check_eq!(probe.mismatches.load(Relaxed), 0, "mismatches");
    Ok(())
}
