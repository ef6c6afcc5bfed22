//! In the place of `core/sync.rs`: loom's atomics, made when they are first used, so that they can be made in a `const`.
//!
//! Before each access stands a point where this CPU may be interrupted ([`cpus::point`](crate::cpus::point)).

use core::marker::PhantomData;
use std::sync::OnceLock;

pub(crate) use core::sync::atomic::Ordering;

use crate::cpus::point;

/// An atomic integer. Models use every atomic before they start threads.
macro_rules! integer {
    ($name:ident, $value:ty) => {
        #[derive(Debug)]
        pub(crate) struct $name {
            first: $value,
            made: OnceLock<loom::sync::atomic::$name>,
        }

        impl $name {
            pub(crate) const fn new(first: $value) -> Self {
                Self { first, made: OnceLock::new() }
            }

            fn made(&self) -> &loom::sync::atomic::$name {
                point();
                self.made.get_or_init(|| loom::sync::atomic::$name::new(self.first))
            }

            pub(crate) fn load(&self, order: Ordering) -> $value {
                self.made().load(order)
            }

            pub(crate) fn store(&self, value: $value, order: Ordering) {
                self.made().store(value, order);
            }
        }
    };
}

integer!(AtomicU32, u32);
integer!(AtomicU64, u64);
integer!(AtomicUsize, usize);

impl AtomicU32 {
    pub(crate) fn fetch_or(&self, bits: u32, order: Ordering) -> u32 {
        self.made().fetch_or(bits, order)
    }

    pub(crate) fn fetch_and(&self, bits: u32, order: Ordering) -> u32 {
        self.made().fetch_and(bits, order)
    }
}

/// By the address: loom's own asks for types that live for ever.
#[derive(Debug)]
pub(crate) struct AtomicPtr<T> {
    addr: AtomicUsize,
    to: PhantomData<fn() -> *mut T>,
}

impl<T> AtomicPtr<T> {
    pub(crate) const fn new(first: *mut T) -> Self {
        assert!(first.is_null());
        Self { addr: AtomicUsize::new(0), to: PhantomData }
    }

    pub(crate) fn load(&self, order: Ordering) -> *mut T {
        core::ptr::with_exposed_provenance_mut(self.addr.load(order))
    }

    pub(crate) fn store(&self, to: *mut T, order: Ordering) {
        self.addr.store(to.expose_provenance(), order);
    }
}

/// Between a CPU and its interrupts the model keeps program order.
pub(crate) fn signal_fence() {}

/// Interrupts come before accesses.
pub(crate) fn interrupt_point() {}

pub(crate) fn spin_loop() {
    loom::thread::yield_now();
}
