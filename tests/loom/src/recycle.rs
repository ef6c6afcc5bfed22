//! A slot changes hands: the old user's memory is reused once it is out, and who gets its slot is told of the returns of those
//! calls whose entries it was told of, and of no others.
//!
//! The entry and the return are those of `core/graph.rs` without the shadow stack, which is the task's own: a call keeps the users
//! it told and the stamp, in a variable. Users are numbers; each has an object that its callbacks use, as in [`grace`](crate::grace).

use core::marker::PhantomData;

use loom::cell::UnsafeCell;

use crate::explore::{Bounds, PLAIN, World, check};
use crate::grace::Scheme;
use crate::graph::GraphOps;
use crate::mutants::users as mutants;
use crate::quiesce::Quiesce;
use crate::users::slots;

#[derive(Debug)]
enum NoRegs {}

impl crate::regs::Regs for NoRegs {}

const fn user(number: usize) -> GraphOps<NoRegs> {
    GraphOps { number, regs: PhantomData }
}

const OLD: usize = 0;
const NEW: usize = 1;

static USERS: [GraphOps<NoRegs>; 2] = [user(OLD), user(NEW)];

/// `core/users.rs`, or a mutant of it, as far as the graph needs it.
trait Row: Send + Sync + 'static {
    fn new() -> Self;
    fn attach(&self, user: &'static GraphOps<NoRegs>) -> usize;
    fn detach(&self, slot: usize);
    fn enable(&self, slot: usize);
    fn disable(&self, slot: usize);
    fn graphs(&self) -> u32;
    fn graph(&self, slot: usize) -> Option<&'static GraphOps<NoRegs>>;
    fn stamp(&self) -> u64;
    fn was_there(&self, slot: usize, stamp: u64) -> bool;
}

macro_rules! row {
    ($($module:path),* $(,)?) => {$(
        const _: () = {
            use $module as module;

            impl Row for module::Users<NoRegs> {
                fn new() -> Self {
                    Self::new()
                }
                fn attach(&self, user: &'static GraphOps<NoRegs>) -> usize {
                    self.attach(module::User::Graph(user)).expect("a free slot")
                }
                fn detach(&self, slot: usize) {
                    self.detach(slot);
                }
                fn enable(&self, slot: usize) {
                    self.set_enabled(slot, module::Enabled::Yes);
                }
                fn disable(&self, slot: usize) {
                    self.set_enabled(slot, module::Enabled::No);
                }
                fn graphs(&self) -> u32 {
                    self.graphs()
                }
                fn graph(&self, slot: usize) -> Option<&'static GraphOps<NoRegs>> {
                    self.graph(slot)
                }
                fn stamp(&self) -> u64 {
                    self.stamp()
                }
                fn was_there(&self, slot: usize, stamp: u64) -> bool {
                    self.was_there(slot, stamp)
                }
            }
        };
    )*};
}

row! {
    crate::users,
    mutants::everyone_was_there,
    mutants::nobody_was_there_yet,
    mutants::since_for_ever,
    mutants::clock_stands_still,
    mutants::masks_are_relaxed,
}

/// How the two sides go about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manners {
    /// As the engine does.
    Right,
    /// An entry takes its stamp before it asks who is there.
    StampsFirst,
    /// The control side gives the slot away without waiting.
    NoGracePeriod,
}

/// A call whose entry was told.
struct Call {
    stamp: u64,
    want: u32,
    /// Who was told, in the one slot there is.
    told: Option<usize>,
}

/// What threads share.
struct Slot<R, const CPUS: usize> {
    row: R,
    quiesce: Quiesce<CPUS>,
    objects: [UnsafeCell<()>; 2],
    manners: Manners,
    /// The slot that changes hands.
    slot: usize,
}

impl<R: Row, const CPUS: usize> Slot<R, CPUS> {
    fn new(manners: Manners) -> Self {
        let row = R::new();
        let slot = row.attach(&USERS[OLD]);
        row.enable(slot);
        let quiesce = Quiesce::new();
        for cpu in 0..CPUS {
            quiesce.section(cpu, || ());
        }
        Self { row, quiesce, objects: [UnsafeCell::new(()), UnsafeCell::new(())], manners, slot }
    }

    fn call_back(&self, user: &GraphOps<NoRegs>) {
        self.objects[user.number].with(|_| ());
    }

    fn enter(&self, cpu: usize) -> Call {
        self.quiesce.section(cpu, || {
            let early = (self.manners == Manners::StampsFirst).then(|| self.row.stamp());
            let candidates = self.row.graphs();
            let stamp = early.unwrap_or_else(|| self.row.stamp());
            let mut call = Call { stamp, want: 0, told: None };
            for slot in slots(candidates) {
                let Some(user) = self.row.graph(slot) else { continue };
                self.call_back(user);
                call.want |= 1 << slot;
                call.told = Some(user.number);
            }
            call
        })
    }

    fn leave(&self, cpu: usize, call: &Call) {
        self.quiesce.section(cpu, || {
            let mut told = None;
            for slot in slots(call.want & self.row.graphs()) {
                let user = self.row.graph(slot).filter(|_| self.row.was_there(slot, call.stamp));
                let Some(user) = user else { continue };
                self.call_back(user);
                assert_eq!(call.told, Some(user.number), "told of a return without its entry");
                told = Some(user.number);
            }
            // The new one stays.
            assert!(call.told != Some(NEW) || told == Some(NEW), "told of an entry without its return");
        });
    }
}

impl<R: Row, const CPUS: usize> World for Slot<R, CPUS> {
    const CPUS: usize = CPUS;

    fn task(&self, cpu: usize) {
        let call = self.enter(cpu);
        self.leave(cpu, &call);
    }

    fn interrupt(&self, cpu: usize) {
        self.task(cpu);
    }

    fn control(&self) {
        self.row.disable(self.slot);
        if self.manners != Manners::NoGracePeriod {
            self.quiesce.synchronize::<crate::cpus::Control>();
        }
        self.row.detach(self.slot);
        if self.manners != Manners::NoGracePeriod {
            self.objects[OLD].with_mut(|_| ());
        }
        assert_eq!(self.row.attach(&USERS[NEW]), self.slot);
        self.row.enable(self.slot);
    }
}

type Real = crate::users::Users<NoRegs>;

/// One test for each model: the row, how many CPUs, the manners, the bounds.
macro_rules! models {
    ($($(#[$attribute:meta])* $name:ident: $row:ty, $cpus:expr, $manners:ident, $bounds:expr;)*) => {$(
        #[test]
        $(#[$attribute])*
        fn $name() {
            check($bounds, || Slot::<$row, $cpus>::new(Manners::$manners));
        }
    )*};
}

models! {
    a_new_user_is_told_of_its_own_calls_alone: Real, 1, Right, PLAIN;
    also_when_an_interrupt_makes_calls: Real, 1, Right, Bounds { nested: true, preemptions: Some(1), ..PLAIN };
    also_on_two_cpus: Real, 2, Right, Bounds { preemptions: Some(0), ..PLAIN };
}

mod mistakes_are_found {
    use super::*;

    models! {
        #[should_panic(expected = "told of a return without its entry")]
        everyone_was_there: mutants::everyone_was_there::Users<NoRegs>, 1, Right, PLAIN;
        #[should_panic(expected = "told of an entry without its return")]
        nobody_was_there_yet: mutants::nobody_was_there_yet::Users<NoRegs>, 1, Right, PLAIN;
        #[should_panic(expected = "told of a return without its entry")]
        since_for_ever: mutants::since_for_ever::Users<NoRegs>, 1, Right, PLAIN;
        #[should_panic(expected = "told of an entry without its return")]
        clock_stands_still: mutants::clock_stands_still::Users<NoRegs>, 1, Right, PLAIN;
        #[should_panic(expected = "Causality violation")]
        masks_are_relaxed: mutants::masks_are_relaxed::Users<NoRegs>, 1, Right, PLAIN;
        #[should_panic(expected = "told of an entry without its return")]
        stamps_first: Real, 1, StampsFirst, PLAIN;
        // Either half of a call may be the one that is told alone.
        #[should_panic(expected = "told of a")]
        no_grace_period: Real, 1, NoGracePeriod, Bounds { barriers: 0, ..PLAIN };
    }
}
