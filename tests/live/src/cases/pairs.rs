//! Calls and returns as the processor pairs them: where balanced hooking is used, every `ret` of a traced run goes where the matching
//! `call` said. So returns are predicted, and a shadow stack of the hardware would agree.

use std::cell::UnsafeCell;
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::log;
use crate::machine::{self, Branch};
use crate::process;
use crate::records;
use crate::runner;
use crate::users::{User, only};
use crate::work::{self, fib, fib_result};

/// Whether this program's sites are hooked in a balanced way.
const BALANCED: bool = cfg!(all(prefixed_sites, not(landing_pads)));

/// As deep as calls of one run go, trampolines and the tracer included.
const DEPTH: usize = 256;

/// The processor's list, as it would be.
struct Pairs {
    /// The instruction that runs next.
    ip: usize,
    expected: [usize; DEPTH],
    depth: usize,
    calls: usize,
    /// Returns that went elsewhere, and the first of them.
    wrong: usize,
    first_wrong: usize,
}

impl Pairs {
    const EMPTY: Self = Self { ip: 0, expected: [0; DEPTH], depth: 0, calls: 0, wrong: 0, first_wrong: 0 };

    /// The last instruction has run; this one comes next.
    #[inline(always)]
    fn step(&mut self, ip: usize, sp: usize) {
        let last = std::mem::replace(&mut self.ip, ip);
        if last == 0 {
            return;
        }
        match machine::branch_at(last) {
            Branch::Call => {
                if let Some(expected) = self.expected.get_mut(self.depth) {
                    // SAFETY: what the call has just pushed.
                    *expected = unsafe { std::ptr::with_exposed_provenance::<usize>(sp).read() };
                }
                self.depth += 1;
                self.calls += 1;
            }
            // The first ones are of who began the steps.
            Branch::Return if self.depth > 0 => {
                self.depth -= 1;
                if self.expected.get(self.depth).is_some_and(|expected| *expected != ip) {
                    self.wrong += 1;
                    if self.first_wrong == 0 {
                        self.first_wrong = last;
                    }
                }
            }
            Branch::Return | Branch::Other => {}
        }
    }
}

struct Shared(UnsafeCell<Pairs>);

// SAFETY: a case is a process with one thread, whose only handler this is for.
unsafe impl Sync for Shared {}

static PAIRS: Shared = Shared(UnsafeCell::new(Pairs::EMPTY));

#[unsafe(link_section = ".text.notrace")]
fn step(ip: usize, sp: usize) {
    // SAFETY: the handler does not interrupt itself, and `body` does not touch it.
    unsafe { (*PAIRS.0.get()).step(ip, sp) }
}

static RIGHT: AtomicUsize = AtomicUsize::new(0);

extern "C" fn body() {
    let right = fib(black_box(6)) == fib_result(6) && work::floats(black_box(3), 1.0, 2.0, 3.0).is_finite();
    RIGHT.fetch_add(usize::from(right), Relaxed);
}

/// Calls and returns that were not paired, of one run.
fn run(what: &str) -> usize {
    // SAFETY: no steps are made now.
    unsafe { *PAIRS.0.get() = Pairs::EMPTY };
    machine::stepped(body, step);
    // SAFETY: as above.
    let pairs = unsafe { &*PAIRS.0.get() };
    assert!(pairs.calls > 25, "{what}: {} calls", pairs.calls);
    assert_eq!(pairs.depth, 0, "{what}: calls without a return");
    if pairs.wrong > 0 {
        println!("{what}: the return at {:#x} went elsewhere", pairs.first_wrong);
    }
    pairs.wrong
}

pub fn every_return_goes_where_its_call_said() {
    if !machine::CAN_STEP {
        runner::skip("no single steps on this machine");
    }
    process::init().expect("the sites are good");
    assert_eq!(run("untraced"), 0);
    let filter = only(&work::funcs());
    let users = User::counting(filter);
    let general = run("a graph user");
    drop(users);
    records::open();
    let tracer = User::tracing(filter);
    let alone = run("the tracer alone");
    drop(tracer);
    assert_eq!(RIGHT.load(Relaxed), 3);
    assert!(log::RETURNS.load(Relaxed) > 25 && records::count() > 25, "calls were traced");
    if BALANCED {
        assert_eq!((general, alone), (0, 0), "returns that went elsewhere");
    } else {
        // Each hooked call: its return goes to the hooker. Which shows that this test can tell.
        assert!(general > 25 && alone > 25, "{general} and {alone} returns that went elsewhere");
    }
}
