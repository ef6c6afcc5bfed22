//! Bugs.

pub(super) mod cpu;
mod interrupts;
mod modules;
mod sites;
mod users;
