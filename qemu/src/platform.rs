//! The kernel as fgraph's [`Platform`]: what any kernel that links the tracer in has to write.
//!
//! Everything here is called from traced code in any context, so it is only made of accessors that are inlined or outside
//! tracing; the impl itself is recognised by the linker fragment.

use core::mem::offset_of;
use core::ptr;

use fgraph::{Context, CpuWords, CurrentTask, Fatal, Platform, ReadFault, TaskRegister, TextWriteError};

use crate::{
    context::{self, Level},
    machine, panic,
};

/// This kernel.
pub struct Kernel;

fgraph::bind_platform!(Kernel);

// SAFETY:
// 1. `CURRENT`: `gs` has the CPU's block, whose `trace` the switch sets together with the current task; `SP_EL0` is the
//    current task. Either way the word is null or the block of that task alone, which is never freed.
// 2. `context`: `irq_enter` and `nmi_enter` run first in the trap path, which is not traced before.
// 3. A preemption hold keeps `schedule` from being called by interrupts and by other ends of holds, and callbacks do not call it.
// 4. `write_text` copies to the alias of exactly the bytes it was given, after checking that they are text.
// 5. `WORDS`: the counts are those that 2. and 3. are about, and all of them; the CPU's number is set with interrupts off before the task
//    runs there.
unsafe impl Platform for Kernel {
    #[cfg(target_arch = "x86_64")]
    const CURRENT: CurrentTask =
        CurrentTask { register: TaskRegister::Gs, offset: offset_of!(crate::percpu::PerCpu, trace) };
    #[cfg(target_arch = "aarch64")]
    const CURRENT: CurrentTask =
        CurrentTask { register: TaskRegister::SpEl0, offset: offset_of!(crate::sched::Task, trace) };

    const WORDS: Option<CpuWords> = Some(CpuWords {
        preempt_count: machine::PREEMPT_COUNT,
        cpu: machine::CPU_NUMBER,
        cpus: crate::percpu::MAX_CPUS,
    });

    #[inline(always)]
    fn context() -> Context {
        match context::level() {
            Level::Task => Context::Task,
            Level::Soft => Context::SoftIrq,
            Level::Hard => Context::Irq,
            Level::Nmi => Context::Nmi,
        }
    }

    #[inline(always)]
    fn cpu_id() -> usize {
        machine::per_cpu().cpu
    }

    #[inline(always)]
    fn clock_ns() -> u64 {
        machine::clock_ns()
    }

    #[inline(always)]
    fn counts_time() -> bool {
        true
    }

    fn counts_of_ns(ns: u64) -> Option<u64> {
        let (_, counts_a_second) = machine::clock_rate();
        u64::try_from((u128::from(ns) * u128::from(counts_a_second)).div_ceil(1_000_000_000)).ok()
    }

    #[inline(always)]
    fn task_id() -> u32 {
        machine::current().pid
    }

    #[inline(always)]
    fn preempt_disable() {
        context::preempt_disable();
    }

    #[inline(always)]
    fn preempt_enable() {
        context::preempt_enable_notrace();
    }

    #[unsafe(link_section = ".text.notrace")]
    unsafe fn write_text(addr: usize, bytes: &[u8]) -> Result<(), TextWriteError> {
        let text = machine::text_range();
        let end = addr.checked_add(bytes.len());
        if addr < text.start || end.is_none_or(|end| end > text.end) {
            return Err(TextWriteError { addr, len: bytes.len() });
        }
        let alias = machine::text_alias(addr);
        match *bytes {
            // One store, as other cores may be fetching the word.
            [a, b, c, d] if addr.is_multiple_of(4) => {
                // SAFETY: the alias of a text address is writable memory; it is as aligned as the address.
                unsafe { alias.cast::<u32>().write_volatile(u32::from_le_bytes([a, b, c, d])) };
            }
            _ => {
                for (i, byte) in bytes.iter().enumerate() {
                    // SAFETY: as above; `i` is within the bytes that were checked to be text.
                    unsafe { alias.add(i).write_volatile(*byte) };
                }
            }
        }
        Ok(())
    }

    #[unsafe(link_section = ".text.notrace")]
    fn sync_cores() {
        machine::sync_cores();
    }

    #[unsafe(link_section = ".text.notrace")]
    fn read(addr: usize, bytes: &mut [u8]) -> Result<(), ReadFault> {
        if !machine::readable(addr, bytes.len()) {
            return Err(ReadFault { addr });
        }
        for (i, byte) in bytes.iter_mut().enumerate() {
            // SAFETY: `readable` said so for all of the range.
            *byte = unsafe { ptr::with_exposed_provenance::<u8>(addr + i).read_volatile() };
        }
        Ok(())
    }

    #[unsafe(link_section = ".text.notrace")]
    fn fatal(why: Fatal) -> ! {
        panic::fatal_trace(why)
    }
}

/// What the kernel does with a breakpoint: it may be a site that is being patched. Whether it was.
#[cfg(target_arch = "x86_64")]
#[unsafe(link_section = ".text.notrace")]
pub fn on_breakpoint(frame: &mut machine::TrapFrame) -> bool {
    let Some(resume) = fgraph::breakpoint(frame.ip()) else { return false };
    // SAFETY: at a function's entry nobody needs r11, and the tracer's code that runs next expects it.
    unsafe { frame.set_r11(resume.r11) };
    // SAFETY: the tracer answers for the place, with this r11.
    unsafe { frame.set_ip(resume.rip) };
    true
}
