//! Bugs.

pub(super) mod cpu;
mod interrupts;
