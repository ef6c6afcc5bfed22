//! Addresses that must not be mixed up. Each is a `usize` that says what stands at it.
//!
//! Nothing here is dereferenced; a type is a claim about an address, made by whoever constructs it.

use core::fmt;

macro_rules! address {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(usize);

        impl $name {
            /// Claims that `addr` is such an address.
            #[inline]
            pub const fn new(addr: usize) -> Self {
                Self(addr)
            }

            /// The plain number.
            #[inline]
            pub const fn get(self) -> usize {
                self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }
    };
}

address! {
    /// The entry of a function: the value of its symbol. This is the `ip` that callbacks are given; a landing pad
    /// (ENDBR64, BTI) that stands there is part of the function.
    FuncAddr
}

address! {
    /// The place in a function that is patched: the first byte of its sled, behind a landing pad if there is one.
    SiteAddr
}

address! {
    /// Where a call returns to: the `parent_ip` of callbacks, and what the shadow stack keeps.
    RetAddr
}

address! {
    /// The key of a shadow frame: the stack pointer at the first instruction of the traced function. On x86_64 that is
    /// the address of the return address; on arm64 the callee returns with this same value in `sp`.
    StackKey
}
