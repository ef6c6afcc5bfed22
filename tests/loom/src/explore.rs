//! Runs a model with its first CPU interrupted at every point.

use core::sync::atomic::{AtomicUsize as Counter, Ordering::Relaxed};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use loom::thread;

use crate::cpus::{Barrier, Barriers, Control, Interrupts, MAX_CPUS, run};

/// What threads share, and what they do with it.
pub(crate) trait World: 'static {
    /// How many CPUs there are.
    const CPUS: usize;

    /// What a task does on `cpu`. With interrupts.
    fn task(&self, cpu: usize);

    /// What interrupts it.
    fn interrupt(&self, cpu: usize);

    /// What the control side does; with [`Bounds::barriers`] barriers in all.
    fn control(&self);
}

/// How far a model goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) barrier: Barrier,
    /// How many the control side sends.
    pub(crate) barriers: usize,
    /// Whether the first CPU's task is also interrupted by [`World::interrupt`].
    pub(crate) nested: bool,
    /// How many preemptions there may be; `None` for any number. Interrupts are no preemptions.
    pub(crate) preemptions: Option<usize>,
}

/// One barrier, nothing out of the way.
pub(crate) const PLAIN: Bounds =
    Bounds { barrier: Barrier::Full, barriers: 1, nested: false, preemptions: Some(3) };

/// Checks the world that `new` makes with these interrupts on the CPUs. How many points each had at most, and how many orders
/// there were.
fn check_with<W: World>(
    bounds: Bounds,
    new: impl Fn() -> W + Send + Sync + 'static,
    interrupts: &[Interrupts],
) -> (Vec<usize>, usize) {
    let points: Arc<[Counter; MAX_CPUS]> = Arc::default();
    let orders = Arc::new(Mutex::new(0));
    let (most, counted) = (Arc::clone(&points), Arc::clone(&orders));
    let interrupts = interrupts.to_vec();
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = bounds.preemptions;
    builder.max_branches = 10_000;
    builder.check(move || {
        *counted.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        let world = Rc::new(new());
        let barriers = Barriers::new(bounds.barrier, W::CPUS);
        let cpus: Vec<_> = (0..W::CPUS)
            .map(|cpu| {
                let (world, barriers, most) = (Rc::clone(&world), Rc::clone(&barriers), Arc::clone(&most));
                let interrupts = interrupts[cpu];
                thread::spawn(move || {
                    let nested = Rc::clone(&world);
                    let interrupt = move || nested.interrupt(cpu);
                    let task = || world.task(cpu);
                    let points = run(&barriers, cpu, interrupts, bounds.barriers, interrupt, task);
                    most[cpu].fetch_max(points, Relaxed);
                })
            })
            .collect();
        Control::begin(&barriers);
        world.control();
        for cpu in cpus {
            cpu.join().expect("a CPU");
        }
    });
    let orders = *orders.lock().unwrap_or_else(PoisonError::into_inner);
    (points.iter().map(|points| points.load(Relaxed)).collect(), orders)
}

/// Checks the world that `new` makes with its first CPU interrupted at every point.
pub(crate) fn check<W: World>(bounds: Bounds, new: impl Fn() -> W + Copy + Send + Sync + 'static) {
    // One barrier comes at a given point, the last of which is behind the task's end; several come where they find the CPU.
    let barriers = |points: usize| match bounds.barriers {
        1 => (0..=points).map(Some).collect(),
        _ => vec![None],
    };
    let idle = Interrupts { reader: None, barrier: Some(usize::MAX) };
    let (points, mut orders) = check_with(bounds, new, &[idle; MAX_CPUS]);
    let mut models = 1;
    let readers: Vec<Option<usize>> =
        if bounds.nested { (0..points[0]).map(Some).collect() } else { vec![None] };
    for reader in readers {
        let (points, more) = check_with(bounds, new, &[Interrupts { reader, ..idle }, idle]);
        orders += more;
        models += 1;
        for barrier in barriers(points[0]) {
            let first = Interrupts { reader, barrier };
            // The second CPU takes it where it is.
            let second = Interrupts { reader: None, barrier: None };
            orders += check_with(bounds, new, &[first, second]).1;
            models += 1;
        }
    }
    println!("{models} models, {orders} orders");
}
