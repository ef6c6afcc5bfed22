//! What probes do in particular cases; first those that Linux tests its own with.

use core::cell::Cell;
use std::rc::Rc;
use std::string::ToString;
use std::vec::Vec;

use super::bench::{Bench, Event, Handlers, RET, left, meanwhile, probe, told, vetoes};
use super::{Fprobe, FprobeError, MAX_FPROBE_WORDS, MAX_FPROBES};
use crate::addr::FuncAddr;
use crate::engine::Error;
use crate::engine::image::{Target, for_plain_sites};
use crate::testing::{Random, with_interrupt_at};

fn bench<T: Target>() -> (Bench<T>, Vec<usize>) {
    let bench = Bench::<T>::new(6, 200, &mut Random::new(11));
    let funcs = bench.funcs();
    (bench, funcs)
}

fn entry_of(probe: usize, ip: usize, words: usize) -> Event {
    Event::Entry { probe, ip, parent: RET, words }
}

fn exit_of(probe: usize, ip: usize, words: usize) -> Event {
    let data = (0..words).map(|index| left(probe, ip, index)).collect();
    Event::Exit { probe, ip, parent: RET, value: 5, data }
}

fn entry_only<T: Target>() {
    let (bench, funcs) = bench::<T>();
    let only = probe(0, Handlers::Entry, &funcs[1..3], 0);
    assert_eq!(bench.register(only), Ok(()));
    assert_eq!(bench.patched(), funcs[1..3]);
    for func in &funcs {
        assert!(!bench.run(*func), "no shadow frame");
    }
    assert_eq!(told(), [entry_of(0, funcs[1], 0), entry_of(0, funcs[2], 0)]);
    assert_eq!(bench.task.stats().calls, 0);
    assert_eq!(bench.unregister(only), Ok(()));
    assert_eq!((bench.patched(), only.nmissed()), (Vec::new(), 0));
}

fn entry_and_exit_with_data<T: Target>() {
    for words in [0, 1, 4, MAX_FPROBE_WORDS] {
        let (bench, funcs) = bench::<T>();
        let both = probe(0, Handlers::Both, &funcs[..2], words);
        assert_eq!(bench.register(both), Ok(()));
        funcs.iter().for_each(|func| {
            bench.run(*func);
        });
        let at = |func: usize| [entry_of(0, func, words), exit_of(0, func, words)];
        assert_eq!(told(), [at(funcs[0]), at(funcs[1])].concat());
        assert_eq!(bench.unregister(both), Ok(()));
        assert!(!bench.run(funcs[0]));
        assert_eq!((told(), both.nmissed()), (Vec::new(), 0));
    }
}

fn a_veto_at_the_entry_is_no_miss<T: Target>() {
    let (bench, funcs) = bench::<T>();
    let both = probe(3, Handlers::Both, &funcs[..1], 2);
    assert_eq!(bench.register(both), Ok(()));
    let mut vetoed = 0;
    for _ in 0..20 {
        let hooked = bench.run(funcs[0]);
        let veto = vetoes(3, Bench::<T>::serial());
        assert_eq!((hooked, told().len()), if veto { (false, 1) } else { (true, 2) });
        vetoed += usize::from(veto);
    }
    assert!(vetoed > 0 && vetoed < 20);
    assert_eq!(both.nmissed(), 0);
}

fn calls_within_calls_are_told_both<T: Target>() {
    let (bench, funcs) = bench::<T>();
    let both = probe(0, Handlers::Both, &funcs[..2], 1);
    assert_eq!(bench.register(both), Ok(()));
    let outer = bench.call(funcs[0], RET);
    bench.run(funcs[1]);
    assert_eq!(bench.ret(outer, 5), RET);
    let [f, g] = [funcs[0], funcs[1]];
    assert_eq!(told(), [entry_of(0, f, 1), entry_of(0, g, 1), exit_of(0, g, 1), exit_of(0, f, 1)]);
    assert_eq!(both.nmissed(), 0);
}

fn what_is_not_registered_cannot_be_taken_out<T: Target>() {
    let (bench, funcs) = bench::<T>();
    for handlers in [Handlers::Entry, Handlers::Exit] {
        let one = probe(0, handlers, &funcs[..1], 0);
        assert_eq!(bench.unregister(one), Err(FprobeError::NotRegistered));
        assert_eq!(bench.register(one), Ok(()));
        assert_eq!(bench.register(one), Err(FprobeError::AlreadyRegistered));
        assert_eq!(bench.unregister(one), Ok(()));
        assert_eq!(bench.unregister(one), Err(FprobeError::NotRegistered));
        assert_eq!(bench.patched(), []);
    }
}

fn an_entry_only_probe_and_one_with_an_exit_share_a_function<T: Target>() {
    let (bench, funcs) = bench::<T>();
    let (plain, both) = (probe(0, Handlers::Entry, &funcs[..2], 0), probe(0, Handlers::Both, &funcs[..1], 1));
    assert_eq!((bench.register(plain), bench.register(both)), (Ok(()), Ok(())));
    bench.run(funcs[0]);
    assert_eq!(told(), [entry_of(0, funcs[0], 0), entry_of(0, funcs[0], 1), exit_of(0, funcs[0], 1)]);
    // Neither keeps the other's functions patched.
    assert_eq!(bench.unregister(both), Ok(()));
    assert_eq!(bench.patched(), funcs[..2]);
    assert!(!bench.run(funcs[0]));
    assert_eq!(bench.register(both), Ok(()));
    assert_eq!(bench.unregister(plain), Ok(()));
    assert_eq!(bench.patched(), funcs[..1]);
}

fn a_function_stays_until_its_last_probe_goes<T: Target>() {
    for handlers in [Handlers::Entry, Handlers::Exit] {
        let (bench, funcs) = bench::<T>();
        let one = probe(0, handlers, &funcs[..3], 0);
        let two = probe(0, handlers, &funcs[2..5], 0);
        assert_eq!((bench.register(one), bench.register(two)), (Ok(()), Ok(())));
        bench.run(funcs[2]);
        assert_eq!(told().len(), 2, "each is told once");
        assert_eq!(bench.unregister(one), Ok(()));
        assert_eq!(bench.patched(), funcs[2..5]);
        assert_eq!(bench.unregister(two), Ok(()));
        assert_eq!(bench.patched(), [], "no function, not every one");
    }
}

fn more_functions_go_than_fit_in_a_batch<T: Target>() {
    let bench = Bench::<T>::new(150, 200, &mut Random::new(2));
    let funcs = bench.funcs();
    let (most, one) =
        (probe(0, Handlers::Exit, &funcs[..140], 0), probe(0, Handlers::Exit, &funcs[70..71], 0));
    assert_eq!((bench.register(one), bench.register(most)), (Ok(()), Ok(())));
    assert_eq!(bench.patched(), funcs[..140]);
    assert_eq!(bench.unregister(most), Ok(()));
    assert_eq!(bench.patched(), funcs[70..71]);
}

fn a_refused_probe_leaves_nothing_behind<T: Target>() {
    let (bench, funcs) = bench::<T>();
    let notrace = bench.image.functions.iter().find(|function| function.notrace).expect("one").addr;
    let site = bench.image.traceable().find(|function| function.site != function.addr);
    let site = site.expect("a function with a landing pad").site;
    let stays = probe(0, Handlers::Exit, &funcs[..1], 0);
    for first in [true, false] {
        let with = |list: &[usize]| bench.register(probe(0, Handlers::Exit, list, 0));
        assert_eq!(with(&[]), Err(FprobeError::NoFunctions));
        let func = FuncAddr::new(notrace);
        assert_eq!(with(&[notrace]), Err(FprobeError::Engine(Error::NotTraceable { func })));
        let func = FuncAddr::new(site);
        assert_eq!(with(&[site]), Err(FprobeError::NotAnEntry { func }));
        for wrong in [[funcs[1], funcs[0]], [funcs[1], funcs[1]]] {
            let func = FuncAddr::new(wrong[1]);
            assert_eq!(with(&wrong), Err(FprobeError::Engine(Error::UnsortedFilter { func })));
        }
        let words = MAX_FPROBE_WORDS + 1;
        let big = bench.register(probe(0, Handlers::Both, &funcs[..1], words));
        assert_eq!(big, Err(FprobeError::TooMuchData { words, max: MAX_FPROBE_WORDS }));
        assert_eq!(bench.patched(), if first { &[] } else { &funcs[..1] });
        if first {
            assert_eq!(bench.register(stays), Ok(()));
        }
    }
    bench.run(funcs[0]);
    assert_eq!(told().len(), 1);
    let error = FprobeError::TooMuchData { words: 16, max: 15 };
    assert_eq!(error.to_string(), "16 words of data for a call: 15 are possible");
}

fn there_is_a_place_for_each_of_sixty_four<T: Target>() {
    let (bench, funcs) = bench::<T>();
    let probes: Vec<_> = (0..MAX_FPROBES)
        .map(|n| probe(0, if n % 2 == 0 { Handlers::Entry } else { Handlers::Exit }, &funcs[..1], 0))
        .collect();
    probes.iter().for_each(|probe| assert_eq!(bench.register(probe), Ok(())));
    let more = bench.register(probe(0, Handlers::Exit, &funcs[..1], 0));
    assert_eq!(more, Err(FprobeError::TooManyProbes { max: MAX_FPROBES }));
    bench.run(funcs[0]);
    assert_eq!(told().len(), MAX_FPROBES);
    probes.iter().for_each(|probe| assert_eq!(bench.unregister(probe), Ok(())));
    assert_eq!(bench.patched(), []);
}

fn a_disabled_probe_is_not_told<T: Target>() {
    let (bench, funcs) = bench::<T>();
    let both = probe(0, Handlers::Both, &funcs[..1], 1);
    assert_eq!(bench.register(both), Ok(()));
    let call = bench.call(funcs[0], RET);
    both.disable();
    assert_eq!(bench.patched(), funcs[..1], "no text changes");
    assert!(!bench.run(funcs[0]));
    bench.ret(call, 5);
    assert_eq!(told(), [entry_of(0, funcs[0], 1)]);
    both.enable();
    bench.run(funcs[0]);
    assert_eq!((told().len(), both.nmissed()), (2, 0));
}

fn probes_that_want_too_much_together_miss_it<T: Target>() {
    let (bench, funcs) = bench::<T>();
    let probes = [15, 10, 8, 4].map(|words| probe(0, Handlers::Both, &funcs[..1], words));
    probes.iter().for_each(|probe| assert_eq!(bench.register(probe), Ok(())));
    bench.run(funcs[0]);
    // With a header each, 16 + 11 + 5 words fit; the third probe's 9 do not.
    let missed = probes.map(Fprobe::nmissed);
    assert_eq!((missed, told().len()), ([0, 0, 1, 0], 6));
}

fn a_full_shadow_stack_is_a_miss<T: Target>() {
    // One call fits, and another without data.
    let bench = Bench::<T>::new(6, 4 + 3 + 4, &mut Random::new(11));
    let funcs = bench.funcs();
    let both = probe(0, Handlers::Both, &funcs[..1], 1);
    assert_eq!(bench.register(both), Ok(()));
    let outer = bench.call(funcs[0], RET);
    let inner = bench.call(funcs[0], RET);
    assert!(!inner.hooked());
    assert_eq!((told().len(), both.nmissed()), (1, 1));
    assert_eq!((bench.ret(inner, 5), bench.ret(outer, 5)), (RET, RET));
    assert_eq!(told(), [exit_of(0, funcs[0], 1)]);
}

/// The exit of a call whose probe is gone by then is nobody's, also when another has its place.
fn a_call_outlives_its_probe<T: Target>() {
    let (bench, funcs) = bench::<T>();
    let (old, new) = (probe(0, Handlers::Both, &funcs[..1], 3), probe(1, Handlers::Both, &funcs[..1], 1));
    assert_eq!(bench.register(old), Ok(()));
    let stays = probe(0, Handlers::Exit, &funcs[..1], 0);
    assert_eq!(bench.register(stays), Ok(()));
    let call = bench.call(funcs[0], RET);
    assert_eq!((bench.unregister(old), bench.register(new)), (Ok(()), Ok(())));
    told();
    assert_eq!(bench.ret(call, 5), RET);
    assert_eq!(told(), [exit_of(0, funcs[0], 0)]);

    // The same probe once more is another registration.
    let call = bench.call(funcs[0], RET);
    assert_eq!((bench.unregister(stays), bench.register(stays)), (Ok(()), Ok(())));
    told();
    assert_eq!(bench.ret(call, 5), RET);
    assert!(!told().contains(&exit_of(0, funcs[0], 0)));
}

/// A probe that comes while the entry of the same function is being told has no words in that call, and gets none.
fn a_probe_that_comes_during_an_entry_waits_for_the_next<T: Target>() {
    let (bench, funcs) = bench::<T>();
    let (early, late) = (probe(0, Handlers::Both, &funcs[..1], 1), probe(0, Handlers::Both, &funcs[..1], 9));
    assert_eq!(bench.register(early), Ok(()));
    let (engine, probes, once) = (bench.engine, bench.probes, Rc::new(Cell::new(false)));
    let results = Rc::new(Cell::new(None));
    let result = results.clone();
    meanwhile(move |_, _| {
        if !once.replace(true) {
            // The other CPU's work; the graph user is there, so it waits for no callback.
            result.set(Some(probes.register(engine, late)));
        }
    });
    bench.run(funcs[0]);
    assert_eq!(results.take(), Some(Ok(())));
    assert_eq!(told(), [entry_of(0, funcs[0], 1), exit_of(0, funcs[0], 1)]);
    bench.run(funcs[0]);
    assert_eq!(told().len(), 4);
    assert_eq!((early.nmissed(), late.nmissed()), (0, 0));
}

/// Between counting who is there and calling them, too.
fn a_probe_may_come_at_any_step_of_an_entry<T: Target>() {
    let mut seen = [0; 2];
    for at in 0.. {
        let (bench, funcs) = bench::<T>();
        let early = probe(0, Handlers::Both, &funcs[..1], 2);
        let late = probe(0, Handlers::Both, &funcs[..1], MAX_FPROBE_WORDS);
        assert_eq!(bench.register(early), Ok(()));
        let come = || assert_eq!(bench.register(late), Ok(()));
        let (call, came) = with_interrupt_at(at, come, || bench.call(funcs[0], RET));
        assert_eq!(bench.ret(call, 5), RET);
        let told = told();
        let pair = |words| [entry_of(0, funcs[0], words), exit_of(0, funcs[0], words)];
        let [early_entry, early_exit] = pair(2);
        let [late_entry, late_exit] = pair(MAX_FPROBE_WORDS);
        let alone = vec![early_entry.clone(), early_exit.clone()];
        let both = vec![early_entry, late_entry, early_exit, late_exit];
        assert!(told == alone || came && told == both, "at {at}: {told:?}");
        seen[usize::from(told == both)] += 1;
        assert_eq!((early.nmissed(), late.nmissed()), (0, 0), "at {at}");
        if !came {
            break;
        }
    }
    assert!(seen[0] > 1 && seen[1] > 0, "before and after the look: {seen:?}");
}

/// A module's functions go with it: nothing of it stays in the filter, its probe can still be taken out, and what comes to the same
/// place later is not traced for it.
fn a_probe_outlives_the_module_of_its_functions<T: Target>() {
    let bench = Bench::<T>::with_module(3, &mut Random::new(4));
    let funcs = bench.funcs();
    let (module, in_kernel) = (&funcs[3..], &funcs[..3]);
    for handlers in [Handlers::Entry, Handlers::Exit] {
        let across = probe(0, handlers, &funcs[1..5], 0);
        let kernel_only = probe(0, handlers, &in_kernel[1..2], 0);
        let func = FuncAddr::new(module[0]);
        let gone = Err(FprobeError::Engine(Error::NotTraceable { func }));
        assert_eq!(bench.register(across), gone, "not loaded yet");
        assert_eq!(bench.register(kernel_only), Ok(()));
        let loaded = bench.load();
        assert_eq!(bench.register(across), Ok(()));
        assert_eq!(bench.patched(), funcs[1..5]);
        assert_eq!(bench.engine.remove_module(loaded), Ok(()));
        assert_eq!(bench.patched(), in_kernel[1..]);
        let loaded = bench.load();
        assert_eq!(bench.patched(), in_kernel[1..], "what is there now is other code");
        assert_eq!(bench.engine.remove_module(loaded), Ok(()));
        assert_eq!(bench.unregister(across), Ok(()));
        assert_eq!(bench.patched(), in_kernel[1..2]);
        assert_eq!(bench.unregister(kernel_only), Ok(()));
    }
}

for_plain_sites! {
    entry_only
    entry_and_exit_with_data
    a_veto_at_the_entry_is_no_miss
    calls_within_calls_are_told_both
    what_is_not_registered_cannot_be_taken_out
    an_entry_only_probe_and_one_with_an_exit_share_a_function
    a_function_stays_until_its_last_probe_goes
    more_functions_go_than_fit_in_a_batch
    a_refused_probe_leaves_nothing_behind
    there_is_a_place_for_each_of_sixty_four
    a_disabled_probe_is_not_told
    probes_that_want_too_much_together_miss_it
    a_full_shadow_stack_is_a_miss
    a_call_outlives_its_probe
    a_probe_that_comes_during_an_entry_waits_for_the_next
    a_probe_may_come_at_any_step_of_an_entry
    a_probe_outlives_the_module_of_its_functions
}
