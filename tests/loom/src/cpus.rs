//! The machine of the models: a few CPUs that run readers, and the control side, which sends all of them an interrupt with a
//! barrier and waits until each has taken it (`Platform::sync_cores`).
//!
//! A CPU takes interrupts at its *points*, one before each access of the subject's. At which point the barrier comes, and at which
//! the reader is interrupted by another reader, is given from outside, and the models try every point. A CPU that has come to
//! the barrier's point waits there until the barrier is sent: to everyone else that is a CPU which is slow.

use core::cell::Cell;
use std::rc::Rc;

use loom::sync::atomic::{AtomicUsize, Ordering, fence};
use loom::sync::mpsc::{Receiver, Sender, channel};

use crate::platform::Platform;

/// The most CPUs that a model has.
pub(crate) const MAX_CPUS: usize = 2;

/// What the control side's barrier does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Barrier {
    /// Every CPU takes an interrupt, which is a full barrier, before the control side goes on.
    Full,
    /// As for `Full`, but nothing in it orders memory: an interrupt that is only context-synchronising.
    Unordered,
    /// It is sent, and the control side goes on.
    NotAwaited,
    /// The first CPU is not sent it.
    MissesACpu,
}

/// The barriers on their way to one CPU and back.
#[derive(Debug)]
struct Line {
    /// How many have been sent. Orders nothing.
    sent: AtomicUsize,
    /// How many have been taken. Orders nothing.
    taken: AtomicUsize,
    request: Channel,
    answer: Channel,
}

/// Where a thread waits for another without spinning.
#[derive(Debug)]
struct Channel(Option<(Sender<()>, Receiver<()>)>);

impl Channel {
    fn new() -> Self {
        Self(Some(channel()))
    }

    fn ends(&self) -> &(Sender<()>, Receiver<()>) {
        self.0.as_ref().expect("only a drop takes them")
    }

    fn send(&self) {
        self.ends().0.send(()).expect("the channel has both its ends");
    }

    fn wait(&self) {
        self.ends().1.recv().expect("the channel has both its ends");
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // A model that failed is gone before its threads are, and loom's channels ask for it.
        if std::thread::panicking() {
            core::mem::forget(self.0.take());
        }
    }
}

/// The barriers that the control side sends.
#[derive(Debug)]
pub(crate) struct Barriers {
    kind: Barrier,
    lines: Vec<Line>,
}

impl Barriers {
    /// For a machine of `cpus` CPUs. Threads of a model are not threads of the host, so they can share an `Rc`.
    pub(crate) fn new(kind: Barrier, cpus: usize) -> Rc<Self> {
        let line = |_| Line {
            sent: AtomicUsize::new(0),
            taken: AtomicUsize::new(0),
            request: Channel::new(),
            answer: Channel::new(),
        };
        Rc::new(Self { kind, lines: (0..cpus).map(line).collect() })
    }

    /// How many CPUs it is sent to: the last ones.
    fn reached(&self) -> usize {
        if self.kind == Barrier::MissesACpu { self.lines.len() - 1 } else { self.lines.len() }
    }

    /// The control side's part.
    fn send(&self) {
        let sent = &self.lines[self.lines.len() - self.reached()..];
        for line in sent {
            line.sent.store(line.sent.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            if self.kind != Barrier::Unordered {
                line.request.send();
            }
        }
        for line in sent {
            match self.kind {
                Barrier::Full | Barrier::MissesACpu => line.answer.wait(),
                Barrier::Unordered => {
                    while line.taken.load(Ordering::Relaxed) < line.sent.load(Ordering::Relaxed) {
                        loom::thread::yield_now();
                    }
                }
                Barrier::NotAwaited => {}
            }
        }
    }

    /// The interrupt's handler on `cpu`; waits for the interrupt if it has not come.
    fn take(&self, cpu: usize) {
        if cpu < self.lines.len() - self.reached() {
            return;
        }
        let line = &self.lines[cpu];
        let taken = line.taken.load(Ordering::Relaxed) + 1;
        if self.kind == Barrier::Unordered {
            while line.sent.load(Ordering::Relaxed) < taken {
                loom::thread::yield_now();
            }
        } else {
            line.request.wait();
            fence(Ordering::SeqCst);
        }
        line.taken.store(taken, Ordering::Relaxed);
        if self.kind != Barrier::Unordered {
            line.answer.send();
        }
    }

    /// Whether `cpu` is about to be interrupted.
    fn pending(&self, cpu: usize) -> bool {
        let line = &self.lines[cpu];
        line.sent.load(Ordering::Relaxed) != line.taken.load(Ordering::Relaxed)
    }
}

/// At which points a CPU is interrupted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Interrupts {
    /// By what the world has for an interrupt.
    pub(crate) reader: Option<usize>,
    /// By the barrier. At every point where it has been sent, if this is `None`.
    pub(crate) barrier: Option<usize>,
}

/// What the current thread does.
#[derive(Clone)]
struct Here {
    barriers: Rc<Barriers>,
    /// Which CPU this is; `None` for the control side, which is not interrupted.
    cpu: Option<usize>,
    interrupts: Interrupts,
    reader: Rc<dyn Fn()>,
    point: Rc<Cell<usize>>,
}

loom::thread_local! {
    static HERE: Cell<Option<Here>> = Cell::new(None);
}

fn here() -> Option<Here> {
    HERE.with(|cell| {
        let here = cell.take();
        cell.set(here.clone());
        here
    })
}

/// A place where a CPU may be interrupted.
pub(crate) fn point() {
    let Some(here) = here() else { return };
    let Some(cpu) = here.cpu else { return };
    let point = here.point.get();
    here.point.set(point + 1);
    if here.interrupts.reader == Some(point) {
        (here.reader)();
    }
    let comes = match here.interrupts.barrier {
        Some(at) => at == point,
        None => here.barriers.pending(cpu),
    };
    if comes {
        here.barriers.take(cpu);
    }
}

/// Runs `body` on `cpu`, and then takes what barriers are still to come, `barriers` in all. How many points there were.
pub(crate) fn run(
    barriers: &Rc<Barriers>,
    cpu: usize,
    interrupts: Interrupts,
    expected: usize,
    reader: impl Fn() + 'static,
    body: impl FnOnce(),
) -> usize {
    let point = Rc::new(Cell::new(0));
    let here = Here {
        barriers: Rc::clone(barriers),
        cpu: Some(cpu),
        interrupts,
        reader: Rc::new(reader),
        point: Rc::clone(&point),
    };
    HERE.with(|cell| cell.set(Some(here)));
    body();
    HERE.with(|cell| cell.set(None));
    for _ in barriers.lines[cpu].taken.load(Ordering::Relaxed)..expected {
        barriers.take(cpu);
    }
    point.get()
}

/// The platform of the control side.
pub(crate) enum Control {}

impl Control {
    /// Makes the current thread the control side.
    pub(crate) fn begin(barriers: &Rc<Barriers>) {
        let barriers = Rc::clone(barriers);
        let here = Here {
            barriers,
            cpu: None,
            interrupts: Interrupts::default(),
            reader: Rc::new(|| ()),
            point: Rc::default(),
        };
        HERE.with(|cell| cell.set(Some(here)));
    }
}

impl Platform for Control {
    fn sync_cores() {
        here().expect("the control side").barriers.send();
    }
}
