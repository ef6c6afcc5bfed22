//! Calls at every moment of every change: an interrupt at each step of an operation, and another task whose calls began before
//! the step and end after it. Whoever wants a function before and after is told of each call once; whoever wants it neither
//! before nor after, never; in between, once at most.

use std::vec::Vec;

use super::cpu::{Call, Cpu, Loadable, Runs, Told, What, add, graph, load, ops, told};
use crate::addr::FuncAddr;
use crate::engine::image::{Function, Image, for_plain_sites};
use crate::engine::{Engine, Error, SetChange, WhichSet};
use crate::filter::Filter;
use crate::graph::GraphOps;
use crate::graph::world::funcs;
use crate::ops::{Ops, OpsFlags};
use crate::platform::Context;
use crate::regs::Saved;
use crate::sites::ModuleId;
use crate::testing::kernel::{self, Fake};
use crate::testing::{Random, with_interrupt_at};

const SITES: usize = 5;

/// Every step and every case; Miri takes a few of them.
const STRIDE: usize = if cfg!(miri) { 29 } else { 1 };
const CASE_STRIDE: usize = if cfg!(miri) { 6 } else { 1 };

/// A machine in the middle of its work: three users that stay, and two that operations are about.
struct Scene<T: Runs> {
    loadable: Loadable,
    engine: &'static Engine<Fake, T>,
    /// Numbered from 0.
    stay: Vec<Filter>,
    ops: &'static Ops<T::Regs>,
    graph: &'static GraphOps<T::Regs>,
    /// If it is loaded.
    module: Option<ModuleId>,
    cpu: Cpu<T>,
    task: Cpu<T>,
}

/// The users that operations are about.
const OPS: usize = 10;
const GRAPH: usize = 11;

impl<T: Runs> Scene<T> {
    fn new(flags: OpsFlags, filter: Filter) -> Self {
        let loadable = Loadable::new::<T>(SITES, 1, 3, &mut Random::new(21));
        let engine = loadable.start::<T>();
        let second = funcs([loadable.kernel.traceable().nth(1).expect("a function").addr]);
        let third = funcs([loadable.kernel.traceable().nth(2).expect("a function").addr]);
        let stay = [Filter::only(second), Filter::only(third), Filter::only(third)].to_vec();
        assert_eq!(engine.register_ops(ops::<T>(0, OpsFlags::empty(), stay[0])), Ok(()));
        assert_eq!(engine.register_graph(graph::<T>(1, stay[1])), Ok(()));
        assert_eq!(engine.register_ops(ops::<T>(2, OpsFlags::SAVE_REGS, stay[2])), Ok(()));
        let (cpu, task) = (Cpu::new(engine), Cpu::new(engine));
        let (ops, graph) = (ops::<T>(OPS, flags, filter), graph::<T>(GRAPH, filter));
        Self { loadable, engine, stay, ops, graph, module: None, cpu, task }
    }

    fn funcs(&self, of: impl Fn(usize) -> bool) -> &'static [FuncAddr] {
        let image = &self.loadable.kernel;
        funcs(image.traceable().enumerate().filter(|(n, _)| of(*n)).map(|(_, function)| function.addr))
    }

    fn module(&self) -> &Image {
        &self.loadable.modules[0]
    }
}

/// One thing that is done, and what goes before it.
struct Case<T: Runs> {
    name: &'static str,
    flags: OpsFlags,
    filter: Filter,
    before: fn(&mut Scene<T>),
    run: fn(&Scene<T>),
    /// Whether who stays is served throughout; behind the switch nobody is.
    serves: bool,
}

fn case<T: Runs>(name: &'static str, before: fn(&mut Scene<T>), run: fn(&Scene<T>)) -> Case<T> {
    Case { name, flags: OpsFlags::empty(), filter: Filter::ALL, before, run, serves: true }
}

fn done(result: Result<(), Error>) {
    assert_eq!(result, Ok(()));
}

fn register_both<T: Runs>(scene: &mut Scene<T>) {
    done(scene.engine.register_ops(scene.ops));
    done(scene.engine.register_graph(scene.graph));
}

fn change<T: Runs>(scene: &Scene<T>, which: WhichSet, to: SetChange<'_>) {
    done(scene.engine.change_ops(scene.ops, which, to));
    done(scene.engine.change_graph(scene.graph, which, to));
}

fn cases<T: Runs>() -> Vec<Case<T>> {
    let regs = |case: Case<T>| Case { flags: OpsFlags::SAVE_REGS, ..case };
    let none = |case: Case<T>| Case { filter: Filter::NONE, ..case };
    let nothing: fn(&mut Scene<T>) = |_| {};
    vec![
        case("a user comes", nothing, |scene| done(scene.engine.register_ops(scene.ops))),
        regs(case("a user of all registers comes", nothing, |s| done(s.engine.register_ops(s.ops)))),
        case("a graph user comes", nothing, |scene| done(scene.engine.register_graph(scene.graph))),
        case("a user goes", register_both, |scene| done(scene.engine.unregister_ops(scene.ops))),
        regs(case("a user of all registers goes", register_both, |s| done(s.engine.unregister_ops(s.ops)))),
        case("a graph user goes", register_both, |scene| done(scene.engine.unregister_graph(scene.graph))),
        case("from all to some", register_both, |scene| {
            change(scene, WhichSet::Filter, SetChange::Replace(scene.funcs(|n| n % 2 == 0)));
        }),
        none(case("from none to all", register_both, |s| change(s, WhichSet::Filter, SetChange::All))),
        case("from some to all", some, |scene| change(scene, WhichSet::Filter, SetChange::All)),
        case("from some to others", some, |scene| {
            change(scene, WhichSet::Filter, SetChange::Replace(scene.funcs(|n| n % 2 == 0)));
        }),
        case("some more", some, |scene| {
            change(scene, WhichSet::Filter, SetChange::Add(scene.funcs(|n| n % 2 == 0)));
        }),
        case("some less", some, |scene| {
            change(scene, WhichSet::Filter, SetChange::Remove(scene.funcs(|n| n < 2)));
        }),
        case("all but some", register_both, |scene| {
            change(scene, WhichSet::Filter, SetChange::Remove(scene.funcs(|n| n < 2)));
        }),
        case("from some to none", some, |scene| change(scene, WhichSet::Filter, SetChange::Clear)),
        regs(case("some left out", register_both, |scene| {
            change(scene, WhichSet::Notrace, SetChange::Add(scene.funcs(|n| n < 2)));
        })),
        case("all left out", register_both, |scene| change(scene, WhichSet::Notrace, SetChange::All)),
        case(
            "none left out any more",
            |scene| {
                register_both(scene);
                change(scene, WhichSet::Notrace, SetChange::All);
            },
            |scene| change(scene, WhichSet::Notrace, SetChange::Clear),
        ),
        none(Case {
            flags: OpsFlags::IPMODIFY,
            ..case("a change that is refused", ip_modify, |scene| {
                let first = scene.funcs(|n| n == 0);
                let refused = Err(Error::IpModifyConflict { func: first[0] });
                assert_eq!(
                    scene.engine.change_ops(scene.ops, WhichSet::Filter, SetChange::Add(first)),
                    refused
                );
            })
        }),
        none(Case {
            flags: OpsFlags::IPMODIFY,
            ..case("a user that is refused", ip_modify_later, |scene| {
                let refused = Err(Error::IpModifyConflict { func: scene.funcs(|n| n == 0)[0] });
                assert_eq!(scene.engine.register_ops(scene.ops), refused);
            })
        }),
        case("a module comes", register_both, |scene| {
            add(scene.engine, scene.module()).map(|_| ()).expect("a good module");
        }),
        case("a module goes", with_module, |scene| {
            done(scene.engine.remove_module(scene.module.expect("loaded before")));
        }),
        Case {
            serves: false,
            ..case("the switch goes off", register_both, |scene| done(scene.engine.set_enabled(false)))
        },
        Case {
            serves: false,
            ..case("the switch goes on", switched_off, |scene| done(scene.engine.set_enabled(true)))
        },
    ]
}

fn some<T: Runs>(scene: &mut Scene<T>) {
    register_both(scene);
    change(scene, WhichSet::Filter, SetChange::Replace(scene.funcs(|n| n % 2 == 1)));
}

/// Another user that changes where the first function goes on.
fn conflict<T: Runs>(scene: &Scene<T>) {
    let filter = Filter::only(scene.funcs(|n| n == 0));
    done(scene.engine.register_ops(ops::<T>(3, OpsFlags::IPMODIFY, filter)));
}

fn ip_modify<T: Runs>(scene: &mut Scene<T>) {
    some(scene);
    conflict(scene);
}

fn ip_modify_later<T: Runs>(scene: &mut Scene<T>) {
    conflict(scene);
    done(scene.engine.change_ops(scene.ops, WhichSet::Filter, SetChange::Add(scene.funcs(|n| n < 2))));
    done(scene.engine.register_graph(scene.graph));
}

fn with_module<T: Runs>(scene: &mut Scene<T>) {
    register_both(scene);
    scene.module = Some(load(scene.engine, scene.module()).expect("a good module").0);
}

fn switched_off<T: Runs>(scene: &mut Scene<T>) {
    register_both(scene);
    done(scene.engine.set_enabled(false));
}

/// How often each user was told of each function, asked of a scene that stands still.
fn still<T: Runs>(scene: &Scene<T>) -> Vec<Told> {
    scene.cpu.run_all(&scene.loadable.kernel)
}

fn count(told: &[Told], what: What, user: usize, function: &Function) -> usize {
    told.iter().filter(|there| **there == (what, user, function.addr)).count()
}

/// In an interrupt, every function is called once, and returns.
fn interrupt<T: Runs>(scene: &Scene<T>) -> Vec<Told> {
    let outer = kernel::with(|kernel| kernel.context.replace(Context::Irq));
    let told = scene.cpu.run_all(&scene.loadable.kernel);
    kernel::with(|kernel| kernel.context = outer);
    told
}

fn check_step(case: &str, step: usize, serves: bool, image: &Image, sides: &[Vec<Told>; 2], then: &[Told]) {
    for function in image.traceable() {
        for (what, user) in (0..3)
            .chain([OPS, GRAPH])
            .flat_map(|user| [(What::Entry, user), (What::GraphEntry, user), (What::Return, user)])
        {
            let [before, after] = [0, 1].map(|side| count(&sides[side], what, user, function));
            let there = count(then, what, user, function);
            assert!(
                there <= 1 && there <= before.max(after),
                "{case}, step {step}: user {user} was told {there} times of {what:?} of {:#x}",
                function.addr
            );
            if before == 1 && after == 1 && (serves || user >= OPS) || serves && user < 3 && before == 1 {
                assert_eq!(
                    there, 1,
                    "{case}, step {step}: user {user} missed {what:?} of {:#x}",
                    function.addr
                );
            }
        }
    }
}

fn at_every_step_of_a_change_who_stays_misses_and_doubles_no_call<T: Runs>() {
    for case in cases::<T>().into_iter().step_by(CASE_STRIDE) {
        let mut steps = 0;
        for step in (0..).step_by(STRIDE) {
            let mut scene = Scene::<T>::new(case.flags, case.filter);
            (case.before)(&mut scene);
            let image = &scene.loadable.kernel;
            let before = still(&scene);
            let old: Vec<Call> = image.traceable().map(|function| scene.task.call(image, function)).collect();
            told();
            let (mut meanwhile, mut ended, mut begun) = (Vec::new(), Vec::new(), Vec::new());
            let mut new = Vec::new();
            let ((), came) = with_interrupt_at(
                step,
                || {
                    meanwhile = interrupt(&scene);
                    // The task runs on: its calls end, and it makes others.
                    old.iter().rev().for_each(|call| scene.task.finish(*call));
                    ended = told();
                    new = image.traceable().map(|function| scene.task.call(image, function)).collect();
                    begun = told();
                },
                || (case.run)(&scene),
            );
            if !came {
                break;
            }
            steps += 1;
            told();
            new.iter().rev().for_each(|call| scene.task.finish(*call));
            let left = told();
            let sides = [before, still(&scene)];
            check_step(case.name, step, case.serves, image, &sides, &meanwhile);
            check_calls(case.name, step, case.serves, &scene, &sides, [&ended, &begun, &left]);
            assert_eq!(scene.task.task.stats().abandoned, 0);
        }
        assert!(steps > 0, "{}: no interrupt came", case.name);
    }
}

/// Calls that were under way during the step, and calls that began in it and ended behind the operation.
fn check_calls<T: Runs>(
    case: &str,
    step: usize,
    serves: bool,
    scene: &Scene<T>,
    [before, after]: &[Vec<Told>; 2],
    [ended, begun, left]: [&Vec<Told>; 3],
) {
    for function in scene.loadable.kernel.traceable() {
        for user in [1, GRAPH] {
            let wanted = [before, after].map(|side| count(side, What::GraphEntry, user, function));
            let told = [
                count(ended, What::Return, user, function),
                count(begun, What::GraphEntry, user, function),
                count(left, What::Return, user, function),
            ];
            let name =
                std::format!("{case}, step {step}: user {user}, {:#x}: {wanted:?} {told:?}", function.addr);
            assert!(told[0] <= wanted[0], "a return without an entry: {name}");
            assert!(told[2] <= told[1] && told[1] <= 1, "a return without an entry: {name}");
            if wanted == [1, 1] && serves {
                assert_eq!(told, [1, 1, 1], "{name}");
            }
            if user == 1 && serves {
                let stays = usize::from(scene.stay[1].wants(FuncAddr::new(function.addr)));
                assert_eq!((wanted, told), ([stays; 2], [stays; 3]), "{name}");
            }
        }
    }
}

/// A user is there before the text leads to it: who comes through a site that calls a trampoline finds it, and with the
/// registers it needs.
fn who_comes_through_a_patched_site_finds_its_user<T: Runs>() {
    for (flags, saved) in [(OpsFlags::empty(), Saved::Args), (OpsFlags::SAVE_REGS, Saved::Regs)] {
        for step in (0..).step_by(STRIDE) {
            let image = Image::new::<T>(SITES, &mut Random::new(3));
            let engine = image.start::<T>();
            let cpu = Cpu::new(engine);
            let user = ops::<T>(0, flags, Filter::ALL);
            let (done, came) = with_interrupt_at(
                step,
                || {
                    for function in image.traceable() {
                        let there = cpu.trampoline(&image, function);
                        cpu.run(&image, function);
                        let should: &[Told] = &[(What::Entry, 0, function.addr)];
                        assert_eq!(told(), if there.is_some() { should } else { &[] }, "step {step}");
                        assert!(there.is_none_or(|there| there == saved));
                    }
                },
                || engine.register_ops(user),
            );
            assert_eq!(done, Ok(()));
            if !came {
                assert!(step > SITES);
                break;
            }
        }
    }
}

for_plain_sites! {
    who_comes_through_a_patched_site_finds_its_user
    at_every_step_of_a_change_who_stays_misses_and_doubles_no_call
}
