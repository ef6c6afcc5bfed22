//! What fgraph's control side and its traced path say to each other, run in every order of steps, and with every value that
//! the memory model lets a load see (loom). The subjects are `core/quiesce.rs` and `core/users.rs` themselves.
//!
//! * [`sync`] stands for `core/sync.rs`: loom's atomics, with an interrupt before any access.
//! * [`cpus`] is the machine: CPUs that are interrupted, and the barrier that the control side sends to all of them.
//! * [`explore`] runs a model with its first CPU interrupted at every point.
//! * [`grace`] and [`recycle`] are the models; each has its mutants, which must fail.
//!
//! `make loom` runs them. The bounds on preemptions are said where they are set; an interrupt is no preemption.
#![cfg(test)]

#[path = "../../../core/bits.rs"]
mod bits;
mod cpus;
mod explore;
mod grace;
#[path = "../../../core/quiesce.rs"]
#[expect(unreachable_pub, reason = "public in fgraph")]
mod quiesce;
mod recycle;
mod sync;
#[path = "../../../core/users.rs"]
#[expect(dead_code, unreachable_pub, reason = "the models need a part of it, and nobody needs theirs")]
mod users;

/// The subjects, each with a mistake: see `build.rs`.
#[expect(dead_code, unreachable_pub, clippy::all, reason = "made of other sources, with mistakes")]
mod mutants {
    pub(crate) mod quiesce {
        include!(concat!(env!("OUT_DIR"), "/quiesce.rs"));
    }
    pub(crate) mod users {
        include!(concat!(env!("OUT_DIR"), "/users.rs"));
    }
}

/// What `core/quiesce.rs` asks of a platform.
mod platform {
    pub(crate) trait Platform: 'static {
        fn sync_cores();
    }
}

// What `core/users.rs` names of the rest of the crate: to the row of slots, users are addresses.

mod engine {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[expect(dead_code, reason = "the models have no sets")]
    pub(crate) enum WhichSet {
        Filter,
        Notrace,
    }
}

mod frame {
    pub(crate) const MAX_STAMP: u64 = u32::MAX as u64;
}

mod regs {
    pub(crate) trait Regs: core::fmt::Debug + 'static {}
}

mod graph {
    use core::marker::PhantomData;

    /// A graph user, by its number.
    #[derive(Debug)]
    pub(crate) struct GraphOps<R> {
        pub(crate) number: usize,
        pub(crate) regs: PhantomData<R>,
    }

    impl<R> GraphOps<R> {
        pub(crate) const fn plain(&self) -> Option<crate::straight::Plain> {
            None
        }
    }
}

/// The models have no straight path.
mod straight {
    #[derive(Debug)]
    pub(crate) struct Straight;

    #[derive(Clone, Copy, Debug)]
    pub(crate) struct Plain {
        pub(crate) from: fn() -> Option<u64>,
    }

    impl Straight {
        pub(crate) const fn new() -> Self {
            Self
        }

        pub(crate) fn on(&self, _slot: usize, _stamp: u64, _least: u64) {}

        pub(crate) fn off(&self) {}
    }
}

mod ops {
    use core::marker::PhantomData;

    #[derive(Debug)]
    pub(crate) struct Ops<R>(PhantomData<R>);
}
