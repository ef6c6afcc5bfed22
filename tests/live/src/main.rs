//! The tracer inside a Linux process: real sleds, real trampolines, real interrupts (signals) and real CPUs.
//!
//! The program must be built with sleds (`tests/live/run` does); each case is a process of its own.
//!
//! ```text
//! fgraph-live [NAME...]   runs these cases, or all
//! fgraph-live bench       times traced calls
//! ```
#![cfg_attr(
    target_os = "linux",
    expect(unreachable_pub, reason = "a program has no outside; `pub` means for the other modules")
)]

#[cfg(target_os = "linux")]
mod bench;
#[cfg(target_os = "linux")]
mod cases;
#[cfg(target_os = "linux")]
mod log;
#[cfg(target_os = "linux")]
mod machine;
#[cfg(target_os = "linux")]
mod misses;
#[cfg(target_os = "linux")]
mod process;
#[cfg(target_os = "linux")]
mod records;
#[cfg(target_os = "linux")]
mod runner;
#[cfg(target_os = "linux")]
mod selftest;
#[cfg(target_os = "linux")]
mod signals;
#[cfg(target_os = "linux")]
mod users;
#[cfg(target_os = "linux")]
mod work;

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    if std::env::args().nth(1).as_deref() == Some("bench") {
        bench::run();
        return std::process::ExitCode::SUCCESS;
    }
    runner::main(&[&selftest::CASES[..], selftest::ABOUT_ALL, cases::CASES].concat())
}

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("fgraph-live needs Linux\n0 passed, 0 failed, 1 skipped");
}
