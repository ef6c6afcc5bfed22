//! The grace period: after `synchronize`, what was taken away before is used by nobody.
//!
//! A pointer leads to one of two objects. Readers load it within a section and use what it leads to; the control side takes the
//! pointer away, waits, and writes to the object, as who reuses memory would. loom knows of each object who used it
//! when, and objects to a use that is not ordered before the write.

use core::mem::ManuallyDrop;
use core::sync::atomic::{AtomicUsize as Counter, Ordering::Relaxed};
use std::rc::Rc;
use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::thread;

use crate::cpus::{Barrier, Barriers, Control, MAX_CPUS, Interrupts, check, point, run};
use crate::mutants::quiesce as mutants;
use crate::sync::{AtomicU32, Ordering};

/// `core/quiesce.rs`, or a mutant of it.
trait Scheme: Send + Sync + 'static {
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

/// A model.
#[derive(Clone, Copy, Debug)]
struct Model {
    /// Sections that each CPU runs one after the other.
    sections: usize,
    /// How often something is taken away.
    removals: usize,
    /// Whether another reader interrupts the first CPU's, at any point.
    nested: bool,
    barrier: Barrier,
    reader: Reader,
    /// How many preemptions there may be; `None` for any number. Interrupts are no preemptions.
    preemptions: Option<usize>,
}

/// One section on each CPU, and nothing out of the way.
const PLAIN: Model = Model {
    sections: 1,
    removals: 1,
    nested: false,
    barrier: Barrier::Full,
    reader: Reader::Right,
    preemptions: Some(3),
};

/// No object.
const NULL: u32 = 2;

/// What threads share.
struct World<S> {
    scheme: S,
    pointer: AtomicU32,
    objects: [UnsafeCell<()>; 2],
}

impl<S: Scheme> World<S> {
    fn new() -> Arc<Self> {
        let world =
            Self { scheme: S::new(), pointer: AtomicU32::new(0), objects: [UnsafeCell::new(()), UnsafeCell::new(())] };
        for cpu in 0..S::CPUS {
            world.scheme.section(cpu, || world.pointer.load(Ordering::Relaxed));
        }
        Arc::new(world)
    }

    fn use_object(&self, number: u32) {
        if let Some(object) = self.objects.get(number as usize) {
            object.with(|_| ());
        }
    }

    fn read(&self, cpu: usize, reader: Reader) {
        let load = || self.pointer.load(Ordering::Acquire);
        match reader {
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

/// Checks the model with these interrupts on the CPUs. How many points each had at most, and how many orders there were.
fn check_with<S: Scheme>(model: Model, interrupts: &[Interrupts]) -> (Vec<usize>, usize) {
    let points: Arc<[Counter; MAX_CPUS]> = Arc::default();
    let most = Arc::clone(&points);
    let interrupts = interrupts.to_vec();
    let orders = check(model.preemptions, move || {
        let world = World::<S>::new();
        let barriers = Barriers::new(model.barrier, S::CPUS);
        let cpus: Vec<_> = (0..S::CPUS)
            .map(|cpu| {
                let (world, barriers, most) = (Arc::clone(&world), Rc::clone(&barriers), Arc::clone(&most));
                let interrupts = interrupts[cpu];
                thread::spawn(move || {
                    let nested = Arc::clone(&world);
                    let reader = move || nested.read(cpu, model.reader);
                    let points = run(&barriers, cpu, interrupts, model.removals, reader, || {
                        for _ in 0..model.sections {
                            world.read(cpu, model.reader);
                        }
                    });
                    most[cpu].fetch_max(points, Relaxed);
                })
            })
            .collect();
        Control::begin(&barriers);
        for number in 0..model.removals {
            let next = if number + 1 < model.removals { number as u32 + 1 } else { NULL };
            world.pointer.store(next, Ordering::Release);
            world.scheme.synchronize();
            // Somebody else's from here on.
            world.objects[number].with_mut(|_| ());
        }
        for cpu in cpus {
            cpu.join().expect("a CPU");
        }
    });
    (points.iter().map(|points| points.load(Relaxed)).collect(), orders)
}

/// Checks the model with the CPUs interrupted at every point.
fn check_everywhere<S: Scheme>(model: Model) {
    // With one barrier it comes at a given point, the last being behind all sections; of several, where it finds the CPU.
    let barriers = |points: usize| match model.removals {
        1 => (0..=points).map(Some).collect(),
        _ => vec![None],
    };
    let idle = Interrupts { reader: None, barrier: Some(usize::MAX) };
    let (points, mut orders) = check_with::<S>(model, &[idle; MAX_CPUS]);
    let mut models = 1;
    let readers: Vec<Option<usize>> =
        if model.nested { (0..points[0]).map(Some).collect() } else { vec![None] };
    for reader in readers {
        let (points, _) = check_with::<S>(model, &[Interrupts { reader, ..idle }, idle]);
        for barrier in barriers(points[0]) {
            let first = Interrupts { reader, barrier };
            for barrier in if S::CPUS > 1 { barriers(points[1]) } else { vec![None] } {
                let second = Interrupts { reader: None, barrier };
                orders += check_with::<S>(model, &[first, second]).1;
                models += 1;
            }
        }
    }
    println!("{models} models, {orders} orders");
}

type OneCpu = crate::quiesce::Quiesce<1>;
type TwoCpus = crate::quiesce::Quiesce<2>;

/// One test for each model, named by what it shows.
macro_rules! models {
    ($($(#[$attribute:meta])* $name:ident: $scheme:ty, $model:expr;)*) => {$(
        #[test]
        $(#[$attribute])*
        fn $name() {
            check_everywhere::<$scheme>($model);
        }
    )*};
}

models! {
    a_section_uses_nothing_that_was_reused: OneCpu, Model { preemptions: None, ..PLAIN };
    nor_does_the_next_one: OneCpu, Model { sections: 2, ..PLAIN };
    nor_does_an_interrupt_of_a_section: OneCpu, Model { nested: true, ..PLAIN };
    nor_does_an_interrupt_of_one_of_two_sections: OneCpu,
        Model { nested: true, sections: 2, preemptions: Some(2), ..PLAIN };
    nor_does_a_section_on_another_cpu: TwoCpus, Model { preemptions: Some(2), ..PLAIN };
    what_is_taken_away_twice_can_be_reused_twice: OneCpu, Model { removals: 2, sections: 2, ..PLAIN };
    what_is_taken_away_twice_can_be_reused_twice_on_two_cpus: TwoCpus,
        Model { removals: 2, preemptions: Some(1), ..PLAIN };
}

/// One test for each mistake: the model must object to it.
macro_rules! mistakes {
    ($($name:ident: $scheme:ty, $model:expr;)*) => {
        models! {$(
            #[should_panic(expected = "Causality violation")]
            $name: $scheme, $model;
        )*}
    };
}

mod mistakes_are_found {
    use super::*;

    mistakes! {
        no_barrier: mutants::no_barrier::Quiesce<1>, PLAIN;
        no_waiting: mutants::no_waiting::Quiesce<1>, PLAIN;
        forgets_a_cpu: mutants::forgets_a_cpu::Quiesce<1>, PLAIN;
        leaves_relaxed: mutants::leaves_relaxed::Quiesce<1>, PLAIN;
        looks_relaxed: mutants::looks_relaxed::Quiesce<1>, PLAIN;
        ends_relaxed: mutants::ends_relaxed::Quiesce<1>, Model { sections: 2, ..PLAIN };
        counts_relaxed: mutants::counts_relaxed::Quiesce<1>, Model { sections: 2, ..PLAIN };
        counts_ends_before_the_barrier: mutants::counts_ends_before_the_barrier::Quiesce<1>,
            Model { sections: 2, ..PLAIN };
        waits_for_any_end: mutants::waits_for_any_end::Quiesce<1>, Model { nested: true, ..PLAIN };

        an_interrupt_that_orders_nothing: OneCpu, Model { barrier: Barrier::Unordered, ..PLAIN };
        a_barrier_that_is_not_awaited: OneCpu, Model { barrier: Barrier::NotAwaited, ..PLAIN };
        a_barrier_that_misses_a_cpu: OneCpu, Model { barrier: Barrier::MissesACpu, ..PLAIN };
        a_load_before_the_section: OneCpu, Model { reader: Reader::LoadsBefore, ..PLAIN };
        a_use_behind_the_section: OneCpu, Model { reader: Reader::UsesAfter, ..PLAIN };
    }
}
