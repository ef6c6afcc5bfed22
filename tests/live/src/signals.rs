//! Signals as interrupts: two levels of them, from a thread's own timers, after another time each time.
//!
//! The handler is outside tracing, and says which context it is before it calls what a case wants called. It starts its
//! timer again itself, so interrupts never take all of the time, however slow the machine.

use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering::Relaxed};

use fgraph::Context;

use crate::process::{Thread, set_hook};

/// One of a thread's timers.
pub struct Timer {
    signal: libc::c_int,
    context: Context,
    id: AtomicPtr<libc::c_void>,
    /// Interrupts that are still to come.
    left: AtomicUsize,
    random: AtomicU64,
}

impl Timer {
    const fn new(signal: libc::c_int, context: Context) -> Self {
        Self {
            signal,
            context,
            id: AtomicPtr::new(std::ptr::null_mut()),
            left: AtomicUsize::new(0),
            random: AtomicU64::new(0x9e37_79b9_7f4a_7c15),
        }
    }

    /// The timers of a thread: for interrupts, and for those that come on top of them, too.
    pub const fn pair() -> [Self; 2] {
        [Self::new(libc::SIGUSR1, Context::Irq), Self::new(libc::SIGUSR2, Context::Nmi)]
    }

    /// Lets the next interrupt come, in up to 32 microseconds; from the timer's own thread.
    #[inline(always)]
    fn start(&self) {
        let mut random = self.random.load(Relaxed);
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        self.random.store(random, Relaxed);
        let once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let time = libc::timespec { tv_sec: 0, tv_nsec: (1 + random % 32_000) as libc::c_long };
        let spec = libc::itimerspec { it_interval: once, it_value: time };
        // SAFETY: `storm` made the timer, for this thread. A handler may call this function.
        unsafe { libc::timer_settime(self.id.load(Relaxed), 0, &raw const spec, std::ptr::null_mut()) };
    }
}

/// What interrupts call.
static BODY: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

/// How many interrupts there have been, in all threads.
pub static HANDLED: AtomicUsize = AtomicUsize::new(0);

#[unsafe(link_section = ".text.notrace")]
extern "C" fn handler(signal: libc::c_int) {
    let Some(thread) = Thread::current() else { return };
    for timer in &thread.timers {
        if timer.signal == signal {
            thread.interrupted(timer.context, || {
                // SAFETY: `handle` stored a function of this type before it set the handler.
                let body: fn() = unsafe { std::mem::transmute(BODY.load(Relaxed)) };
                body();
            });
            HANDLED.fetch_add(1, Relaxed);
            let left = timer.left.load(Relaxed) - 1;
            timer.left.store(left, Relaxed);
            if left != 0 {
                timer.start();
            }
        }
    }
}

/// Where handlers run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stack {
    /// On top of what they interrupt.
    Same,
    /// On one that [`use_own_stack`] gives a thread; what Rust's library gives it is too small.
    Own,
}

/// Lets interrupts call `body`, which may call traced functions.
pub fn handle(body: fn(), stack: Stack) {
    set_hook(&BODY, Some(body));
    // SAFETY: all zeros are a valid `sigaction`.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = libc::SA_RESTART | if stack == Stack::Own { libc::SA_ONSTACK } else { 0 };
    // SAFETY: the handler uses only what a handler may. While the second signal is handled, the first does not come.
    let done = unsafe {
        let first = libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut());
        libc::sigaddset(&raw mut action.sa_mask, libc::SIGUSR1);
        first | libc::sigaction(libc::SIGUSR2, &raw const action, std::ptr::null_mut())
    };
    assert_eq!(done, 0);
}

/// Gives the calling thread a stack for its interrupts.
pub fn use_own_stack() {
    const SIZE: usize = 256 << 10;
    let memory = Box::leak(vec![0u8; SIZE].into_boxed_slice());
    let stack = libc::stack_t { ss_sp: memory.as_mut_ptr().cast(), ss_flags: 0, ss_size: SIZE };
    // SAFETY: the memory is never freed, and nobody else uses it.
    let done = unsafe { libc::sigaltstack(&raw const stack, std::ptr::null_mut()) };
    assert_eq!(done, 0);
}

/// Starts a storm on the calling thread: so many interrupts, and a third as many on top. It must run until it
/// [`is_over`].
pub fn storm(thread: &Thread, count: usize) {
    for (timer, count) in thread.timers.iter().zip([count, count.div_ceil(3)]) {
        // SAFETY: all zeros are a valid `sigevent`.
        let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = timer.signal;
        // SAFETY: asks for a number.
        event.sigev_notify_thread_id = unsafe { libc::gettid() };
        let mut id = std::ptr::null_mut();
        // SAFETY: both structures are the right ones; `id` can be written.
        let done = unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut id) };
        assert_eq!(done, 0, "timer_create(2): {}", std::io::Error::last_os_error());
        timer.id.store(id, Relaxed);
        timer.left.store(count, Relaxed);
        timer.start();
    }
}

/// Whether the last interrupt of the thread's storm has been.
pub fn is_over(thread: &Thread) -> bool {
    thread.timers.iter().all(|timer| timer.left.load(Relaxed) == 0)
}
