//! Bugs.

pub(super) mod cpu;
