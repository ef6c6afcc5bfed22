//! What QEMU does for the kernel through semihosting: ending with an exit code, the command line, and a file of the host.

use core::{
    arch::asm,
    hint,
    sync::atomic::{AtomicU32, Ordering},
};

use super::{super::Exit, cpus};

const SYS_OPEN: u64 = 0x01;
const SYS_CLOSE: u64 = 0x02;
const SYS_WRITE: u64 = 0x05;
/// How C's `fopen` calls it: `wb`.
const OPEN_TO_WRITE: u64 = 5;
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

/// The longest path of a file of the host.
const MAX_PATH: usize = 256;

/// A file of the host that is being written.
pub struct HostFile(u64);

impl HostFile {
    /// Makes a file, or empties it; `None` if the host does not.
    pub fn create(path: &str) -> Option<Self> {
        // The host wants a 0 behind it.
        let mut name = [0; MAX_PATH];
        name.get_mut(..path.len()).filter(|_| path.len() < MAX_PATH)?.copy_from_slice(path.as_bytes());
        let mut block = [name.as_mut_ptr().expose_provenance() as u64, OPEN_TO_WRITE, path.len() as u64];
        // SAFETY: the operation reads the path that the block describes.
        let handle = unsafe { call(SYS_OPEN, block.as_mut_ptr()) };
        (handle as i64 >= 0).then_some(Self(handle))
    }

    /// Writes bytes; whether all were.
    pub fn write(&mut self, bytes: &[u8]) -> bool {
        let mut block = [self.0, bytes.as_ptr().expose_provenance() as u64, bytes.len() as u64];
        // SAFETY: the operation reads the bytes that the block describes.
        unsafe { call(SYS_WRITE, block.as_mut_ptr()) == 0 }
    }
}

impl Drop for HostFile {
    fn drop(&mut self) {
        let mut block = [self.0];
        // SAFETY: the handle is an open file's.
        unsafe { call(SYS_CLOSE, block.as_mut_ptr()) };
    }
}
