//! Callbacks that change what happens: return values, arguments, where a function goes on, whether it runs at all.

use core::hint::black_box;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use fgraph::{
    EntryCall, FgraphOps, FtraceOps, FtraceRegs, FuncAddr, OpsFlags, Regs, RetAddr, ReturnCall, Want,
};

use super::probe::{Graph, Op, Probe, addr, only};
use super::{CaseResult, check, check_eq};

/// How often [`double`] ran.
static RAN: AtomicUsize = AtomicUsize::new(0);

#[inline(never)]
extern "C" fn double(n: usize) -> usize {
    RAN.fetch_add(1, Relaxed);
    black_box(2 * n)
}

#[inline(never)]
extern "C" fn triple(n: usize) -> usize {
    black_box(3 * n)
}

#[unsafe(link_section = ".text.notrace")]
fn want_return(_call: &mut EntryCall<'_, FtraceRegs>, _ops: &FgraphOps) -> Want {
    Want::Return
}

#[unsafe(link_section = ".text.notrace")]
fn ignore_return(_call: &mut ReturnCall<'_, FtraceRegs>, _ops: &FgraphOps) {}

#[unsafe(link_section = ".text.notrace")]
fn return_77(call: &mut ReturnCall<'_, FtraceRegs>, _ops: &FgraphOps) {
    // SAFETY: the function returns a `usize`.
    unsafe { call.fregs_mut().set_return_value(77) };
}

#[unsafe(link_section = ".text.notrace")]
fn argument_5(_ip: FuncAddr, _parent_ip: RetAddr, _ops: &FtraceOps, fregs: &mut FtraceRegs) {
    // SAFETY: the parameter is a `usize`.
    unsafe { fregs.set_argument(0, 5) };
}

#[unsafe(link_section = ".text.notrace")]
fn skip_with_99(_ip: FuncAddr, _parent_ip: RetAddr, _ops: &FtraceOps, fregs: &mut FtraceRegs) {
    // SAFETY: the function returns a `usize`.
    unsafe { fregs.set_return_value(99) };
    // SAFETY: the caller only uses the result.
    unsafe { fregs.return_early() };
}

#[unsafe(link_section = ".text.notrace")]
fn skip_call_with_55(call: &mut EntryCall<'_, FtraceRegs>, _ops: &FgraphOps) -> Want {
    // SAFETY: the function returns a `usize`.
    unsafe { call.fregs_mut().set_return_value(55) };
    // SAFETY: the caller only uses the result.
    unsafe { call.fregs_mut().return_early() };
    Want::Return
}

#[unsafe(link_section = ".text.notrace")]
fn to_triple(_ip: FuncAddr, _parent_ip: RetAddr, _ops: &FtraceOps, fregs: &mut FtraceRegs) {
    // SAFETY: both functions have the same type, and nothing of the first has run.
    unsafe { fregs.set_ip(addr!(triple)) };
}

pub fn a_changed_return_value_takes_effect() -> CaseResult {
    {
        let _user = Graph::register(want_return, return_77, only(&[addr!(double)]), 0)?;
        check_eq!(double(black_box(4)), 77, "traced");
    }
    check_eq!(double(black_box(4)), 8, "untraced");
    Ok(())
}

pub fn a_changed_argument_takes_effect() -> CaseResult {
    for flags in [OpsFlags::empty(), OpsFlags::SAVE_REGS] {
        let _user = Op::register(argument_5, flags, only(&[addr!(double)]), 0)?;
        check_eq!(double(black_box(4)), 10, "traced");
    }
    check_eq!(double(black_box(4)), 8, "untraced");
    Ok(())
}

pub fn an_early_return_skips_the_function() -> CaseResult {
    for flags in [OpsFlags::empty(), OpsFlags::SAVE_REGS] {
        let ran = RAN.load(Relaxed);
        {
            let _user = Op::register(skip_with_99, flags, only(&[addr!(double)]), 0)?;
            check_eq!(double(black_box(4)), 99, "traced");
            check_eq!(RAN.load(Relaxed), ran, "runs while skipped");
        }
        check_eq!(double(black_box(4)), 8, "untraced");
        check_eq!(RAN.load(Relaxed), ran + 1, "runs");
    }
    Ok(())
}

pub fn an_early_return_is_still_a_return() -> CaseResult {
    let (ran, depth) = (RAN.load(Relaxed), crate::machine::current().trace_block().stats().depth);
    let probe = Probe::new();
    {
        // The probe has the first slot, so its entry callback runs before the function is skipped.
        let _probe = Graph::probing(probe, only(&[addr!(double)]))?;
        let _user = Graph::register(skip_call_with_55, ignore_return, only(&[addr!(double)]), 0)?;
        check_eq!(double(black_box(4)), 55, "traced");
    }
    check_eq!(RAN.load(Relaxed), ran, "runs while skipped");
    check_eq!(double(black_box(4)), 8, "untraced");
    let log = probe.log();
    check_eq!(log.len(), 2, "events");
    check!(log[1].is_return, "the second event is a return");
    check_eq!(log[1].values[0], 55, "return value seen");
    check_eq!(crate::machine::current().trace_block().stats().depth, depth, "depth");
    Ok(())
}

pub fn a_changed_ip_runs_another_function() -> CaseResult {
    for flags in [OpsFlags::empty(), OpsFlags::SAVE_REGS] {
        let _user = Op::register(to_triple, flags, only(&[addr!(double)]), 0)?;
        check_eq!(double(black_box(4)), 12, "traced");
    }
    check_eq!(double(black_box(4)), 8, "untraced");
    Ok(())
}
