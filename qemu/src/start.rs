//! From the machine's boot code to the first task, and from the command line to an exit code.

use fgraph::Hooking;

use crate::{
    bench, cases, command_line,
    console::println,
    crash, demo, heap,
    machine::{self, Exit},
    panic, sched, selfcheck, shell, smp, tracing,
};

/// Timer interrupts a second on each CPU, and so the most switches a second there that nobody asked for.
pub const TICK_HZ: u32 = 250;

/// The longest command line that is looked at.
const COMMAND_LINE_SIZE: usize = 512;

/// What the machine's boot code calls, once, on the boot CPU: boot stack, 64-bit mode, MMU and caches on,
/// traps installed, interrupts masked. Becomes the idle task.
pub fn kernel_main() -> ! {
    sched::init_cpu(0);
    heap::init();
    let mut buffer = [0; COMMAND_LINE_SIZE];
    let length = machine::command_line(&mut buffer);
    let classic = command_line::has(buffer.get(..length).unwrap_or(&buffer), command_line::CLASSIC);
    tracing::start(if classic { Hooking::Classic } else { Hooking::Balanced });
    smp::start_others();
    machine::timer_start(TICK_HZ);
    sched::spawn("main", main);
    sched::idle()
}

/// The first task: does what the command line says and leaves QEMU.
fn main() {
    let mut buffer = [0; COMMAND_LINE_SIZE];
    let length = machine::command_line(&mut buffer);
    let line = buffer.get(..length).unwrap_or(&buffer);
    let exit = match command_line::parse(line) {
        Ok(command_line::Command::Demo) => demo::run(command_line::trace(line)),
        Ok(command_line::Command::Shell) => shell::run(),
        Ok(command_line::Command::Test) => cases::run(None),
        Ok(command_line::Command::Case(name)) => cases::run(Some(name)),
        Ok(command_line::Command::Bench) => bench::run_all(),
        Ok(command_line::Command::SelfCheck) => selfcheck::run(),
        Ok(command_line::Command::Crash(crash)) => crash::run(crash),
        Err(error) => {
            println!("command line: {error}");
            Exit::Failed
        }
    };
    // Unless another CPU has begun to report a crash by now.
    panic::take_over();
    machine::exit(exit);
}
