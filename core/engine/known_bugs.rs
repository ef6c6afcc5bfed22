//! Bugs.

pub(super) mod cpu;
mod cpus;
mod interrupts;
mod modules;
mod sites;
mod users;
