//! The profiler against lists of times, in random histories of calls on several CPUs.

use core::fmt;
use std::collections::BTreeMap;
use std::string::ToString;
use std::vec::Vec;

use super::{PROFILE_WORDS, ProfileError, ProfileRow, Profiler};
use crate::filter::{Filter, FuncSet};
use crate::graph::world::{Block, Call, World, funcs, on_both_machines};
use crate::limits::LimitOptions;
use crate::testing::kernel::{self, Fake};
use crate::testing::{Random, keep, keep_all, storm};

const FUNCS: [usize; 6] = [0x1000, 0x1100, 0x1200, 0x1300, 0x1400, 0x1500];
const NEVER: usize = 0x1500;
const CPUS: usize = 3;
const RET: usize = 0x4_0000;

fn profiler<R: Block>() -> &'static Profiler<Fake, R> {
    let profiler: &'static Profiler<Fake, R> = keep(Profiler::new(Filter::ALL));
    (0..CPUS).for_each(|cpu| profiler.lend(cpu, keep_all(vec![7; 16 * PROFILE_WORDS])).expect("memory"));
    profiler
}

/// A call under way, in the model.
struct Open {
    call: Call,
    func: usize,
    began: u64,
    inside: u64,
}

fn variance(times: &[u64]) -> f64 {
    let mean = times.iter().sum::<u64>() as f64 / times.len() as f64;
    let squares: f64 = times.iter().map(|ns| (*ns as f64 - mean).powi(2)).sum();
    if times.len() < 2 { 0.0 } else { squares / (times.len() - 1) as f64 }
}

fn check(rows: &[ProfileRow], times: &BTreeMap<usize, Vec<u64>>, which: impl fmt::Debug) {
    assert_eq!(rows.len(), times.len(), "functions of {which:?}");
    for row in rows {
        let times = &times[&row.func.get()];
        let (hits, time) = (times.len() as u64, times.iter().sum::<u64>());
        assert_eq!((row.hits, row.time_ns), (hits, time), "{row:?} of {which:?}");
        assert_eq!(row.average_ns(), time / hits);
        let (is, should) = (row.variance() as f64, variance(times));
        assert!((is - should).abs() <= 2.0 + should * 1e-9, "{is} instead of {should}");
    }
    let in_order = rows.windows(2).all(|pair| {
        (pair[1].time_ns, pair[1].hits, pair[0].func) < (pair[0].time_ns, pair[0].hits, pair[1].func)
    });
    assert!(in_order, "{rows:?}");
}

fn totals_agree_with_lists_of_times<R: Block>() {
    let mut calls_in_all = 0;
    storm(40, 2, |random: &mut Random| {
        kernel::boot(0, Vec::new(), Vec::new());
        let self_time = random.one_in(2);
        let profiler = profiler::<R>();
        if self_time {
            profiler.limits().set_options(LimitOptions::all() - LimitOptions::GRAPH_TIME);
        }
        profiler.limits().set_graph_notrace(keep(FuncSet::Some(funcs([NEVER]))));
        let world = World::<R>::new(900);
        assert!(world.graph.publish(profiler.ops()));
        let mut open: Vec<Open> = Vec::new();
        let mut times: Vec<BTreeMap<usize, Vec<u64>>> = vec![BTreeMap::new(); CPUS];
        for _ in 0..if cfg!(miri) { 60 } else { 400 } {
            let (now, cpu) = kernel::with(|kernel| {
                kernel.clock_ns += random.below(5000) as u64;
                if random.one_in(10) {
                    kernel.cpu = random.below(CPUS);
                }
                (kernel.clock_ns, kernel.cpu)
            });
            if random.one_in(2) && open.len() < 20 {
                let func = *random.pick(&FUNCS);
                let call = world.call(func, RET);
                open.push(Open { call, func, began: now, inside: 0 });
            } else if random.one_in(12) {
                // The outermost one stays: its return finds the jump out.
                let left = random.between(1, open.len().max(1));
                if let Some(lowest) = open.get(left) {
                    world.unwind_to(lowest.call.sp);
                    // So that it is found out at once; what it means until then, the model of the limits says.
                    open.truncate(left);
                    while let Some(last) = open.pop() {
                        assert_eq!(world.ret(last.call, 0).0, RET);
                        end(last, &mut open, &mut times[cpu], now, self_time);
                    }
                }
            } else if let Some(last) = open.pop() {
                assert_eq!(world.ret(last.call, 0).0, RET);
                end(last, &mut open, &mut times[cpu], now, self_time);
            }
        }
        let mut rows = [ProfileRow::EMPTY; CPUS * FUNCS.len()];
        let mut all: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
        for (cpu, times) in times.iter().enumerate() {
            check(profiler.rows(cpu, &mut rows).expect("rows"), times, cpu);
            assert_eq!(profiler.lost(cpu), Ok(0));
            times.iter().for_each(|(func, times)| all.entry(*func).or_default().extend(times));
        }
        check(profiler.rows_of_all(&mut rows).expect("rows"), &all, "all");
        calls_in_all += all.values().map(Vec::len).sum::<usize>();
        profiler.clear();
        assert_eq!(profiler.rows_of_all(&mut rows), Ok(&[][..]));
    });
    std::println!("{calls_in_all} calls");
    assert!(calls_in_all > 0);
}

/// A call ends in the model.
fn end(last: Open, open: &mut [Open], times: &mut BTreeMap<usize, Vec<u64>>, now: u64, self_time: bool) {
    if last.func == NEVER || open.iter().any(|open| open.func == NEVER) {
        return;
    }
    let ns = now - last.began;
    if let Some(caller) = open.last_mut() {
        caller.inside += ns;
    }
    times.entry(last.func).or_default().push(if self_time { ns - last.inside } else { ns });
}

fn what_cannot_be_done_is_refused<R: Block>() {
    kernel::boot(0, Vec::new(), Vec::new());
    let profiler = profiler::<R>();
    let world = World::<R>::new(100);
    assert!(world.graph.publish(profiler.ops()));
    for func in FUNCS {
        let call = world.call(func, RET);
        world.ret(call, 0);
    }
    let mut rows = [ProfileRow::EMPTY; 5];
    let too_few = Err(ProfileError::TooFewRows { rows: 5, needed: 6 });
    assert_eq!(profiler.rows(0, &mut rows), too_few);
    assert_eq!(profiler.rows_of_all(&mut rows), too_few);
    let no_cpu = ProfileError::NoSuchCpu { cpu: 64, max: 64 };
    assert_eq!(profiler.lend(64, keep_all(vec![0; 99])), Err(no_cpu));
    assert_eq!(profiler.lost(64), Err(no_cpu));
    assert_eq!(
        profiler.rows(usize::MAX, &mut rows).map(<[_]>::len),
        Err(ProfileError::NoSuchCpu { cpu: usize::MAX, max: 64 })
    );
    let messages = [
        no_cpu.to_string(),
        ProfileError::TooFewRows { rows: 5, needed: 6 }.to_string(),
        ProfileError::TooFewWords { words: 4, needed: 5 }.to_string(),
    ];
    assert!(messages.iter().all(|message| message.contains(|c: char| c.is_ascii_digit())), "{messages:?}");
    // A CPU whose table nobody lent.
    kernel::with(|kernel| kernel.cpu = 9);
    let call = world.call(FUNCS[0], RET);
    world.ret(call, 0);
    assert_eq!(profiler.lost(9), Ok(1));
}

on_both_machines! {
    totals_agree_with_lists_of_times
    what_cannot_be_done_is_refused
}
