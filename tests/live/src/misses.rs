//! Branches that the processor predicted wrong, counted by Linux's perf events where the machine has them.

use std::io;

/// Counts the calling thread's mispredicted branches.
pub struct Misses(libc::c_int);

/// `struct perf_event_attr` (perf_event_open(2)), as far as its first version goes.
#[repr(C)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint_type: u32,
    config1: u64,
}

/// `PERF_TYPE_HARDWARE`, `PERF_COUNT_HW_BRANCH_MISSES`.
const HARDWARE: u32 = 0;
const BRANCH_MISSES: u64 = 5;
/// The bits `exclude_kernel` and `exclude_hv` of the flags.
const USER_ONLY: u64 = 1 << 5 | 1 << 6;

impl Misses {
    /// Starts to count.
    ///
    /// # Errors
    /// The system's: the machine has no such counter, or does not let this process have it.
    pub fn open() -> io::Result<Self> {
        let attributes = Attributes {
            kind: HARDWARE,
            size: size_of::<Attributes>() as u32,
            config: BRANCH_MISSES,
            sample_period: 0,
            sample_type: 0,
            read_format: 0,
            flags: USER_ONLY,
            wakeup_events: 0,
            breakpoint_type: 0,
            config1: 0,
        };
        // SAFETY: the attributes are as long as they say; -1 and 0 are this thread on any CPU, no group and no flags.
        let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, &raw const attributes, 0, -1, -1, 0) };
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(Self(fd as libc::c_int)) }
    }

    /// How many there were so far.
    pub fn count(&self) -> u64 {
        let mut count = 0_u64;
        // SAFETY: reads as many bytes as there is room for.
        let read = unsafe { libc::read(self.0, (&raw mut count).cast(), size_of::<u64>()) };
        assert_eq!(read, size_of::<u64>() as isize, "a perf event has 8 bytes");
        count
    }
}

impl Drop for Misses {
    fn drop(&mut self) {
        // SAFETY: nobody else has it.
        unsafe { libc::close(self.0) };
    }
}
