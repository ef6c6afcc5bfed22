//! What an embedder's kernel supplies, and the macro that binds it.
//!
//! The trait is bound once per image. The binding makes one `extern "Rust"` function of each item; the engine's static
//! calls those, so that traced-path code is compiled in this crate only and link-time optimisation can inline across.

use core::fmt;

use crate::addr::{RetAddr, StackKey};

/// How deep in interrupts a piece of code runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Context {
    /// A task, preemptible or not.
    Task = 0,
    /// A deferred interrupt half.
    SoftIrq = 1,
    /// An interrupt handler.
    Irq = 2,
    /// A handler of an interrupt that cannot be masked.
    Nmi = 3,
}

/// Where the trampolines find the current task's trace block: the word at `offset` behind the address in `register`
/// holds a pointer to the task's [`TaskTrace`](crate::TaskTrace), or null for a task that is not traced.
///
/// The read must be right at any instruction, also when the task migrates to another CPU between any two: on x86_64 one
/// `gs`-relative load does it (the kernel writes the word when it switches tasks); on arm64 the register must belong to
/// the *task*, not to the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CurrentTask {
    /// What the trampolines start from.
    pub register: TaskRegister,
    /// Bytes from there to the word; a multiple of 8 below 4096.
    pub offset: usize,
}

/// A register that leads to the current task's trace block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskRegister {
    /// x86_64: the base of the `gs` segment, a per-CPU block.
    Gs,
    /// arm64: `SP_EL0`, free in a kernel that runs on `SP_EL1`.
    SpEl0,
    /// arm64: `TPIDR_EL0`.
    TpidrEl0,
    /// arm64: `TPIDR_EL1`, in a kernel that keeps the task there.
    TpidrEl1,
    /// arm64: `TPIDR_EL2`, in a kernel that runs at EL2.
    TpidrEl2,
}

impl TaskRegister {
    /// The instruction `mrs x16, <register>` (Arm ARM C6.2 MRS, encodings of D19.2), which the linker puts into the
    /// trampolines; 0 for a register of another machine.
    pub const fn arm64_read_to_x16(self) -> u32 {
        match self {
            Self::Gs => 0,
            Self::SpEl0 => 0xd538_4110,
            Self::TpidrEl0 => 0xd53b_d050,
            Self::TpidrEl1 => 0xd538_d090,
            Self::TpidrEl2 => 0xd53c_d050,
        }
    }
}

/// Words of the embedder's that the return trampolines use by themselves, so that a call can be recorded without a call to the
/// kernel. Each offset is in bytes from the address in [`CURRENT`](Platform::CURRENT)'s register, as there; on arm64 it is a multiple of 8
/// below 4096.
///
/// The layout is that of Linux (`preempt_count`, and `thread_info` on arm64).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuWords {
    /// Where the count is of what keeps the running task on its CPU: bits 0 to 7 count holds of preemption, bits 8 to 23 are all zero
    /// in a task that no interrupt runs on top of, soft ones included. The trampolines add one and take one off, as
    /// [`preempt_disable`](Platform::preempt_disable) does.
    ///
    /// Whether a switch is due stands beside it, inverted, so that one look tells: on x86_64 in bit 31 of these 32 bits, which are the
    /// CPU's; on arm64 in the upper half of 64 bits, which are the task's. If all is 0 behind the trampolines' decrement, they call
    /// `preempt_disable` and [`preempt_enable`](Platform::preempt_enable), to switch there.
    pub preempt_count: usize,
    /// Where the number of the CPU is that the task runs on, 32 bits, as [`cpu_id`](Platform::cpu_id) tells it. It is read with preemption
    /// held.
    pub cpu: usize,
    /// How many CPUs there are at most: every number is less.
    pub cpus: usize,
}

/// Kernel text could not be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextWriteError {
    /// The first byte that was to be written.
    pub addr: usize,
    /// How many.
    pub len: usize,
}

impl fmt::Display for TextWriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the platform could not write {} bytes of text at {:#x}", self.len, self.addr)
    }
}

/// Memory could not be read without a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadFault {
    /// The first byte that was to be read.
    pub addr: usize,
}

/// A state from which no return address can be given back: the kernel cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fatal {
    /// A hooked function returned, but the task has no shadow stack (any more).
    NoStack {
        /// The stack pointer it returned with, as a frame key.
        key: StackKey,
    },
    /// A hooked function returned, and no frame of the task's shadow stack has its key.
    NoFrame {
        /// The stack pointer it returned with, as a frame key.
        key: StackKey,
        /// The key of the newest frame, if there is one.
        newest: Option<StackKey>,
        /// Where the newest frame would have returned to.
        newest_return: Option<RetAddr>,
    },
}

impl fmt::Display for Fatal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoStack { key } => {
                write!(f, "a hooked function returned with sp key {key} in a task without a shadow stack")
            }
            Self::NoFrame { key, newest, newest_return } => write!(
                f,
                "a hooked function returned with sp key {key}, which no frame has (newest frame: key {newest:?}, return {newest_return:?})"
            ),
        }
    }
}

/// What a kernel supplies. Bind an implementation with [`bind_platform!`](crate::bind_platform), once per image.
///
/// # What may be traced
/// Nothing that these functions run may be traced: put them and what they call into a section
/// `.text.notrace` (`#[unsafe(link_section = ".text.notrace")]`, which works on free functions, methods and trait
/// impls), or see that they are inlined. The impls themselves are recognised by the linker fragment, since their mangled names
/// name this trait. If one is traced all the same, the recursion is stopped after a few levels, at a cost.
///
/// # Which context
/// Unless an item says otherwise, it is called in any context, NMI included, with interrupts in any state; it must not
/// sleep, lock, allocate or fault.
///
/// # Safety
/// The engine's memory safety rests on these answers:
/// 1. [`CURRENT`](Self::CURRENT) leads to null or to a `TaskTrace` that lives as long as its task runs, and that no two
///    tasks share.
/// 2. [`context`](Self::context) is exact wherever traced code can run: entry code that has not raised it yet must not be
///    traced.
/// 3. Between [`preempt_disable`](Self::preempt_disable) and [`preempt_enable`](Self::preempt_enable) the task stays on its CPU.
/// 4. [`write_text`](Self::write_text) writes what it is told, and nothing else.
/// 5. [`WORDS`](Self::WORDS) is `None` or leads to words that are what [`CpuWords`] says wherever traced code can run.
pub unsafe trait Platform: 'static {
    /// Where the trampolines find the current task's trace block.
    const CURRENT: CurrentTask;

    /// What the trampolines may use by themselves to record a call; `None` if they must ask by the functions below, at some cost.
    const WORDS: Option<CpuWords> = None;

    /// How deep in interrupts the caller runs.
    fn context() -> Context;

    /// The CPU this runs on, from 0; called with preemption disabled.
    fn cpu_id() -> usize;

    /// Nanoseconds since an arbitrary start, never going back on one CPU.
    fn clock_ns() -> u64;

    /// Whether records have times of the machine's own counter (x86_64: the time-stamp counter; arm64: `CNTVCT_EL0`), not of
    /// [`clock_ns`](Self::clock_ns). Then the tracer's entries need no call to read the time, which is what makes the straight path
    /// possible; whoever reads the records says what a count is worth ([`Key::time_ns`](crate::wire::tree::Key::time_ns)). The answer
    /// never changes. The counter must run at one rate and agree on all CPUs.
    fn counts_time() -> bool {
        false
    }

    /// How many counts of that counter take `ns` nanoseconds, or just longer; `None`, if the kernel cannot tell or
    /// [`counts_time`](Self::counts_time) is `false`. Then a tracer that leaves out short calls does not take the straight path. Task
    /// context only.
    fn counts_of_ns(_ns: u64) -> Option<u64> {
        None
    }

    /// Number and name of the current task, for records: called with preemption disabled. It does not change as long as the task has the
    /// shadow stack that it was given.
    fn task_id() -> u32;

    /// Keeps the current task on this CPU until the matching [`preempt_enable`](Self::preempt_enable). Nests.
    fn preempt_disable();

    /// Undoes one [`preempt_disable`](Self::preempt_disable). In task context with interrupts on, the last one may and should switch
    /// tasks if an interrupt has asked for it meanwhile, as an interrupt could here: where most time is spent in the tracer, other
    /// tasks would starve if it were left to interrupts that come elsewhere. The way to the switch must not be traced before interrupts
    /// are off, or its own entry would come here again.
    fn preempt_enable();

    /// Writes kernel text through a writable alias, with single-copy atomicity for an aligned word of 4 bytes or fewer.
    /// Cache maintenance is the engine's. Task context only; may lock.
    ///
    /// # Safety
    /// The engine passes only bytes of sites it has decoded.
    unsafe fn write_text(addr: usize, bytes: &[u8]) -> Result<(), TextWriteError>;

    /// Returns when every CPU has executed a context-synchronising instruction and a full memory barrier since the call: ordered behind
    /// what the caller did before, and before what it does after. Task context only.
    fn sync_cores();

    /// Reads memory without faulting, whatever `addr` is.
    fn read(addr: usize, bytes: &mut [u8]) -> Result<(), ReadFault>;

    /// The last word: a hooked function returned and its return address is not known. Interrupts are in any state;
    /// tracing has been stopped for good.
    fn fatal(why: Fatal) -> !;

    /// Whether the trampolines have their words. Not for implementors.
    #[doc(hidden)]
    fn has_words() -> bool {
        Self::WORDS.is_some()
    }
}

/// Binds the one [`Platform`](crate::Platform) of an image, at module level: `fgraph::bind_platform!(MyKernel);`
///
/// Binding two is a link error (duplicate symbols), binding none too (undefined symbols), once the engine is used.
#[macro_export]
macro_rules! bind_platform {
    ($platform:ty) => {
        // Absolute symbols: the linker writes the offset, and on arm64 the instruction that reads the register, into the
        // trampolines.
        ::core::arch::global_asm!(
            ".globl fgraph_current_offset",
            ".set fgraph_current_offset, {offset}",
            ".globl fgraph_current_read",
            ".set fgraph_current_read, {read}",
            ".globl fgraph_preempt_count",
            ".set fgraph_preempt_count, {preempt_count}",
            ".globl fgraph_cpu_number",
            ".set fgraph_cpu_number, {cpu}",
            preempt_count = const $crate::__private::cpu_words::<$platform>().preempt_count,
            cpu = const $crate::__private::cpu_words::<$platform>().cpu,
            offset = const <$platform as $crate::Platform>::CURRENT.offset,
            read = const <$platform as $crate::Platform>::CURRENT.register.arm64_read_to_x16(),
        );

        const _: () = {
            use $crate::Platform;

            const CURRENT: $crate::CurrentTask = <$platform as Platform>::CURRENT;
            const {
                assert!(CURRENT.offset < 4096, "CurrentTask::offset must be below 4096");
                assert!(CURRENT.offset % 8 == 0, "CurrentTask::offset must be a multiple of 8");
                assert!(
                    $crate::__private::register_fits(CURRENT.register),
                    "CurrentTask::register is not one of this machine"
                );
                $crate::__private::check_words::<$platform>();
            }

            #[unsafe(no_mangle)]
            #[unsafe(link_section = ".text.notrace.fgraph_platform")]
            extern "Rust" fn __fgraph_context() -> $crate::Context {
                <$platform as Platform>::context()
            }
            #[unsafe(no_mangle)]
            #[unsafe(link_section = ".text.notrace.fgraph_platform")]
            extern "Rust" fn __fgraph_cpu_id() -> usize {
                <$platform as Platform>::cpu_id()
            }
            #[unsafe(no_mangle)]
            #[unsafe(link_section = ".text.notrace.fgraph_platform")]
            extern "Rust" fn __fgraph_clock_ns() -> u64 {
                <$platform as Platform>::clock_ns()
            }
            #[unsafe(no_mangle)]
            #[unsafe(link_section = ".text.notrace.fgraph_platform")]
            extern "Rust" fn __fgraph_counts_time() -> bool {
                <$platform as Platform>::counts_time()
            }
            #[unsafe(no_mangle)]
            extern "Rust" fn __fgraph_has_words() -> bool {
                <$platform as Platform>::WORDS.is_some()
            }
            #[unsafe(no_mangle)]
            extern "Rust" fn __fgraph_counts_of_ns(ns: u64) -> Option<u64> {
                <$platform as Platform>::counts_of_ns(ns)
            }
            #[unsafe(no_mangle)]
            #[unsafe(link_section = ".text.notrace.fgraph_platform")]
            extern "Rust" fn __fgraph_task_id() -> u32 {
                <$platform as Platform>::task_id()
            }
            #[unsafe(no_mangle)]
            #[unsafe(link_section = ".text.notrace.fgraph_platform")]
            extern "Rust" fn __fgraph_preempt_disable() {
                <$platform as Platform>::preempt_disable()
            }
            #[unsafe(no_mangle)]
            #[unsafe(link_section = ".text.notrace.fgraph_platform")]
            extern "Rust" fn __fgraph_preempt_enable() {
                <$platform as Platform>::preempt_enable()
            }
            /// # Safety
            /// As for `Platform::write_text`.
            #[unsafe(no_mangle)]
            #[unsafe(link_section = ".text.notrace.fgraph_platform")]
            unsafe extern "Rust" fn __fgraph_write_text(
                addr: usize,
                bytes: &[u8],
            ) -> ::core::result::Result<(), $crate::TextWriteError> {
                // SAFETY: the engine is the only caller of this symbol and keeps the trait's contract.
                unsafe { <$platform as Platform>::write_text(addr, bytes) }
            }
            #[unsafe(no_mangle)]
            #[unsafe(link_section = ".text.notrace.fgraph_platform")]
            extern "Rust" fn __fgraph_sync_cores() {
                <$platform as Platform>::sync_cores()
            }
            #[unsafe(no_mangle)]
            #[unsafe(link_section = ".text.notrace.fgraph_platform")]
            extern "Rust" fn __fgraph_read(
                addr: usize,
                bytes: &mut [u8],
            ) -> ::core::result::Result<(), $crate::ReadFault> {
                <$platform as Platform>::read(addr, bytes)
            }
            #[unsafe(no_mangle)]
            #[unsafe(link_section = ".text.notrace.fgraph_platform")]
            extern "Rust" fn __fgraph_fatal(why: $crate::Fatal) -> ! {
                <$platform as Platform>::fatal(why)
            }
        };
    };
}
