//! The grace period: after `synchronize`, what was taken away before is used by nobody.
//!
//! A pointer leads to one of two objects. Readers load it within a section and use what it leads to; the control side takes the
//! pointer away, waits, and writes to the object, as who reuses memory would. loom knows of each object who used it
//! when, and objects to a use that is not ordered before the write.

use core::mem::ManuallyDrop;

use loom::cell::UnsafeCell;

use crate::cpus::{Barrier, Control, point};
use crate::explore::{Bounds, PLAIN, World, check};
use crate::mutants::quiesce as mutants;
use crate::sync::{AtomicU32, Ordering};

/// `core/quiesce.rs`, or a mutant of it.
pub(crate) trait Scheme: Send + Sync + 'static {
    /// How many CPUs there are; each runs readers.
    const CPUS: usize;

    fn new() -> Self;
    fn section<R>(&self, cpu: usize, body: impl FnOnce() -> R) -> R;
    fn synchronize(&self);
}

macro_rules! scheme {
    ($($module:path),* $(,)?) => {$(
        const _: () = {
            use $module as module;

            impl<const CPUS: usize> Scheme for module::Quiesce<CPUS> {
                const CPUS: usize = CPUS;

                fn new() -> Self {
                    Self::new()
                }

                fn section<R>(&self, cpu: usize, body: impl FnOnce() -> R) -> R {
                    let section = ManuallyDrop::new(self.enter(cpu).expect("a CPU of the model"));
                    let result = body();
                    // Not when the model fails in between: its atomics are gone by then.
                    drop(ManuallyDrop::into_inner(section));
                    result
                }

                fn synchronize(&self) {
                    self.synchronize::<Control>();
                }
            }
        };
    )*};
}

scheme! {
    crate::quiesce,
    mutants::no_barrier,
    mutants::no_waiting,
    mutants::forgets_a_cpu,
    mutants::waits_for_any_end,
    mutants::counts_ends_before_the_barrier,
    mutants::leaves_relaxed,
    mutants::ends_relaxed,
    mutants::looks_relaxed,
    mutants::counts_relaxed,
    mutants::counts_after_leaving,
}

/// What a reader does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reader {
    /// Loads and uses within one section.
    Right,
    /// Loads, and then begins the section: what the compiler may make of it without a fence.
    LoadsBefore,
    /// Uses what it loaded behind the section's end.
    UsesAfter,
}

/// No object.
const NULL: u32 = 2;

/// What threads share.
struct Objects<S> {
    scheme: S,
    pointer: AtomicU32,
    objects: [UnsafeCell<()>; 2],
    reader: Reader,
    /// Sections that each CPU runs one after the other.
    sections: usize,
    /// How often something is taken away.
    removals: usize,
}

impl<S: Scheme> Objects<S> {
    fn new(reader: Reader, sections: usize, removals: usize) -> Self {
        let objects = [UnsafeCell::new(()), UnsafeCell::new(())];
        let world =
            Self { scheme: S::new(), pointer: AtomicU32::new(0), objects, reader, sections, removals };
        for cpu in 0..S::CPUS {
            world.scheme.section(cpu, || world.pointer.load(Ordering::Relaxed));
        }
        world
    }

    fn use_object(&self, number: u32) {
        if let Some(object) = self.objects.get(number as usize) {
            object.with(|_| ());
        }
    }

    fn read(&self, cpu: usize) {
        let load = || self.pointer.load(Ordering::Acquire);
        match self.reader {
            Reader::Right => self.scheme.section(cpu, || {
                let number = load();
                point();
                self.use_object(number);
            }),
            Reader::LoadsBefore => {
                let number = load();
                self.scheme.section(cpu, || self.use_object(number));
            }
            Reader::UsesAfter => {
                let number = self.scheme.section(cpu, load);
                self.use_object(number);
            }
        }
    }
}

impl<S: Scheme> World for Objects<S> {
    const CPUS: usize = S::CPUS;

    fn task(&self, cpu: usize) {
        for _ in 0..self.sections {
            self.read(cpu);
        }
    }

    fn interrupt(&self, cpu: usize) {
        self.read(cpu);
    }

    fn control(&self) {
        for number in 0..self.removals {
            let next = if number + 1 < self.removals { number as u32 + 1 } else { NULL };
            self.pointer.store(next, Ordering::Release);
            self.scheme.synchronize();
            // Somebody else's from here on.
            self.objects[number].with_mut(|_| ());
        }
    }
}

type OneCpu = crate::quiesce::Quiesce<1>;
type TwoCpus = crate::quiesce::Quiesce<2>;

/// One test for each model, named by what it shows: the scheme, what readers do, how many sections on each CPU, the bounds.
macro_rules! models {
    ($($(#[$attribute:meta])* $name:ident: $scheme:ty, $reader:ident, $sections:expr, $bounds:expr;)*) => {$(
        #[test]
        $(#[$attribute])*
        fn $name() {
            const BOUNDS: Bounds = $bounds;
            check(BOUNDS, || Objects::<$scheme>::new(Reader::$reader, $sections, BOUNDS.barriers));
        }
    )*};
}

models! {
    a_section_uses_nothing_that_was_reused: OneCpu, Right, 1, Bounds { preemptions: None, ..PLAIN };
    nor_does_the_next_one: OneCpu, Right, 2, PLAIN;
    nor_does_an_interrupt_of_a_section: OneCpu, Right, 1, Bounds { nested: true, ..PLAIN };
    nor_does_an_interrupt_of_one_of_two_sections: OneCpu, Right, 2,
        Bounds { nested: true, preemptions: Some(2), ..PLAIN };
    nor_does_a_section_on_another_cpu: TwoCpus, Right, 1, Bounds { preemptions: Some(2), ..PLAIN };
    what_is_taken_away_twice_can_be_reused_twice: OneCpu, Right, 2, Bounds { barriers: 2, ..PLAIN };
    what_is_taken_away_twice_can_be_reused_twice_on_two_cpus: TwoCpus, Right, 1,
        Bounds { barriers: 2, preemptions: Some(1), ..PLAIN };
    // Not a mistake: no section of a CPU's own begins between the two stores, and interrupts there end there.
    counting_an_end_after_leaving_does_as_well: mutants::counts_after_leaving::Quiesce<1>, Right, 1,
        Bounds { nested: true, ..PLAIN };
}

/// One test for each mistake: the model must object to it.
macro_rules! mistakes {
    ($($name:ident: $scheme:ty, $reader:ident, $sections:expr, $bounds:expr;)*) => {
        models! {$(
            #[should_panic(expected = "Causality violation")]
            $name: $scheme, $reader, $sections, $bounds;
        )*}
    };
}

mod mistakes_are_found {
    use super::*;

    mistakes! {
        no_barrier: mutants::no_barrier::Quiesce<1>, Right, 1, PLAIN;
        no_waiting: mutants::no_waiting::Quiesce<1>, Right, 1, PLAIN;
        forgets_a_cpu: mutants::forgets_a_cpu::Quiesce<1>, Right, 1, PLAIN;
        leaves_relaxed: mutants::leaves_relaxed::Quiesce<1>, Right, 1, PLAIN;
        looks_relaxed: mutants::looks_relaxed::Quiesce<1>, Right, 1, PLAIN;
        ends_relaxed: mutants::ends_relaxed::Quiesce<1>, Right, 2, PLAIN;
        counts_relaxed: mutants::counts_relaxed::Quiesce<1>, Right, 2, PLAIN;
        counts_ends_before_the_barrier: mutants::counts_ends_before_the_barrier::Quiesce<1>, Right, 2, PLAIN;
        waits_for_any_end: mutants::waits_for_any_end::Quiesce<1>, Right, 1, Bounds { nested: true, ..PLAIN };

        an_interrupt_that_orders_nothing: OneCpu, Right, 1, Bounds { barrier: Barrier::Unordered, ..PLAIN };
        a_barrier_that_is_not_awaited: OneCpu, Right, 1, Bounds { barrier: Barrier::NotAwaited, ..PLAIN };
        a_barrier_that_misses_a_cpu: TwoCpus, Right, 1, Bounds { barrier: Barrier::MissesACpu, ..PLAIN };
        a_load_before_the_section: OneCpu, LoadsBefore, 1, PLAIN;
        a_use_behind_the_section: OneCpu, UsesAfter, 1, PLAIN;
    }
}
