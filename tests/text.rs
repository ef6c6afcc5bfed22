//! The text printer against its layout: one small golden trace for each rule, and events that nobody would record.
//! Whole traces that Linux recorded are in `text_linux.rs`.

use std::fmt;

use fgraph::Context;
use fgraph::text::{
    CpuState, Error, Event, Kind, NoNames, Options, Printer, Resolve, Retval, RetvalForm, Task,
};

const OPEN_GATE: usize = 0x1000;
const CHECK_KEY: usize = 0x2000;
const TURN_LOCK: usize = 0x3000;
const RING_IRQ: usize = 0x4000;
const NO_VALUE: usize = 0x5000;
const RUSTY: usize = 0x6000;

/// The little machine of the golden traces.
struct Gate;

impl Resolve for Gate {
    fn name(&self, func: usize, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match func {
            OPEN_GATE => "open_gate",
            CHECK_KEY => "check_key",
            TURN_LOCK => "turn_lock",
            RING_IRQ => "ring_irq",
            NO_VALUE => "no_value",
            RUSTY => "<gate::Lock<'_, T> as core::ops::Drop>::drop::{closure#0}",
            _ => return write!(f, "{func:#x}"),
        })
    }

    fn place(&self, addr: usize, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name(addr & !0xfff, f)?;
        write!(f, "+{:#x}/0x40", addr & 0xfff)
    }

    fn is_irq_entry(&self, func: usize) -> bool {
        func == RING_IRQ
    }

    fn has_retval(&self, func: usize) -> bool {
        func != NO_VALUE
    }
}

/// Values by type, as a resolver that knows types would show them.
struct Typed;

impl Resolve for Typed {
    fn name(&self, func: usize, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Gate.name(func, f)
    }

    fn write_retval(
        &self,
        _: usize,
        retval: Retval<'_>,
        form: RetvalForm,
        f: &mut fmt::Formatter<'_>,
    ) -> fmt::Result {
        match form {
            RetvalForm::Errors => write!(f, "Some({})", retval.second.unwrap_or(0)),
            RetvalForm::Hex => write!(f, "{{{:#x}, {:#x?}}}", retval.first, retval.second),
        }
    }

    fn write_args(&self, _: usize, args: &[usize], f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "key={}", args[0])
    }

    fn write_comment(&self, event: u32, data: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "event_{event}: {data:?}")
    }
}

const DOOR: Task = Task::new(77, "door");

fn at(cpu: u32, task: Task, time_ns: u64, kind: Kind<'_>) -> Event<'_> {
    Event { cpu, time_ns, task, kind }
}

fn entry(func: usize, depth: u32) -> Kind<'static> {
    Kind::Entry { func, depth, ret_addr: None, args: &[] }
}

fn back(func: usize, depth: u32, duration_ns: u64) -> Kind<'static> {
    Kind::Return { func, depth, duration_ns, retval: None, overrun: 0 }
}

fn back_with(func: usize, depth: u32, value: usize) -> Kind<'static> {
    Kind::Return {
        func,
        depth,
        duration_ns: 742,
        retval: Some(Retval { first: value, second: Some(5), memory: &[] }),
        overrun: 0,
    }
}

fn comment(text: &str) -> Kind<'_> {
    Kind::Comment { event: 0, data: text.as_bytes(), context: Context::Task }
}

/// Everything by `DOOR` on CPU 0.
fn by_door(kinds: &[Kind<'static>]) -> Vec<Event<'static>> {
    (0..).zip(kinds).map(|(i, kind)| at(0, DOOR, i * 1000, *kind)).collect()
}

/// Gives the events one by one, each with the one that follows on its CPU.
fn print(options: Options, cpus: usize, resolve: &dyn Resolve, events: &[Event<'_>]) -> String {
    let mut states = vec![CpuState::NEW; cpus];
    let mut printer = Printer::new(options, &mut states);
    let mut out = String::new();
    for (i, event) in events.iter().enumerate() {
        let next = events[i + 1..].iter().find(|next| next.cpu == event.cpu);
        printer.event(event, next, resolve, &mut out).unwrap();
    }
    out
}

/// `want` may begin on a line of its own.
#[track_caller]
fn assert_text(got: &str, want: &str) {
    let want = want.strip_prefix('\n').unwrap_or(want);
    assert!(got == want, "got:\n{got}\nwant:\n{want}");
}

#[test]
fn header_names_the_columns_that_are_shown() {
    let header = |options| {
        let mut out = String::new();
        Printer::new(options, &mut []).header(&mut out).unwrap();
        out
    };
    let default = "\
# tracer: function_graph
#
# CPU  DURATION                  FUNCTION CALLS
# |     |   |                     |   |   |   |
";
    let all = "\
# tracer: function_graph
#
#     TIME        CPU  TASK/PID         DURATION                  FUNCTION CALLS
#      |          |     |    |           |   |                     |   |   |   |
";
    let task_only = "\
# tracer: function_graph
#
#  TASK/PID                      FUNCTION CALLS
#   |    |                       |   |   |   |
";
    let nothing = "\
# tracer: function_graph
#
#               FUNCTION CALLS
#               |   |   |   |
";
    assert_text(&header(Options::default()), default);
    assert_text(&header(Options::all() - Options::BARE), all);
    assert_text(&header(Options::PROC), task_only);
    assert_text(&header(Options::empty()), nothing);
    assert_text(&header(Options::all()), "# tracer: function_graph\n#\n");
}

#[test]
fn default_trace_has_leaves_marks_and_arrows_around_interrupts() {
    let events: Vec<_> = [
        entry(OPEN_GATE, 0),
        entry(CHECK_KEY, 1),
        back(CHECK_KEY, 1, 742),
        entry(TURN_LOCK, 1),
        entry(RING_IRQ, 2),
        entry(CHECK_KEY, 3),
        back(CHECK_KEY, 3, 1_020),
        back(RING_IRQ, 2, 10_000),
        entry(NO_VALUE, 2),
        back(NO_VALUE, 2, 10_001),
        back(TURN_LOCK, 1, 131_205),
        entry(RING_IRQ, 1),
        back(RING_IRQ, 1, 1_000_001),
        back(OPEN_GATE, 0, 2_500_000_000),
    ]
    .map(|kind| at(7, DOOR, 0, kind))
    .to_vec();
    let want = "
 7)               |  open_gate() {
 7)   0.742 us    |    check_key();
 7)               |    turn_lock() {
 7)   ==========> |
 7)               |      ring_irq() {
 7)   1.020 us    |        check_key();
 7)   10.000 us   |      }
 7)   <========== |
 7) + 10.001 us   |      no_value();
 7) ! 131.205 us  |    }
 7)   ==========> |
 7) # 1000.001 us |    ring_irq();
 7)   <========== |
 7) $ 2500000 us  |  }
";
    assert_text(&print(Options::default(), 8, &Gate, &events), want);

    let want = "
 7)               |  open_gate() {
 7)   0.742 us    |    check_key();
 7)               |    turn_lock() {
 7) + 10.001 us   |      no_value();
 7) ! 131.205 us  |    }
 7) $ 2500000 us  |  }
";
    assert_text(&print(Options::default() - Options::IRQS, 8, &Gate, &events), want);

    // No column, not even one that was asked for.
    let want = "
open_gate() {
  check_key();
  turn_lock() {
    no_value();
  }
}
";
    for options in [Options::BARE, Options::all() - Options::IRQS - Options::TAIL - Options::OVERRUN] {
        assert_text(&print(options, 8, &Gate, &events), want);
    }

    let want = "\
open_gate() {
  check_key();
  turn_lock() {
==========>
    ring_irq() {
      check_key();
    }
<==========
    no_value();
  }
==========>
  ring_irq();
<==========
}
";
    assert_text(&print(Options::IRQS | Options::OVERHEAD, 8, &Gate, &events), want);
}

#[test]
fn hidden_interrupt_ends_at_its_depth_or_further_out_and_lost_events_are_still_told() {
    let events = by_door(&[
        entry(OPEN_GATE, 0),
        entry(TURN_LOCK, 1),
        entry(RING_IRQ, 2),
        entry(RING_IRQ, 3),
        comment("inside"),
        back(RING_IRQ, 3, 1),
        Kind::Lost { count: 9 },
        back(TURN_LOCK, 1, 1),
        back(OPEN_GATE, 0, 1),
    ]);
    let want = "
 0)               |  open_gate() {
 0)               |    turn_lock() {
CPU:0 [LOST 9 EVENTS]
 0)   0.001 us    |  } /* open_gate */
";
    assert_text(&print(Options::default() - Options::IRQS, 1, &Gate, &events), want);
}

#[test]
fn closing_says_its_name_if_its_opening_is_not_above_or_with_tail() {
    let kinds = [
        back(CHECK_KEY, 2, 1), // Opened before the trace began.
        back(TURN_LOCK, 1, 1),
        entry(OPEN_GATE, 1),
        entry(CHECK_KEY, 2),
        entry(TURN_LOCK, 3), // Left open.
        back(CHECK_KEY, 2, 1),
        back(TURN_LOCK, 1, 1), // Another one was opened at this depth.
        back(OPEN_GATE, 1, 1), // And that has been forgotten now.
        entry(OPEN_GATE, 1),
        entry(CHECK_KEY, 1), // A leaf at the depth of an opening takes its place.
        back(CHECK_KEY, 1, 1),
        back(OPEN_GATE, 1, 1),
    ];
    let want = "
 0)   0.001 us    |      } /* check_key */
 0)   0.001 us    |    } /* turn_lock */
 0)               |    open_gate() {
 0)               |      check_key() {
 0)               |        turn_lock() {
 0)   0.001 us    |      }
 0)   0.001 us    |    } /* turn_lock */
 0)   0.001 us    |    } /* open_gate */
 0)               |    open_gate() {
 0)   0.001 us    |    check_key();
 0)   0.001 us    |    } /* open_gate */
";
    assert_text(&print(Options::default(), 1, &Gate, &by_door(&kinds)), want);
    let want = "
 0)               |  open_gate() {
 0)               |    check_key() {
 0)               |      turn_lock() {
 0)   0.001 us    |    } /* check_key */
 0)   0.001 us    |  } /* open_gate */
";
    let kinds = [
        entry(OPEN_GATE, 0),
        entry(CHECK_KEY, 1),
        entry(TURN_LOCK, 2),
        back(CHECK_KEY, 1, 1),
        back(OPEN_GATE, 0, 1),
    ];
    assert_text(&print(Options::default() | Options::TAIL, 1, &Gate, &by_door(&kinds)), want);
}

#[test]
fn leaf_is_the_return_that_comes_next_on_the_same_cpu_by_the_same_task() {
    let other = Task::new(8, "other");
    let events = [
        at(0, DOOR, 1, entry(OPEN_GATE, 0)),
        at(1, other, 2, entry(OPEN_GATE, 0)), // Folds with the event at 5.
        at(0, DOOR, 3, entry(CHECK_KEY, 1)),  // Folds with the event at 6.
        at(1, other, 5, back(OPEN_GATE, 0, 3)),
        at(0, DOOR, 6, back(CHECK_KEY, 1, 3)),
        at(0, DOOR, 7, entry(CHECK_KEY, 1)),
        at(1, other, 7, entry(TURN_LOCK, 0)), // At the same time, but of the second buffer.
        at(0, other, 8, back(CHECK_KEY, 1, 1)), // Another task.
        at(0, other, 9, entry(CHECK_KEY, 2)),
        at(0, other, 10, back(CHECK_KEY, 3, 1)), // Another depth.
        at(0, other, 11, entry(CHECK_KEY, 2)),
        at(0, other, 12, comment("between")),
        at(0, other, 13, back(CHECK_KEY, 2, 1)),
        at(0, other, 14, entry(CHECK_KEY, 2)),
        at(0, other, 15, Kind::Lost { count: 1 }),
        at(0, other, 16, back(CHECK_KEY, 2, 1)),
        at(0, other, 17, entry(CHECK_KEY, 2)), // Nothing follows.
    ];
    let want = "
 0)               |  open_gate() {
 1)   0.003 us    |  open_gate();
 0)   0.003 us    |    check_key();
 0)               |    check_key() {
 1)               |  turn_lock() {
 ------------------------------------------
 0)    door-77     =>    other-8    
 ------------------------------------------

 0)   0.001 us    |    }
 0)               |      check_key() {
 0)   0.001 us    |        } /* check_key */
 0)               |      check_key() {
 0)               |        /* between */
 0)   0.001 us    |      }
 0)               |      check_key() {
CPU:0 [LOST 1 EVENTS]
 0)   0.001 us    |      } /* check_key */
 0)               |      check_key() {
";
    assert_text(&print(Options::default(), 2, &Gate, &events), want);

    // The same from two buffers.
    let buffer = |cpu| events.iter().copied().filter(move |event| event.cpu == cpu).peekable();
    let mut states = [CpuState::NEW, CpuState::NEW];
    let mut out = String::new();
    let mut printer = Printer::new(Options::default(), &mut states);
    printer.merged(&mut [buffer(0), buffer(1)], &Gate, &mut out).unwrap();
    assert_text(&out, want);
}

#[test]
fn a_leaf_folds_only_with_the_return_that_was_promised() {
    let events = by_door(&[entry(OPEN_GATE, 0), back(OPEN_GATE, 0, 1), back(TURN_LOCK, 0, 2)]);
    let mut states = [CpuState::NEW];
    let mut printer = Printer::new(Options::default(), &mut states);
    let mut out = String::new();
    // The return was overwritten after it had been looked at.
    printer.event(&events[0], Some(&events[1]), &Gate, &mut out).unwrap();
    printer.event(&events[2], Some(&events[1]), &Gate, &mut out).unwrap();
    printer.event(&events[1], None, &Gate, &mut out).unwrap();
    let want = "
 0)   0.001 us    |  open_gate();
 0)   0.002 us    |  } /* turn_lock */
 0)   0.001 us    |  } /* open_gate */
";
    assert_text(&out, want);
}

#[test]
fn task_switch_is_announced_for_each_cpu_but_not_for_its_first_task() {
    let (idle, worker) = (Task::new(0, ""), Task::new(41, "kworker/u8:2-events"));
    let events = [
        at(0, idle, 0, entry(OPEN_GATE, 0)),
        at(11, worker, 0, entry(OPEN_GATE, 0)),
        at(0, Task::new(0, "renamed"), 0, entry(CHECK_KEY, 1)),
        at(0, worker, 0, entry(CHECK_KEY, 1)),
        at(11, idle, 0, entry(RING_IRQ, 1)),
        at(11, DOOR, 0, comment("hello")),
    ];
    let want = "  0)               |  open_gate() {
 11)               |  open_gate() {
  0)               |    check_key() {
 ------------------------------------------
  0)   renamed-0    =>   kworker-41  
 ------------------------------------------

  0)               |    check_key() {
 ------------------------------------------
 11)   kworker-41   =>    <idle>-0   
 ------------------------------------------

 11)   ==========> |
 11)               |    ring_irq() {
 ------------------------------------------
 11)    <idle>-0    =>    door-77    
 ------------------------------------------

 11)               |      /* hello */
";
    assert_text(&print(Options::default(), 12, &Gate, &events), want);
    // The CPU is part of the announcement even where it is no column.
    let without = print(Options::DURATION, 12, &Gate, &events[..4]);
    assert!(without.contains("\n  0)   renamed-0    =>   kworker-41  \n"), "{without}");
}

#[test]
fn time_and_task_columns() {
    let events = [
        at(0, DOOR, 1_999, entry(OPEN_GATE, 0)),
        at(0, DOOR, 99_999_999_999_999, entry(RING_IRQ, 1)),
        at(0, DOOR, 123_456_000_001_000, back(RING_IRQ, 1, 5)),
        at(0, DOOR, 123_456_000_001_000, comment("note")),
    ];
    let options = Options::default() | Options::ABSTIME | Options::PROC;
    let want = "    0.000001 |   0)    door-77     |               |  open_gate() {
99999.999999 |   0)    door-77     |   ==========> |
99999.999999 |   0)    door-77     |   0.005 us    |    ring_irq();
99999.999999 |   0)    door-77     |   <========== |
123456.000001 |   0)    door-77     |               |  /* note */
";
    assert_text(&print(options, 1, &Gate, &events), want);
    let want = "   door-77     | open_gate() {\n";
    assert_text(&print(Options::PROC, 1, &Gate, &events[..1]), want);
}

#[test]
fn return_values_follow_leaves_and_closings() {
    let error = -22_isize as usize;
    let kinds = [
        entry(OPEN_GATE, 0),
        entry(CHECK_KEY, 1),
        back_with(CHECK_KEY, 1, error),
        entry(TURN_LOCK, 1),
        entry(NO_VALUE, 2),
        back_with(NO_VALUE, 2, 1),
        back_with(TURN_LOCK, 1, error as u32 as usize),
        entry(NO_VALUE, 1),
        back_with(CHECK_KEY, 2, 0x1f),
        back_with(NO_VALUE, 1, 1),
        back_with(OPEN_GATE, 0, 0),
    ];
    let want = "
 0)               |  open_gate() {
 0)   0.742 us    |    check_key(); /* ret=-22 */
 0)               |    turn_lock() {
 0)   0.742 us    |      no_value();
 0)   0.742 us    |    } /* turn_lock ret=-22 */
 0)               |    no_value() {
 0)   0.742 us    |      } /* check_key ret=0x1f */
 0)   0.742 us    |    }
 0)   0.742 us    |  } /* open_gate ret=0x0 */
";
    let options = Options::default() | Options::RETVAL;
    assert_text(&print(options, 1, &Gate, &by_door(&kinds)), want);
    let hex = want
        .replace("check_key(); /* ret=-22", "check_key(); /* ret=0xffffffffffffffea")
        .replace("turn_lock ret=-22", "turn_lock ret=0xffffffea");
    assert_text(&print(options | Options::RETVAL_HEX, 1, &Gate, &by_door(&kinds)), &hex);
}

#[test]
fn callers_overruns_and_values_by_type() {
    let kinds = [
        Kind::Entry { func: OPEN_GATE, depth: 0, ret_addr: Some(TURN_LOCK + 0x1c), args: &[3, 0xff] },
        Kind::Entry { func: CHECK_KEY, depth: 1, ret_addr: Some(OPEN_GATE + 4), args: &[7] },
        back_with(CHECK_KEY, 1, 1),
        Kind::Entry { func: CHECK_KEY, depth: 1, ret_addr: None, args: &[] },
        back_with(CHECK_KEY, 1, 1),
        Kind::Comment { event: 12, data: &[1, 2], context: Context::Task },
        Kind::Return {
            func: OPEN_GATE,
            depth: 0,
            duration_ns: 1,
            retval: Some(Retval { first: 1, second: Some(6), memory: &[] }),
            overrun: 31,
        },
    ];
    let want = "
 0)               |  open_gate() { /* <-turn_lock+0x1c/0x40 */
 0)   0.742 us    |    check_key(); /* <-open_gate+0x4/0x40 */
 0)   0.742 us    |    check_key();
 0)               |  /* ?? */
 0)   0.001 us    |  }
 (Overruns: 31)
";
    let options = Options::default() | Options::RETADDR | Options::OVERRUN;
    assert_text(&print(options, 1, &Gate, &by_door(&kinds)), want);

    let want = "
 0)               |  open_gate(0x3, 0xff) { /* <-turn_lock+0x1c/0x40 */
 0)   0.742 us    |    check_key(0x7); /* <-open_gate+0x4/0x40 ret=0x1 */
 0)   0.742 us    |    check_key(); /* ret=0x1 */
 0)               |  /* ?? */
 0)   0.001 us    |  } /* open_gate ret=0x1 */
";
    let options = Options::default() | Options::RETADDR | Options::RETVAL | Options::ARGS;
    assert_text(&print(options, 1, &Gate, &by_door(&kinds)), want);

    let want = "
 0)               |  open_gate(key=3) {
 0)   0.742 us    |    check_key(key=7); /* ret=Some(5) */
 0)   0.742 us    |    check_key(); /* ret=Some(5) */
 0)               |  /* event_12: [1, 2] */
 0)   0.001 us    |  } /* open_gate ret=Some(6) */
";
    let options = Options::default() | Options::RETVAL | Options::ARGS;
    assert_text(&print(options, 1, &Typed, &by_door(&kinds)), want);

    let want = "0x1000() { /* <-0x301c */\n  0x2000(); /* <-0x1004 */\n";
    assert_text(&print(Options::RETADDR, 1, &NoNames, &by_door(&kinds[..3])), want);
}

#[test]
fn comments_stand_one_level_deeper_than_the_innermost_call_except_in_the_outermost() {
    let kinds = [
        comment("before"),
        entry(OPEN_GATE, 0),
        comment("in the outermost\n"),
        entry(TURN_LOCK, 1),
        comment("in turn_lock"),
        entry(CHECK_KEY, 2),
        back(CHECK_KEY, 2, 1),
        comment("in turn_lock, \u{1b}[31mred\nand after a leaf\n"),
        back(TURN_LOCK, 1, 1),
        back(OPEN_GATE, 0, 1),
        comment("after"),
    ];
    let want = "
 0)               |  /* before */
 0)               |  open_gate() {
 0)               |  /* in the outermost */
 0)               |    turn_lock() {
 0)               |      /* in turn_lock */
 0)   0.001 us    |      check_key();
 0)               |      /* in turn_lock, ?[31mred?and after a leaf */
 0)   0.001 us    |    }
 0)   0.001 us    |  }
 0)               |  /* after */
";
    assert_text(&print(Options::default(), 1, &Gate, &by_door(&kinds)), want);
}

#[test]
fn names_are_shown_as_they_are_and_numbers_are_taken_as_they_come() {
    let kinds = [
        entry(RUSTY, 0),
        Kind::Lost { count: 0 },
        entry(0, 1), // An address of zero is no function whose opening can be remembered.
        entry(CHECK_KEY, 70),
        back(CHECK_KEY, 70, 1),
        entry(CHECK_KEY, 70), // Too deep to be remembered.
        comment("deep"),
        back(CHECK_KEY, 70, 1),
        back(0, 1, 1),
        back(RUSTY, 0, 1),
    ];
    let deep = "  ".repeat(70);
    let want = format!(
        "<gate::Lock<'_, T> as core::ops::Drop>::drop::{{closure#0}}() {{
CPU:0 [LOST EVENTS]
  0x0() {{
{deep}check_key();
{deep}check_key() {{
{deep}  /* deep */
{deep}}} /* check_key */
  }} /* 0x0 */
}} /* <gate::Lock<'_, T> as core::ops::Drop>::drop::{{closure#0}} */
"
    );
    assert_text(&print(Options::empty(), 1, &Gate, &by_door(&kinds)), &want);
}

#[test]
fn an_unknown_cpu_is_refused() {
    let mut states = [CpuState::NEW, CpuState::NEW];
    let mut printer = Printer::new(Options::default(), &mut states);
    for cpu in [2, u32::MAX] {
        let mut out = String::new();
        let refused = printer.event(&at(cpu, DOOR, 0, entry(OPEN_GATE, 0)), None, &Gate, &mut out);
        assert_eq!((refused, out.as_str()), (Err(Error::NoSuchCpu(cpu)), ""));
    }
}

/// Events of any kind with any numbers and any bytes give whole lines, a bounded number of them, without a
/// character that could move the cursor.
#[test]
fn hostile_events_give_whole_lines() {
    struct Hostile;
    const NAMES: [&str; 6] = ["", "\n", "a\r\n\tb\0", "} /* x */\n 0)", "\u{9b}2J\u{202e}", "ok"];
    impl Resolve for Hostile {
        fn name(&self, func: usize, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(NAMES[func % NAMES.len()])
        }
        fn place(&self, addr: usize, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.name(addr, f)
        }
        fn is_irq_entry(&self, func: usize) -> bool {
            func.is_multiple_of(7)
        }
        fn write_retval(
            &self,
            func: usize,
            _: Retval<'_>,
            _: RetvalForm,
            f: &mut fmt::Formatter<'_>,
        ) -> fmt::Result {
            self.name(func, f)
        }
        fn write_args(&self, func: usize, _: &[usize], f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.name(func, f)
        }
    }

    let mut seed = 1_u64;
    let mut random = |below: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % below
    };
    let mut bytes = vec![0; 4096];
    bytes.iter_mut().for_each(|byte| *byte = random(256) as u8);
    let mut events = Vec::new();
    for _ in 0..20_000 {
        let func = random(12) as usize;
        let depth = if random(50) == 0 { u32::MAX - random(3) as u32 } else { random(5) as u32 };
        let big = u64::MAX >> random(64);
        let start = random(4000) as usize;
        let data = &bytes[start..start + random(40) as usize];
        let mut comm = [0; 16];
        comm.copy_from_slice(&bytes[start..start + 16]);
        let kind = match random(9) {
            0..4 => Kind::Entry { func, depth, ret_addr: Some(func), args: &[1] },
            4..7 => Kind::Return {
                func,
                depth,
                duration_ns: big,
                retval: Some(Retval { first: big as usize, second: None, memory: &[] }),
                overrun: big as u32,
            },
            7 => Kind::Lost { count: big },
            _ => Kind::Comment { event: 1, data, context: Context::Irq },
        };
        let task = Task { pid: (random(3) as u32).wrapping_mul(big as u32 | 1), comm };
        events.push(Event { cpu: random(3) as u32, time_ns: big, task, kind });
    }
    for options in (0..=Options::all().bits()).step_by(37).map(Options::from_bits_truncate) {
        let mut states = vec![CpuState::NEW; 3];
        let mut printer = Printer::new(options, &mut states);
        for (i, event) in events.iter().enumerate().take(2_000) {
            let next = events[i + 1..].iter().find(|next| next.cpu == event.cpu);
            let mut out = String::new();
            printer.event(event, next, &Hostile, &mut out).unwrap();
            assert!(out.is_empty() || out.ends_with('\n'), "event {i} with {options:?}: {out:?}");
            // At most: four of a task switch, two arrows, a call.
            assert!(out.lines().count() <= 7, "event {i} with {options:?}: {out:?}");
            assert!(out.len() < 4_000, "event {i} with {options:?}: {} bytes", out.len());
            let bad = out.chars().find(|c| (c.is_control() && *c != '\n') || *c == '\u{202e}');
            assert_eq!(bad, None, "event {i} with {options:?}: {out:?}");
        }
    }
}
