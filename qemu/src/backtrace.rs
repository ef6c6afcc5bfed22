//! Who called whom: what this kernel tells the tracer's stack walker, and the current stack to be walked.

use core::{arch::asm, ops::Range};

use fgraph::unwind::{Inspect, Registers, Start};
use fgraph::{Platform, ReadFault, StackWalk};

use crate::{machine, platform::Kernel, sched::Task, tracing};

/// This kernel's memory, symbols and trap frames.
pub struct Image;

impl Inspect for Image {
    fn read(&self, addr: usize, bytes: &mut [u8]) -> Result<(), ReadFault> {
        Kernel::read(addr, bytes)
    }

    fn function(&self, pc: usize) -> Option<Range<usize>> {
        let symbol = tracing::symbols().ok()?.by_address(pc as u64)?;
        let start = pc - symbol.offset as usize;
        Some(start..start + symbol.size as usize)
    }

    fn interrupted(&self, pc: usize, record: usize) -> Option<Registers> {
        machine::interrupted(pc, record)
    }
}

/// The function that `pc` lies in, by its address; 0 if it is not known. A return address belongs to the call before it.
#[unsafe(link_section = ".text.notrace")]
pub fn function_of(pc: usize, is_return: bool) -> usize {
    Image.function(pc.wrapping_sub(usize::from(is_return))).map_or(0, |function| function.start)
}

/// Where a walk of the caller's own stack starts: at the function that this is inlined into.
#[inline(always)]
pub fn here() -> Start {
    let fp: usize;
    let pc: usize;
    // SAFETY: reads two registers.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        asm!("mov {}, rbp", "lea {}, [rip]", out(reg) fp, out(reg) pc, options(nomem, nostack, preserves_flags));
    }
    // SAFETY: reads two registers.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        asm!("mov {}, x29", "adr {}, .", out(reg) fp, out(reg) pc, options(nomem, nostack, preserves_flags));
    }
    Start::Called { pc, fp }
}

/// A walk of `task`'s stack, on `stacks`. The task is the caller's, interrupted by the caller, or stopped.
pub fn walk<'a>(task: &'static Task, stacks: &'a [Range<usize>], start: Start) -> StackWalk<'a, Image> {
    fgraph::stack_walk(&Image, Some(task.trace_block()), stacks, start).with_auth(machine::PTR_AUTH)
}
