//! Words at random, and modules that come and go, against a plain model: after each step every set is what the words say, the text
//! is what the sets demand, and what is read of a set makes the same set of another.

use std::collections::BTreeSet;
use std::string::{String, ToString};
use std::vec::Vec;

use super::world::{MODULES, Row, World, user};
use crate::engine::WhichSet;
use crate::engine::image::{Target, for_both_machines};
use crate::machine::Machine;
use crate::ops::{Ops, OpsFlags};
use crate::site::Flavor;
use crate::testing::{Random, kernel, storm};
use crate::words::{MAX_WAITING, Mode};

/// A set, as somebody would write it down.
#[derive(Clone, Debug, Default, PartialEq)]
struct Known {
    everything: bool,
    funcs: BTreeSet<usize>,
    waiting: Vec<Written>,
}

/// What a word is about.
#[derive(Clone, Debug, PartialEq)]
enum Written {
    /// A name, or the beginning of one and a star; in a module, or `:mod:` one.
    Name {
        name: String,
        glob: bool,
        module: Option<usize>,
        waits: bool,
        copy: Option<usize>,
    },
    Index(usize),
    Star,
    Nonsense(&'static str),
}

impl Written {
    fn text(&self) -> String {
        match self {
            Self::Name { name, glob, module, waits, copy } => {
                let star = if *glob { "*" } else { "" };
                let copy = copy.map_or(String::new(), |copy| std::format!("#{copy}"));
                match (module, waits) {
                    (Some(module), true) => std::format!("{name}{star}{copy}:mod:{}", MODULES[*module]),
                    (Some(module), false) => std::format!("{}:{name}{star}{copy}", MODULES[*module]),
                    (None, _) => std::format!("{name}{star}{copy}"),
                }
            }
            Self::Index(index) => index.to_string(),
            Self::Star => "*".to_string(),
            Self::Nonsense(text) => text.to_string(),
        }
    }

    /// The functions, if there are any and they are meant; `Err` if not; `Ok(None)` if the module is not there.
    fn functions(&self, table: &[Row]) -> Result<Option<Vec<usize>>, ()> {
        let Self::Name { name, glob, module, waits, copy } = self else {
            let Self::Index(index) = self else { return Err(()) };
            return table.get(index - 1).map(|row| Some(vec![row.addr])).ok_or(());
        };
        let there: Vec<&Row> =
            table.iter().filter(|row| module.is_none_or(|m| row.module == Some(m))).collect();
        if there.is_empty() {
            return if *waits { Ok(None) } else { Err(()) };
        }
        let named = |row: &&&Row| if *glob { row.name.starts_with(name) } else { row.name == name };
        let mut addrs: Vec<usize> = there.iter().filter(named).map(|row| row.addr).collect();
        addrs.dedup();
        match copy {
            Some(copy) => addrs.get(copy - 1).map(|addr| Some(vec![*addr])).ok_or(()),
            None if addrs.is_empty() || addrs.len() > 1 && !glob => Err(()),
            None => Ok(Some(addrs)),
        }
    }
}

fn word(names: &[&str], random: &mut Random) -> Written {
    match random.below(16) {
        0 => Written::Star,
        1 => Written::Index(random.between(1, 25)),
        2 if random.one_in(4) => {
            Written::Nonsense(random.pick::<&str>(&["a##", "x:traceoff", "!!y", "_z@a", "zz"]))
        }
        _ => {
            let name = random.pick(names).split('|').next().unwrap_or("");
            let glob = random.one_in(3);
            let name = if glob { &name[..random.between(1, name.len())] } else { name };
            let module = random.one_in(2).then(|| random.below(2));
            let waits = module.is_some() && random.one_in(2);
            let copy = random.one_in(6).then(|| random.between(1, 3));
            Written::Name { name: name.to_string(), glob, module, waits, copy }
        }
    }
}

/// What a text makes of a set, if it is taken.
fn written(
    words: &[(bool, Written)],
    mode: Mode,
    which: WhichSet,
    old: &Known,
    table: &[Row],
    others: &[Written],
) -> Option<Known> {
    let mut set = if mode == Mode::Replace { Known::default() } else { old.clone() };
    let mut gives_way = set.everything && which == WhichSet::Filter;
    let all = || table.iter().map(|row| row.addr).collect();
    for (remove, word) in words {
        if *word == Written::Star {
            (set.everything, gives_way) = (!remove, false);
            set.funcs.clear();
            continue;
        }
        let functions = word.functions(table);
        if *remove {
            let waiting = set.waiting.len();
            if matches!(word, Written::Name { waits: true, .. }) {
                set.waiting.retain(|there| there != word);
            }
            let forgotten = set.waiting.len() < waiting;
            if set.everything {
                (set.everything, set.funcs, gives_way) = (false, all(), false);
            }
            match functions {
                Ok(Some(functions)) => set.funcs.retain(|func| !functions.contains(func)),
                _ if forgotten => {}
                _ => return None,
            }
            continue;
        }
        let waits = old.waiting.contains(word) || others.contains(word);
        let functions = functions.or(if waits { Ok(None) } else { Err(()) }).ok()?;
        if gives_way {
            (set.everything, gives_way) = (false, false);
            set.funcs.clear();
        }
        let waits = waits || functions.is_none();
        if !set.everything {
            set.funcs.extend(functions.unwrap_or_default());
        }
        if waits && !set.waiting.contains(word) {
            if others.len() + set.waiting.len() == MAX_WAITING {
                return None;
            }
            set.waiting.push(word.clone());
        }
    }
    Some(set)
}

struct Player<T: Target> {
    ops: &'static Ops<<T as Machine>::Regs>,
    flavor: Flavor,
    sets: [Known; 2],
}

const SETS: [WhichSet; 2] = [WhichSet::Filter, WhichSet::Notrace];

fn check<T: Target>(world: &World<T>, players: &[Player<T>]) {
    let table = world.table();
    for player in players {
        for (which, known) in SETS.into_iter().zip(&player.sets) {
            let set = (player.ops, which);
            let addrs = world.addrs(set).map(BTreeSet::from_iter);
            let expected = (!known.everything).then(|| known.funcs.clone());
            assert_eq!(addrs, expected, "{which:?}");
            let read = world.read(set);
            let mut waiting: Vec<String> =
                read.lines().filter(|line| line.contains(":mod:")).map(String::from).collect();
            let mut expected: Vec<String> = known.waiting.iter().map(Written::text).collect();
            waiting.sort();
            expected.sort();
            assert_eq!(waiting, expected, "{which:?}");
        }
    }
    let needed = |addr: usize| {
        let loaded = table.iter().any(|row| row.addr == addr);
        let wants = |player: &&Player<T>| {
            let [include, exclude] =
                player.sets.each_ref().map(|set| set.everything || set.funcs.contains(&addr));
            include && !exclude
        };
        let wanting = players.iter().filter(wants).filter(|_| loaded);
        wanting.map(|player| player.flavor).max().unwrap_or(Flavor::Off)
    };
    let is_there = |addr: usize| table.iter().any(|row| row.addr == addr);
    let text = kernel::text();
    for function in world.image.traceable() {
        let start = function.site - world.image.base;
        let should = match is_there(function.addr) {
            true => world.image.sled::<T>(function, needed(function.addr)),
            false => function.sled.clone(),
        };
        assert_eq!(text[start..start + should.len()], should, "text of {:#x}", function.addr);
    }
}

fn sets_are_what_the_words_say<T: Target>() {
    let kernel = ["aa", "ab|alias", "b", "dup", "dup", "c", "cc", "_RNvCshp5d4tyNz3J_1r3run", "d"];
    let modules: [&[&str]; 2] = [&["ea", "dup", "aa"], &["xa", "dup", "dup", "xb"]];
    let names = [&kernel[..], modules[0], modules[1]].concat();
    let (mut taken, mut refused, mut waited) = (0, 0, 0);
    storm(15, 1, |random| {
        let mut world = World::<T>::new(&kernel, modules, random);
        let mut players: Vec<Player<T>> =
            [(OpsFlags::empty(), Flavor::Args), (OpsFlags::SAVE_REGS, Flavor::Regs)]
                .into_iter()
                .map(|(flags, flavor)| Player { ops: user(&world, flags), flavor, sets: Default::default() })
                .collect();
        for _ in 0..if cfg!(miri) { 10 } else { 120 } {
            if random.one_in(5) {
                let module = random.below(2);
                if world.loaded[module].is_some() {
                    world.unload(module);
                    for set in players.iter_mut().flat_map(|player| &mut player.sets) {
                        let gone = |addr: &usize| {
                            world.rows.iter().any(|r| r.addr == *addr && r.module == Some(module))
                        };
                        set.funcs.retain(|addr| !gone(addr));
                    }
                } else {
                    let rows: Vec<Row> =
                        world.rows.iter().filter(|row| row.module == Some(module)).cloned().collect();
                    let loaded = world.load(module).expect("a good module");
                    let mut took = 0;
                    for set in players.iter_mut().flat_map(|player| &mut player.sets) {
                        for word in &set.waiting {
                            let Ok(Some(functions)) = word.functions(&rows) else { continue };
                            took += 1;
                            if !set.everything {
                                set.funcs.extend(functions);
                            }
                        }
                    }
                    assert_eq!(loaded.taken, took);
                    waited += took;
                }
            } else {
                let (who, which) = (random.below(2), random.below(2));
                let words: Vec<(bool, Written)> =
                    (0..random.between(0, 4)).map(|_| (random.one_in(4), word(&names, random))).collect();
                let mode = *random.pick(&[Mode::Replace, Mode::Append]);
                let text: Vec<String> = words
                    .iter()
                    .map(|(remove, word)| std::format!("{}{}", if *remove { "!" } else { "" }, word.text()))
                    .collect();
                let text = text.join(*random.pick(&[" ", "\n", "\t \n"]));
                let old = &players[who].sets[which];
                let mut others = Vec::new();
                for set in players.iter().flat_map(|player| &player.sets) {
                    if !core::ptr::eq(set, old) {
                        others.extend(set.waiting.iter().cloned());
                    }
                }
                let expected = written(&words, mode, SETS[which], old, &world.table(), &others);
                let done = world.write((players[who].ops, SETS[which]), &text, mode);
                assert_eq!(done.is_ok(), expected.is_some(), "{mode:?} {text:?}: {done:?}");
                match expected {
                    Some(set) => {
                        taken += 1;
                        players[who].sets[which] = set;
                    }
                    None => refused += 1,
                }
            }
            check(&world, &players);
        }
        // What is read makes the same set of another, and is read from that again.
        let other = user(&world, OpsFlags::empty());
        for player in &players {
            for which in SETS {
                let read = world.read((player.ops, which));
                assert_eq!(world.read_in_pieces((player.ops, which), 3, random), read);
                assert_eq!(world.write((other, which), &read, Mode::Replace), Ok(()), "{read}");
                assert_eq!(world.addrs((other, which)), world.addrs((player.ops, which)), "{read}");
                assert_eq!(world.write((player.ops, which), &read, Mode::Replace), Ok(()), "{read}");
                assert_eq!(world.read((player.ops, which)), read);
            }
        }
        check(&world, &players);
    });
    std::println!("{taken} texts taken, {refused} refused, {waited} words waited for their module");
    assert!(cfg!(miri) || taken > 300 && refused > 300 && waited > 20);
}

for_both_machines! { sets_are_what_the_words_say }
