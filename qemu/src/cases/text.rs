//! What stands in the text: before, during and after tracing, and when somebody else wrote there.

use alloc::vec::Vec;
use core::hint::black_box;

use fgraph::{Error, Filter, OpsFlags};

use super::probe::{Graph, Op, Probe, addr, note_entry, only};
use super::{CaseResult, check, check_eq};
use crate::{machine, tracing::Named};

#[inline(never)]
extern "C" fn victim(n: usize) -> usize {
    black_box(n + 3)
}

/// Where a function's site is: behind its landing pad, if it begins with one.
fn site_of(func: usize) -> usize {
    const PADS: [u32; 3] = [0xd503_245f, 0xd503_24df, 0xfa1e_0ff3]; // bti c, bti jc, endbr64
    // SAFETY: a function begins with at least one word of readable text; on x86_64 it need not be aligned.
    let first = unsafe { core::ptr::with_exposed_provenance::<u32>(func).read_unaligned() };
    if PADS.contains(&first) { func + 4 } else { func }
}

/// A checksum of all kernel text.
fn checksum() -> u64 {
    let text = machine::text_range();
    let mut sum = 0xcbf2_9ce4_8422_2325u64;
    for addr in text.step_by(8) {
        // SAFETY: the text is mapped and readable, and a multiple of 8 long.
        let word = unsafe { core::ptr::with_exposed_provenance::<u64>(addr).read_volatile() };
        sum = (sum ^ word).wrapping_mul(0x0000_0100_0000_01b3);
    }
    sum
}

pub fn text_comes_back_to_the_byte() -> CaseResult {
    let before = checksum();
    let probe = Probe::new();
    for flags in [OpsFlags::empty(), OpsFlags::SAVE_REGS] {
        let _user = Op::register(note_entry, flags, Filter::ALL, probe.word())?;
        check!(checksum() != before, "no text was changed");
    }
    check_eq!(checksum(), before, "text after all users of entries are gone");
    {
        let _user = Graph::probing(probe, Filter::ALL)?;
        check!(checksum() != before, "no text was changed");
    }
    check_eq!(checksum(), before, "text after all graph users are gone");
    Ok(())
}

pub fn refusals_leave_everything_as_it_was() -> CaseResult {
    let before = checksum();
    let probe = Probe::new();
    let funcs = only(&[addr!(victim)]);

    static UNSORTED: [fgraph::FuncAddr; 2] = [fgraph::FuncAddr::new(2), fgraph::FuncAddr::new(1)];
    let refused = Op::register(note_entry, OpsFlags::empty(), Filter::only(&UNSORTED), probe.word());
    check!(matches!(refused, Err(Error::UnsortedFilter { .. })), "an unsorted filter was taken");

    let mut users = Vec::new();
    let refused = loop {
        match Op::register(note_entry, OpsFlags::empty(), funcs, probe.word()) {
            Ok(user) => users.push(user),
            Err(error) => break error,
        }
        check!(users.len() <= 64, "there is no limit");
    };
    check_eq!(refused, Error::TooManyUsers { max: users.len() }, "one user too many");
    check_eq!(victim(black_box(1)), 4, "result");
    check_eq!(probe.counts().0, users.len() as u64, "entries");
    drop(users);
    check_eq!(checksum(), before, "text");
    check_eq!(fgraph::unregister_ftrace_function(&NEVER), Err(Error::NotRegistered), "never registered");
    Ok(())
}

static NEVER: fgraph::FtraceOps = fgraph::FtraceOps::new(note_entry, OpsFlags::empty(), Filter::NONE);

/// The last case: tracing is dead after it.
pub fn changed_text_is_refused_by_name() -> CaseResult {
    let func = addr!(victim);
    let alias = machine::text_alias(site_of(func));
    // SAFETY: the alias of text is writable; nobody runs `victim` before its byte is put back.
    let old = unsafe { alias.read_volatile() };
    // SAFETY: as above.
    unsafe { alias.write_volatile(old ^ 0x40) };
    let before = checksum();
    let probe = Probe::new();
    // Many sites are fine; none of them may be written for the sake of one that is not.
    let refused = Op::register(note_entry, OpsFlags::empty(), Filter::ALL, probe.word());
    let after = checksum();
    // SAFETY: as above.
    unsafe { alias.write_volatile(old) };
    let Err(error) = refused else {
        return Err(super::Outcome::Failed("a changed site was taken".into()));
    };
    check_eq!(after, before, "text");
    let Error::Surprise { site, expected, found } = error else {
        return Err(error.into());
    };
    check_eq!(site.get(), site_of(func), "the site named");
    let message = alloc::format!("{error} (in {})", Named(site.get()));
    check!(message.contains("victim"), "the message does not name the function: {message}");
    check!(expected.as_slice()[1..] == found.as_slice()[1..], "expected and found: {message}");
    check!(expected.as_slice()[0] ^ 0x40 == found.as_slice()[0], "expected and found: {message}");
    let later = Op::register(note_entry, OpsFlags::empty(), only(&[func]), probe.word());
    check!(matches!(later, Err(Error::Stopped)), "tracing goes on");
    check_eq!(victim(black_box(1)), 4, "result");
    check_eq!(probe.counts(), (0, 0), "events");
    Ok(())
}
