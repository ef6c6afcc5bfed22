//! What QEMU does for the kernel through semihosting: ending with an exit code, and the command line.

use core::{
    arch::asm,
    hint,
    sync::atomic::{AtomicU32, Ordering},
};

use super::{super::Exit, cpus};

const SYS_GET_CMDLINE: u64 = 0x15;
const SYS_EXIT_EXTENDED: u64 = 0x20;
/// The reason for a `SYS_EXIT_EXTENDED` that an exit code goes with.
const APPLICATION_EXIT: u64 = 0x2_0026;
/// PSCI's function to turn the machine off.
const PSCI_SYSTEM_OFF: u64 = 0x8400_0008;

/// One call to the host.
///
/// # Safety
///
/// `block` is what `operation` expects, and what the operation writes may be written.
#[inline(always)]
unsafe fn call(operation: u64, block: *mut u64) -> u64 {
    let result;
    // SAFETY: the trap that QEMU takes for itself; the caller vouches for the block.
    unsafe {
        asm!("hlt #0xf000", inlateout("x0") operation => result, in("x1") block,
            options(nostack, preserves_flags));
    }
    result
}

/// Leaves QEMU with the exit code of `exit`.
///
/// The codes are those that x86_64's exit device makes. 0 is none of them: a machine that is turned off for
/// whatever reason must not look like success.
#[unsafe(link_section = ".text.notrace")]
pub fn exit(exit: Exit) -> ! {
    /// How often leaving was tried: each way that is not there ends in a trap, which comes here again.
    static TRIES: AtomicU32 = AtomicU32::new(0);

    let code = match exit {
        Exit::Success => 33,
        Exit::Failed => 35,
        Exit::Crashed => 37,
    };
    let tries = TRIES.fetch_add(1, Ordering::Relaxed);
    if tries == 0 {
        let mut block = [APPLICATION_EXIT, code];
        // SAFETY: the two words that the operation reads.
        unsafe { call(SYS_EXIT_EXTENDED, block.as_mut_ptr()) };
    }
    if tries <= 1 {
        // SAFETY: turns the machine off, if somebody listens.
        unsafe { cpus::psci(PSCI_SYSTEM_OFF, [0; 3]) };
    }
    loop {
        hint::spin_loop();
    }
}

/// Copies the kernel command line to `buffer` and returns its length; 0 if there is none, or one that does
/// not fit.
///
/// The host's line starts with the name of the kernel's file, up to the first blank, which is left out here.
pub fn command_line(buffer: &mut [u8]) -> usize {
    let mut block = [buffer.as_mut_ptr().expose_provenance() as u64, buffer.len() as u64];
    // SAFETY: the operation writes its line to the buffer that the two words describe, and the length to the
    //         second.
    let result = unsafe { call(SYS_GET_CMDLINE, block.as_mut_ptr()) };
    let [_, length] = block;
    let Some(line) = buffer.get(..length as usize).filter(|_| result == 0) else { return 0 };
    let Some(blank) = line.iter().position(|&byte| byte == b' ') else { return 0 };
    let (from, to) = (blank + 1, length as usize);
    buffer.copy_within(from..to, 0);
    to - from
}
