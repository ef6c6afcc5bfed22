//! Users with trampolines of their own: functions that go on elsewhere, and trampolines that come back to them.

use alloc::boxed::Box;
use core::hint::black_box;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use fgraph::{Error, Filter, FtraceOps, FuncAddr, OpsFlags};

use super::probe::{Graph, Op, Probe, addr, note_entry, only};
use super::{CaseResult, check, check_eq};

#[inline(never)]
extern "C" fn plus_1000(n: usize) -> usize {
    black_box(n) + 1000
}

#[inline(never)]
extern "C" fn plus_2000(n: usize) -> usize {
    black_box(n) + 2000
}

#[inline(never)]
extern "C" fn plus_3000(n: usize) -> usize {
    black_box(n) + 3000
}

/// How often [`counting`] ran.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Where it goes on: in the function, behind its sled.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// A trampoline that counts, and goes on in the function with everything as it was.
///
/// # Safety
/// For a sled to jump to.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(link_section = ".text.notrace.case_direct")]
unsafe extern "C" fn counting() {
    core::arch::naked_asm!(
        "inc qword ptr [rip + {count}]",
        "jmp qword ptr [rip + {next}]",
        count = sym COUNT,
        next = sym NEXT,
    )
}

/// As above.
///
/// # Safety
/// For a sled to jump to.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
#[unsafe(link_section = ".text.notrace.case_direct")]
unsafe extern "C" fn counting() {
    core::arch::naked_asm!(
        "adrp x16, {count}",
        "add x16, x16, :lo12:{count}",
        "ldr x17, [x16]",
        "add x17, x17, #1",
        "str x17, [x16]",
        "adrp x16, {next}",
        "ldr x16, [x16, :lo12:{next}]",
        "br x16",
        count = sym COUNT,
        next = sym NEXT,
    )
}

/// A registered user with a trampoline.
struct Direct(&'static FtraceOps);

impl Direct {
    fn ops(to: usize, filter: Filter) -> &'static FtraceOps {
        // SAFETY: each `to` here is a function of the same type, or goes on in the function.
        Box::leak(Box::new(unsafe { FtraceOps::direct(to, OpsFlags::empty(), filter) }))
    }

    fn register(to: usize, filter: Filter) -> Result<Self, Error> {
        let ops = Self::ops(to, filter);
        fgraph::register_ftrace_function(ops)?;
        Ok(Self(ops))
    }
}

impl Drop for Direct {
    fn drop(&mut self) {
        let _ = fgraph::unregister_ftrace_function(self.0);
    }
}

/// Alone the sled jumps; beside others the tracer does it, and tells them; the other ways round too.
pub fn a_direct_trampoline_replaces_a_function() -> CaseResult {
    let probe = Probe::new();
    let of_it = only(&[addr!(plus_1000)]);
    {
        let direct = Direct::register(addr!(plus_2000), of_it)?;
        check_eq!(plus_1000(black_box(1)), 2001, "alone");
        {
            let _graph = Graph::probing(probe, of_it)?;
            check_eq!(plus_1000(black_box(2)), 2002, "beside a graph user");
            check_eq!(probe.returns.load(Relaxed), 1, "returns");
            let _op = Op::register(note_entry, OpsFlags::SAVE_REGS, of_it, probe.word())?;
            check_eq!(plus_1000(black_box(3)), 2003, "beside a user of registers");
            check_eq!(probe.returns.load(Relaxed), 2, "returns");
        }
        // SAFETY: a function of the same type.
        unsafe { fgraph::ftrace_modify_direct(direct.0, addr!(plus_3000)) }?;
        check_eq!(plus_1000(black_box(4)), 3004, "after a change");
    }
    check_eq!(plus_1000(black_box(5)), 1005, "gone");
    check_eq!(probe.mismatches.load(Relaxed), 0, "mismatches");
    Ok(())
}

pub fn a_direct_trampoline_may_come_back() -> CaseResult {
    let func = FuncAddr::new(addr!(plus_1000));
    let Some(next) = fgraph::ftrace_resume_address(func) else {
        return Err(super::Outcome::Failed("the function has no site".into()));
    };
    NEXT.store(next, Relaxed);
    let before = COUNT.load(Relaxed);
    let probe = Probe::new();
    let of_it = only(&[addr!(plus_1000)]);
    {
        let _direct = Direct::register(counting as *const () as usize, of_it)?;
        check_eq!(plus_1000(black_box(1)), 1001, "alone");
        let _graph = Graph::probing(probe, of_it)?;
        check_eq!(plus_1000(black_box(2)), 1002, "beside a graph user");
        let conflict = Direct::ops(addr!(plus_2000), of_it);
        let refused = fgraph::register_ftrace_function(conflict);
        check_eq!(refused, Err(Error::IpModifyConflict { func }), "a second one");
        check_eq!(plus_1000(black_box(3)), 1003, "after the refusal");
    }
    check_eq!(COUNT.load(Relaxed) - before, 3, "runs of the trampoline");
    check!(probe.returns.load(Relaxed) == 2, "returns");
    check_eq!(plus_1000(black_box(4)), 1004, "gone");
    Ok(())
}
