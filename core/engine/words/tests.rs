//! What words do to sets in a small kernel with two modules, what they leave alone, and how sets and lists read.

use std::string::{String, ToString};
use std::vec::Vec;

use super::world::{FILES, MODULES, Row, World, file_number, pieces, user};
use crate::addr::FuncAddr;
use crate::engine::image::{Target, for_both_machines};
use crate::engine::{Error, SetChange, WhichSet};
use crate::filter::Filter;
use crate::filter_text::ParseError;
use crate::graph::GraphOps;
use crate::graph::world::user as graph_user;
use crate::ops::{Ops, OpsFlags};
use crate::select::SelectError;
use crate::testing::{Random, keep, kernel};
use crate::users::User;
use crate::words::{Cause, LONGEST_WAITING, List, MAX_WAITING, Mode, Place};

const RUN: &str = "_RNvCshp5d4tyNz3J_1r3run";
const HELPER_I32: &str = "_RINvCshp5d4tyNz3J_1r6helperlEB2_";
const HELPER_U32: &str = "_RINvCshp5d4tyNz3J_1r6helpermEB2_";
const GO: &str = "_RNvXCshp5d4tyNz3J_1rNtB2_1SNtB2_2Tr2go";
const PICK: &str = "_ZN6kernel5sched4pick17h0123456789abcdefE";
const PICK_TOO: &str = "_ZN6kernel5sched4pick17hfedcba9876543210E";
const CLOSURE: &str =
    "_ZN3app4main28_$u7b$$u7b$closure$u7d$$u7d$17h0123456789abcdefE.llvm.10317035631373510462";

const KERNEL: &[&str] = &[
    "vfs_read",
    "vfs_write",
    "id_show",
    "id_show",
    "new_name|old_name",
    RUN,
    HELPER_I32,
    HELPER_U32,
    GO,
    PICK,
    PICK_TOO,
    CLOSURE,
    "odd name:it is",
    "12",
    "promoted.llvm.123",
    "traceon",
];
const EXT4: &[&str] = &["ext4_read", "id_show", "vfs_read"];
const XFS: &[&str] = &["xfs_read", "id_show", "id_show"];

fn world<T: Target>() -> World<T> {
    World::new(KERNEL, [EXT4, XFS], &mut Random::new(5))
}

fn words_take_what_they_name<T: Target>() {
    let mut world = world::<T>();
    world.load(0).unwrap();
    let ops = user(&world, OpsFlags::empty());
    let set = (ops, WhichSet::Filter);
    for (text, expected) in [
        ("vmlinux:vfs_read", &["vfs_read"][..]),
        ("vfs_*", &["vfs_read", "vfs_write", "vfs_read"]),
        ("vfs_write\n id_show#2\tid_show#3", &["vfs_write", "id_show", "id_show"]),
        ("ext4:id_show", &["id_show"]),
        ("id_show:mod:ext4", &["id_show"]),
        ("*:mod:ext4", EXT4),
        ("old_name", &["new_name"]),
        ("1 2", &["vfs_read", "vfs_write"]),
        ("6", &["new_name"]),
        ("7", &[RUN]),
        ("r::run kernel::*", &[RUN, PICK, PICK_TOO]),
        ("r::helper#* !r::helper::<u32>", &[HELPER_I32]),
        ("r::S::go", &[GO]),
        ("vfs_* !vfs_write", &["vfs_read", "vfs_read"]),
        ("vfs_* !*", &[]),
        ("* !*:mod:! !ext4_read", &["id_show", "vfs_read"]),
        ("", &[]),
    ] {
        assert_eq!(world.write(set, text, Mode::Replace), Ok(()), "{text}");
        assert_eq!(
            world.members(set).as_deref(),
            Some(expected).map(|names| names.iter().map(|n| n.to_string()).collect::<Vec<_>>()).as_deref(),
            "{text}"
        );
        assert_eq!(world.engine.stats().patched, expected.len(), "{text}");
        let mut room = [FuncAddr::new(0); 32];
        let listed = world.engine.functions_of_words(text, &mut room).map(<[FuncAddr]>::to_vec);
        let mut members: Vec<_> = world.addrs(set).unwrap().into_iter().map(FuncAddr::new).collect();
        members.sort_unstable();
        assert_eq!(listed, Ok(members), "{text}");
        if let Some(less) = expected.len().checked_sub(1) {
            let refused = world.engine.functions_of_words(text, &mut room[..less]).map(<[FuncAddr]>::len);
            let cause = refused.expect_err("there is one more").cause;
            assert!(matches!(cause, Cause::NoRoom { room, more: 1.. } if room == less), "{text}: {cause}");
        }
    }
    for (text, column, cause) in [
        ("vfs_write f:mod:xfs", 10, Cause::NotThere),
        ("vfs_write:traceon", 10, Cause::Command),
        ("1 vfs_nothing", 2, Cause::Select(SelectError::NoFunction { column: 2 })),
    ] {
        let mut room = [FuncAddr::new(0); 32];
        let refused = world.engine.functions_of_words(text, &mut room).map(<[FuncAddr]>::len);
        assert_eq!(refused.map_err(|error| (error.column, error.cause)), Err((column, cause)), "{text}");
    }
    assert_eq!(world.write(set, "ext4_read *", Mode::Replace), Ok(()));
    assert_eq!(world.members(set), None);
    assert_eq!(world.write(set, "!vfs_*", Mode::Append), Ok(()));
    assert_eq!(world.members(set).map(|names| names.len()), Some(KERNEL.len() + EXT4.len() - 3));
}

/// As with `set_ftrace_filter`: the first function that is named takes the place of all.
fn a_filter_that_is_everything_gives_way_to_what_is_named<T: Target>() {
    let world = world::<T>();
    let ops = user(&world, OpsFlags::empty());
    let (filter, notrace) = ((ops, WhichSet::Filter), (ops, WhichSet::Notrace));
    assert_eq!(world.write(filter, "*", Mode::Append), Ok(()));
    assert_eq!(world.write(filter, "vfs_read", Mode::Append), Ok(()));
    assert_eq!(world.members(filter).unwrap(), ["vfs_read"]);
    assert_eq!(world.write(filter, "vfs_write", Mode::Append), Ok(()));
    assert_eq!(world.members(filter).unwrap(), ["vfs_read", "vfs_write"]);
    assert_eq!(world.write(filter, "!vfs_*", Mode::Append), Ok(()));
    assert_eq!(world.members(filter).unwrap(), [""; 0], "and nothing is not everything");
    assert_eq!(world.engine.stats().patched, 0);
    assert_eq!(world.write(filter, "*", Mode::Append), Ok(()));
    assert_eq!(world.write(filter, "f:mod:xfs", Mode::Append), Ok(()));
    assert_eq!(world.read(filter), "f:mod:xfs\n");
    assert_eq!(world.write(notrace, "*", Mode::Append), Ok(()));
    assert_eq!(world.write(notrace, "vfs_read", Mode::Append), Ok(()));
    assert_eq!(world.members(notrace), None, "everything and this is everything");
}

fn refused_words_leave_everything_as_it_was<T: Target>() {
    let mut world = world::<T>();
    world.load(0).unwrap();
    let set = (user(&world, OpsFlags::empty()), WhichSet::Filter);
    assert_eq!(world.write(set, "vfs_write a:mod:xfs", Mode::Replace), Ok(()));
    let before = (world.read(set), kernel::text());
    let long = std::format!("{}:mod:xfs", "f".repeat(LONGEST_WAITING));
    for (text, column, cause) in [
        ("vfs_nothing", 0, Cause::Select(SelectError::NoFunction { column: 0 })),
        ("vfs_write id_show", 10, Cause::Select(SelectError::Ambiguous { column: 10, count: 3 })),
        ("r::run\n!r::helper", 8, Cause::Select(SelectError::Ambiguous { column: 8, count: 2 })),
        ("1 !vfs_x* 2", 3, Cause::Select(SelectError::NothingMatches { column: 3 })),
        ("1 999", 2, Cause::Select(SelectError::IndexBeyondEnd { column: 2, index: 999, len: 20 })),
        ("id_show#4", 8, Cause::Select(SelectError::CopyBeyondEnd { column: 8, copy: 4, count: 3 })),
        ("xfs:xfs_read", 0, Cause::Select(SelectError::NoModule { column: 0 })),
        ("f:mod:!xfs", 0, Cause::Select(SelectError::NoFunction { column: 0 })),
        ("vfs_read@fs.c", 9, Cause::Select(SelectError::NoFile { column: 9 })),
        ("vfs_* !!x", 7, Cause::Parse(ParseError::DoubleNot { column: 7 })),
        ("* x#", 4, Cause::Parse(ParseError::BadCopy { column: 4 })),
        ("vfs_* vfs_write:traceoff:3", 16, Cause::Command),
        ("b:mod:xfs !c:mod:xfs", 10, Cause::NotWaiting),
        (&long, 0, Cause::WaitingTooLong { len: LONGEST_WAITING + 8, max: LONGEST_WAITING }),
    ] {
        for mode in [Mode::Append, Mode::Replace] {
            let refused = world.write(set, text, mode).expect_err(text);
            assert_eq!((refused.column, refused.cause), (column, cause), "{text}");
            assert!(
                refused.start <= column && column <= refused.end && !refused.word(text).is_empty(),
                "{text}"
            );
            assert!(!refused.to_string().is_empty());
            assert_eq!((world.read(set), kernel::text()), before, "{text}");
        }
    }
    let fresh = crate::testing::keep(crate::ops::Ops::new(|_, _, _, _| {}, OpsFlags::empty(), Filter::NONE));
    assert!(world.write((fresh, WhichSet::Filter), "vfs_nothing", Mode::Replace).is_err());
    assert_eq!(world.engine.unregister_ops(fresh), Err(Error::NotRegistered), "no slot was kept");
    assert_eq!(world.write((fresh, WhichSet::Filter), "vfs_*", Mode::Replace), Ok(()));
    assert_eq!(world.engine.stats().patched, 1, "a user that is not registered patches nothing");
    assert_eq!(world.engine.register_ops(fresh), Ok(()));
    assert_eq!(world.engine.stats().patched, 3);
}

fn what_the_engine_refuses_is_told_of_the_word<T: Target>() {
    let world = world::<T>();
    let (one, other) = (user(&world, OpsFlags::IPMODIFY), user(&world, OpsFlags::IPMODIFY));
    assert_eq!(world.write((one, WhichSet::Filter), "vfs_read", Mode::Append), Ok(()));
    let func = crate::addr::FuncAddr::new(world.rows[0].addr);
    for (which, text, column, error) in [
        (WhichSet::Filter, "vfs_write vfs_* r::run", 10, Error::IpModifyConflict { func }),
        (WhichSet::Filter, "vfs_write *", 10, Error::IpModifyNeedsFilter),
        (WhichSet::Notrace, "vfs_write", 0, Error::IpModifyNeedsFilter),
        (WhichSet::Notrace, "f:mod:xfs", 0, Error::IpModifyNeedsFilter),
    ] {
        let refused = world.write((other, which), text, Mode::Append).expect_err(text);
        assert_eq!((refused.column, refused.cause), (column, Cause::Engine(error)), "{text}");
        assert_eq!(world.members((other, which)).unwrap(), [""; 0]);
    }
    assert_eq!(world.engine.stats().patched, 1);
    kernel::poke(world.image.traceable().nth(1).unwrap().site, &[0x12]);
    let refused = world.write((one, WhichSet::Filter), "vfs_write", Mode::Append).expect_err("changed text");
    assert!(matches!(refused.cause, Cause::Engine(Error::Surprise { .. })));
    let refused =
        world.write((one, WhichSet::Filter), "vfs_write", Mode::Append).expect_err("it has stopped");
    assert_eq!(refused.cause, Cause::Engine(Error::Stopped));
}

fn an_ambiguous_name_lists_its_candidates<T: Target>() {
    let mut world = world::<T>();
    world.load(0).unwrap();
    let ops = user(&world, OpsFlags::empty());
    let text = "vfs_write !id_show";
    let refused = world.write((ops, WhichSet::Filter), text, Mode::Append).expect_err(text);
    let mut listed = Vec::new();
    let each = |candidate: crate::select::Candidate<'_>| listed.push(candidate.to_string());
    assert_eq!(world.engine.word_candidates(refused.word(text), each), Ok(()));
    let at = |n: usize| world.table().iter().filter(|row| row.name == "id_show").nth(n).unwrap().addr;
    let file = |n: usize| FILES[file_number(at(n))];
    let expected = [
        std::format!("#1 id_show {} {:#x}", file(0), at(0)),
        std::format!("#2 id_show {} {:#x}", file(1), at(1)),
        std::format!("#3 id_show [ext4] {} {:#x}", file(2), at(2)),
    ];
    assert_eq!(listed, expected);
}

/// The self-test `func_mod_trace`.
fn words_wait_for_their_module<T: Target>() {
    let mut world = world::<T>();
    let ops = user(&world, OpsFlags::empty());
    let (filter, notrace) = ((ops, WhichSet::Filter), (ops, WhichSet::Notrace));
    assert_eq!(world.write(filter, "vfs_write xfs_read:mod:xfs *:mod:ext?", Mode::Replace), Ok(()));
    assert_eq!(world.write(notrace, "id_show:mod:ext4 id_show:mod:xfs", Mode::Replace), Ok(()));
    assert_eq!(world.read(filter), "vfs_write\nxfs_read:mod:xfs\n*:mod:ext?\n");
    let patched = |world: &World<T>| world.engine.stats().patched;
    assert_eq!(patched(&world), 1);
    for _ in 0..2 {
        let loaded = world.load(1).unwrap();
        assert_eq!((loaded.taken, loaded.refused), (1, 1), "`id_show` is ambiguous in xfs");
        assert_eq!(world.members(filter).unwrap(), ["vfs_write", "xfs_read"]);
        assert_eq!(patched(&world), 2);
        let loaded = world.load(0).unwrap();
        assert_eq!((loaded.taken, loaded.refused), (2, 0));
        assert_eq!(world.members(filter).unwrap().len(), 5);
        assert_eq!(patched(&world), 4, "`id_show` is left out");
        world.unload(1);
        world.unload(0);
        assert_eq!((world.members(filter).unwrap(), patched(&world)), (vec!["vfs_write".to_string()], 1));
        assert_eq!(world.read(filter), "vfs_write\nxfs_read:mod:xfs\n*:mod:ext?\n");
        assert_eq!(world.read(notrace), "id_show:mod:ext4\nid_show:mod:xfs\n");
    }
    assert_eq!(world.write(filter, "!xfs_read:mod:xfs !*:mod:ext?", Mode::Append), Ok(()));
    assert_eq!(world.read(filter), "vfs_write\n");
    assert_eq!(world.engine.change_ops(ops, WhichSet::Notrace, SetChange::Clear), Ok(()));
    world.load(0).unwrap();
    assert_eq!((patched(&world), world.read(notrace)), (1, "#### no functions disabled ####\n".to_string()));
    // Taken back while the module is there: its functions go, and do not come again.
    assert_eq!(world.write(filter, "xfs_read:mod:xfs", Mode::Append), Ok(()));
    world.load(1).unwrap();
    assert_eq!(world.members(filter).unwrap(), ["vfs_write", "xfs_read"]);
    assert_eq!(world.write(filter, "!xfs_read:mod:xfs", Mode::Append), Ok(()));
    assert_eq!(world.members(filter).unwrap(), ["vfs_write"]);
    world.unload(1);
    assert_eq!(world.load(1).unwrap().taken, 0);
    world.unload(1);
    // Who leaves waits no more.
    assert_eq!(world.write(filter, "xfs_read:mod:xfs", Mode::Append), Ok(()));
    assert_eq!(world.engine.unregister_ops(ops), Ok(()));
    let _heir = user(&world, OpsFlags::empty());
    assert_eq!(world.load(1).unwrap().taken, 0);
}

/// What a waiting word asks for can be refused when its module comes: then the module does not come.
fn a_module_whose_words_exclude_each_other_is_refused<T: Target>() {
    let mut world = world::<T>();
    let users = [OpsFlags::IPMODIFY; 2].map(|flags| user(&world, flags));
    for ops in users {
        assert_eq!(world.write((ops, WhichSet::Filter), "ext4_read:mod:ext4", Mode::Append), Ok(()));
    }
    let available = world.list(List::Available);
    let first = world.rows.iter().find(|row| row.name == "ext4_read").unwrap().addr;
    let conflict = Error::IpModifyConflict { func: crate::addr::FuncAddr::new(first) };
    assert_eq!(world.load(0), Err(conflict));
    assert_eq!(world.list(List::Available), available);
    assert_eq!(world.engine.stats().patched, 0);
    assert_eq!(world.load(1).map(|loaded| loaded.taken), Ok(0), "another one comes");
    assert_eq!(world.read((users[0], WhichSet::Filter)), "ext4_read:mod:ext4\n");
}

fn places_for_waiting_words_run_out_and_come_back<T: Target>() {
    let world = world::<T>();
    let set = (user(&world, OpsFlags::empty()), WhichSet::Filter);
    let word = |n: usize| std::format!("f{n}:mod:xfs ");
    let all: String = (0..MAX_WAITING).map(word).collect();
    assert_eq!(world.write(set, &all, Mode::Append), Ok(()));
    let before = world.read(set);
    let refused = world.write(set, "f0:mod:xfs f99:mod:xfs", Mode::Append).expect_err("full");
    assert_eq!((refused.column, refused.cause), (11, Cause::WaitingFull { max: MAX_WAITING }));
    assert_eq!(world.read(set), before);
    let others: String = (100..100 + MAX_WAITING).map(word).collect();
    assert_eq!(world.write(set, &others, Mode::Replace), Ok(()));
    assert_eq!(world.read(set), others.replace(' ', "\n"));
    assert_eq!(world.write(set, "!*:mod:xfs", Mode::Append), Ok(()));
    assert_eq!(world.read(set), "#### no functions enabled ####\n");
}

/// The self-test `func_set_ftrace_file`, and what was read is written to another set.
fn what_is_read_can_be_written<T: Target>() {
    let mut world = world::<T>();
    let mut random = Random::new(9);
    let (one, other) = (user(&world, OpsFlags::empty()), user(&world, OpsFlags::empty()));
    for round in 0..2 {
        for which in [WhichSet::Filter, WhichSet::Notrace] {
            let (from, to) = ((one, which), (other, which));
            for text in [
                "",
                "*",
                "id_show#*",
                "id_show#2",
                "?*",
                "* !vfs_write",
                "[0-9]* odd* *::*",
                "f:mod:none *:mod:none* vfs_write",
                "*:mod:ext4",
                "r::helper::<u32> r::S::go",
                "_ZN6kernel5sched4pick17hfedcba9876543210E",
                "old_name promoted",
                "id_show:mod:xfs f:mod:none",
            ] {
                assert_eq!(world.write(from, text, Mode::Replace), Ok(()), "{text}");
                let read = world.read(from);
                for longest in [1, 2, 100, 10_000] {
                    assert_eq!(world.read_in_pieces(from, longest, &mut random), read, "{text}, {longest}");
                }
                assert_eq!(world.write(to, &read, Mode::Replace), Ok(()), "{read}");
                assert_eq!(world.addrs(to), world.addrs(from), "{read}");
                assert_eq!(world.read(to), read);
            }
        }
        if round == 0 {
            world.load(0).unwrap();
            world.load(1).unwrap();
        }
    }
}

fn functions_are_read_by_the_names_that_people_use<T: Target>() {
    let mut world = world::<T>();
    let set = (user(&world, OpsFlags::empty()), WhichSet::Filter);
    assert_eq!(world.write(set, "*", Mode::Append), Ok(()));
    assert_eq!(world.read(set), "#### all functions enabled ####\n");
    assert_eq!(world.write(set, "?*", Mode::Replace), Ok(()));
    let (first, second) =
        ("_ZN6kernel5sched4pick17h0123456789abcdefE", "_ZN6kernel5sched4pick17hfedcba9876543210E");
    let expected = std::format!(
        "vfs_read\nvfs_write\nvmlinux:id_show#1\nvmlinux:id_show#2\nnew_name\nr::run\nr::helper::<i32>\nr::helper::<u32>\n\
         <r::S as r::Tr>::go\nvmlinux:{first}\nvmlinux:{second}\napp::main::{{{{closure}}}}\n14\n15\npromoted\ntraceon\n"
    );
    assert_eq!(world.read(set), expected);
    world.load(0).unwrap();
    world.load(1).unwrap();
    assert_eq!(world.write(set, "*:mod:", Mode::Append), Ok(()));
    let modules = "ext4:ext4_read\next4:id_show\next4:vfs_read\nxfs:xfs_read\nxfs:id_show#1\nxfs:id_show#2\n";
    // The name alone is not the kernel's any more.
    let expected = expected.replacen("vfs_read", "vmlinux:vfs_read", 1);
    assert_eq!(world.read(set), expected + modules);
}

fn a_line_that_was_begun_is_ended<T: Target>() {
    let mut world = world::<T>();
    let ops = user(&world, OpsFlags::empty());
    let set = (ops, WhichSet::Filter);
    world.load(0).unwrap();
    assert_eq!(world.write(set, "vfs_write ext4_read a:mod:xfs b:mod:xfs", Mode::Replace), Ok(()));
    let begin = |world: &World<T>, len: usize| {
        let mut place = Place::START;
        let mut bytes = vec![0; len];
        assert_eq!(world.engine.read_ops_words(ops, WhichSet::Filter, &mut place, &mut bytes), Ok(len));
        (String::from_utf8(bytes).unwrap(), place)
    };
    let end = |world: &World<T>, mut place: Place| {
        let mut random = Random::new(1);
        pieces(100, &mut random, |bytes| {
            world.engine.read_ops_words(ops, WhichSet::Filter, &mut place, bytes).unwrap()
        })
    };
    let (text, place) = begin(&world, 4);
    assert_eq!(world.write(set, "!vfs_write", Mode::Append), Ok(()));
    assert_eq!(text + &end(&world, place), "vfs_write\next4:ext4_read\na:mod:xfs\nb:mod:xfs\n");
    let (text, place) = begin(&world, 8);
    let waiting = begin(&world, 18);
    world.unload(0);
    assert_eq!(
        text + &end(&world, place),
        "ext4:ext\na:mod:xfs\nb:mod:xfs\n",
        "it has gone, and the line ends"
    );
    assert_eq!(world.write(set, "!a:mod:xfs c:mod:xfs", Mode::Append), Ok(()));
    assert_eq!(waiting.0 + &end(&world, waiting.1), "ext4:ext4_read\na:m\nb:mod:xfs\nc:mod:xfs\n");
    let (text, place) = begin(&world, 9);
    assert_eq!(world.engine.unregister_ops(ops), Ok(()));
    let mut place = place;
    let gone = world.engine.read_ops_words(ops, WhichSet::Filter, &mut place, &mut [0; 10]);
    assert_eq!((gone, text.as_str()), (Err(Error::NotRegistered), "b:mod:xfs"));
}

fn lists_are_laid_out_as_those_of_ftrace<T: Target>() {
    let mut world = world::<T>();
    world.load(0).unwrap();
    let available = "vfs_read\nvfs_write\nid_show\nid_show\nnew_name\nold_name\nr::run\nr::helper::<i32>\nr::helper::<u32>\n\
                     <r::S as r::Tr>::go\nkernel::sched::pick\nkernel::sched::pick\napp::main::{{closure}}\nodd name:it is\n12\n\
                     promoted\ntraceon\next4_read [ext4]\nid_show [ext4]\nvfs_read [ext4]\n";
    assert_eq!(world.list(List::Available), available);
    let site =
        |world: &World<T>, addr: usize| world.image.functions.iter().find(|f| f.addr == addr).unwrap().site;
    let with_addrs: String = (available.lines().zip(world.table()))
        .map(|(line, row)| std::format!("{:x} {line}\n", site(&world, row.addr)))
        .collect();
    assert_eq!(world.list(List::AvailableAddrs), with_addrs);
    assert_eq!((world.list(List::Enabled), world.list(List::Touched)), (String::new(), String::new()));

    let plain = user(&world, OpsFlags::empty());
    let modify = user(&world, OpsFlags::IPMODIFY.union(OpsFlags::SAVE_REGS));
    let graph: &'static GraphOps<T::Regs> = graph_user(1, Filter::NONE);
    assert_eq!(world.engine.register_graph(graph), Ok(()));
    assert_eq!(world.write((plain, WhichSet::Filter), "new_name ext4:id_show", Mode::Append), Ok(()));
    assert_eq!(world.write((modify, WhichSet::Filter), "new_name", Mode::Append), Ok(()));
    assert_eq!(world.engine.write_graph_words(graph, WhichSet::Filter, "ext4:*", Mode::Append), Ok(()));
    let (args, regs) = (world.image.pair::<T>().args, world.image.pair::<T>().regs);
    let callback = |ops: &crate::ops::Ops<T::Regs>| (ops.func() as *const ()).addr();
    let (a, b) = (callback(plain), callback(modify));
    let (entry, ret) = graph.callbacks();
    let subops = std::format!(
        "\ttramp: {args:#x}\tsubops: {{ent:{:#x} ret:{:#x}}}",
        (entry as *const ()).addr(),
        (ret as *const ()).addr()
    );
    let expected = std::format!(
        "new_name (2) R I     M \ttramp: {regs:#x} ({a:#x}) ->{a:#x}\ttramp: {regs:#x} ({b:#x}) ->{b:#x}\n\
         ext4_read [ext4] (1)           {subops}\n\
         id_show [ext4] (2)           \ttramp: {args:#x} ({a:#x}) ->{a:#x}{subops}\n\
         vfs_read [ext4] (1)           {subops}\n"
    );
    assert_eq!(world.list(List::Enabled), expected);
    assert_eq!(world.list(List::Touched), expected);
    assert_eq!(world.engine.unregister_graph(graph), Ok(()));
    assert_eq!(world.engine.set_enabled(false), Ok(()));
    assert_eq!(world.list(List::Enabled), "");
    let touched = "new_name (0)           \next4_read [ext4] (0)           \nid_show [ext4] (0)           \nvfs_read [ext4] (0)           \n";
    assert_eq!(world.list(List::Touched), touched);

    let mut random = Random::new(3);
    for list in [List::Available, List::AvailableAddrs, List::Enabled, List::Touched] {
        for longest in [1, 7, 100, 10_000] {
            let mut place = Place::START;
            let read = pieces(longest, &mut random, |bytes| world.engine.read_list(list, &mut place, bytes));
            assert_eq!(read, world.list(list), "{list:?} {longest}");
            assert!(place.is_end());
        }
    }
}

/// The self-test `fgraph-multi-filter`: the counts of `enabled_functions` for filters and notrace sets of two graph users.
fn enabled_functions_are_counted_for_two_graph_users<T: Target>() {
    let world = world::<T>();
    let (one, other): (&'static GraphOps<T::Regs>, &'static GraphOps<T::Regs>) =
        (graph_user(1, Filter::ALL), graph_user(2, Filter::ALL));
    let count = || world.list(List::Enabled).lines().count();
    let write = |ops, which, text| {
        assert_eq!(world.engine.write_graph_words(ops, which, text, Mode::Replace), Ok(()), "{text}")
    };
    write(one, WhichSet::Filter, "vfs_* id_show#*");
    write(one, WhichSet::Notrace, "vfs_write");
    write(other, WhichSet::Filter, "r::* vfs_*");
    write(other, WhichSet::Notrace, "r::h*");
    assert_eq!(count(), 0);
    for (first, second) in [(one, other), (other, one)] {
        assert_eq!(world.engine.register_graph(first), Ok(()));
        let alone = count();
        assert_eq!(world.engine.register_graph(second), Ok(()));
        assert_eq!(count(), 3 + 4 - 1, "`vfs_read` is wanted twice");
        assert_eq!(world.engine.unregister_graph(second), Ok(()));
        assert_eq!(count(), alone);
        assert_eq!(world.engine.unregister_graph(first), Ok(()));
        assert_eq!(count(), 0);
        for (ops, filter, notrace) in [(one, "vfs_* id_show#*", "vfs_write"), (other, "r::* vfs_*", "r::h*")]
        {
            write(ops, WhichSet::Filter, filter);
            write(ops, WhichSet::Notrace, notrace);
        }
    }
    // Two notrace sets that are each other's complement: everything is wanted by one of the two.
    write(one, WhichSet::Filter, "*");
    write(other, WhichSet::Filter, "*");
    write(one, WhichSet::Notrace, "vfs_*");
    write(other, WhichSet::Notrace, "* !vfs_*");
    assert_eq!(world.engine.register_graph(one), Ok(()));
    assert_eq!(count(), KERNEL.len() - 2);
    assert_eq!(world.engine.register_graph(other), Ok(()));
    assert_eq!(count(), KERNEL.len());
    assert_eq!(world.engine.unregister_graph(one), Ok(()));
    assert_eq!(count(), 2);
}

/// The self-test `func-filter-glob`: each kind of glob takes what a search of the list finds.
fn globs_take_what_a_search_of_the_list_finds<T: Target>() {
    let mut world = world::<T>();
    world.load(0).unwrap();
    let set = (user(&world, OpsFlags::empty()), WhichSet::Filter);
    type Search = fn(&str) -> bool;
    let searches: [(&str, Search); 8] = [
        ("vfs_*", |name| name.starts_with("vfs_")),
        ("*_show", |name| name.ends_with("_show")),
        ("*d_*", |name| name.contains("d_")),
        ("v*e", |name| name.starts_with('v') && name.ends_with('e')),
        ("?fs_?ead", |name| name == "vfs_read"),
        ("[i-v][df]*", |name| {
            name.starts_with(|c| ('i'..='v').contains(&c))
                && matches!(name.as_bytes().get(1), Some(b'd' | b'f'))
        }),
        ("[!iv]*", |name| !name.starts_with(['i', 'v'])),
        ("*::*", |name| name.contains("::")),
    ];
    for (glob, finds) in searches {
        assert_eq!(world.write(set, glob, Mode::Replace), Ok(()), "{glob}");
        let available = world.list(List::Available);
        let mut rows: Vec<usize> = available
            .lines()
            .zip(world.table())
            .filter(|(line, row)| finds(line.split(" [").next().unwrap_or("")) || finds(row.name))
            .map(|(_, row)| row.addr)
            .collect();
        rows.dedup();
        assert_eq!(world.addrs(set), Some(rows), "{glob}");
        assert_eq!(world.read(set).lines().count(), world.list(List::Enabled).lines().count(), "{glob}");
    }
}

/// Without names everything is as it should be, only hard to read.
fn functions_without_names_are_known_by_their_lines<T: Target>() {
    let mut random = Random::new(2);
    let world = World::<T>::new(&["a"], [&["b"], &["c"]], &mut random);
    let set = (user(&world, OpsFlags::empty()), WhichSet::Filter);
    let entry = world.image.traceable().nth(1).unwrap().entry;
    let source = world.image.source_of(vec![entry], 0..0);
    // SAFETY: nothing executes this text, and tables live for ever.
    let (module, _) = unsafe { world.engine.add_module(source) }.unwrap();
    assert_eq!(world.write(set, "*", Mode::Append), Ok(()));
    assert_eq!(world.list(List::Available), std::format!("a\n{:#x} [unnamed]\n", world.rows[1].addr));
    assert_eq!(world.write(set, "2", Mode::Replace), Ok(()));
    assert_eq!(world.read(set), "2\n");
    assert_eq!(world.engine.remove_module(module), Ok(()));
    assert_eq!(world.read(set), "#### no functions enabled ####\n");
    assert_eq!(MODULES.len(), world.loaded.len());
}

fn files_tell_functions_apart<T: Target>() {
    let mut seen = [0; 2];
    for seed in 0..if cfg!(miri) { 2 } else { 20 } {
        let mut world = World::<T>::new(KERNEL, [EXT4, XFS], &mut Random::new(seed));
        world.load(1).unwrap();
        let set = (user(&world, OpsFlags::empty()), WhichSet::Filter);
        for (file, tails) in [
            (0, ["fs/one.c", "one.c", "*.c", "f?/*"]),
            (1, ["drivers/net/two.rs", "net/two.rs", "two.rs", "drivers/*"]),
        ] {
            for (name, tail) in tails.iter().flat_map(|tail| [("*", tail), ("id_show", tail)]) {
                let text = std::format!("{name}@{tail}#*");
                let is_meant = |row: &Row| {
                    file_number(row.addr) == file && (name == "*" || row.name.split('|').any(|n| n == name))
                };
                let mut expected: Vec<usize> =
                    world.table().into_iter().filter(is_meant).map(|row| row.addr).collect();
                expected.dedup();
                if expected.is_empty() {
                    let refused = world.write(set, &text, Mode::Replace).expect_err(&text);
                    assert!(matches!(refused.cause, Cause::Select(_)), "{text}");
                    continue;
                }
                seen[file] += 1;
                assert_eq!(world.write(set, &text, Mode::Replace), Ok(()), "{text}");
                assert_eq!(world.addrs(set), Some(expected), "{text}");
            }
        }
        for (text, column) in [("id_show@ne.c", 8), ("*@one", 2), ("*@two.rs/", 2)] {
            let refused = world.write(set, text, Mode::Replace).expect_err(text);
            assert_eq!(refused.cause, Cause::Select(SelectError::NoFile { column }), "{text}");
        }
    }
    assert!(seen.iter().all(|seen| *seen > 0), "{seen:?}");
}

fn a_user_adopts_anothers_sets_as_they_are_now<T: Target>() {
    let mut world = world::<T>();
    world.load(0).unwrap();
    let fresh =
        || -> &'static Ops<T::Regs> { keep(Ops::new(|_, _, _, _| {}, OpsFlags::empty(), Filter::NONE)) };
    let (keeper, other) = (fresh(), fresh());
    let [kept, kept_not] = [(keeper, WhichSet::Filter), (keeper, WhichSet::Notrace)];
    let [own, own_not] = [(other, WhichSet::Filter), (other, WhichSet::Notrace)];
    let adopt = |world: &World<T>| world.engine.adopt_sets(keeper, User::Entry(other));
    assert_eq!(world.write(kept, "vfs_* ext4_read", Mode::Replace), Ok(()));
    assert_eq!(world.write(kept_not, "vfs_write", Mode::Replace), Ok(()));
    // Before it is registered, and while it is: then its text follows.
    assert_eq!((adopt(&world), world.engine.register_ops(other)), (Ok(()), Ok(())));
    let patched = |world: &World<T>| world.engine.stats().patched;
    assert_eq!((world.addrs(own), world.addrs(own_not)), (world.addrs(kept), world.addrs(kept_not)));
    assert_eq!(patched(&world), 3);
    assert_eq!(world.write(kept, "traceon", Mode::Replace), Ok(()));
    assert_eq!(patched(&world), 3, "nobody adopted that");
    assert_eq!(adopt(&world), Ok(()));
    assert_eq!((world.members(own), patched(&world)), (Some(vec!["traceon".to_string()]), 1));
    assert_eq!(world.write(kept, "*", Mode::Replace), Ok(()));
    assert_eq!((adopt(&world), world.addrs(own)), (Ok(()), None));
    assert_eq!(world.addrs(kept), None, "the keeper keeps its own");
}

for_both_machines! {
    a_user_adopts_anothers_sets_as_they_are_now
    words_take_what_they_name
    a_filter_that_is_everything_gives_way_to_what_is_named
    refused_words_leave_everything_as_it_was
    what_the_engine_refuses_is_told_of_the_word
    an_ambiguous_name_lists_its_candidates
    words_wait_for_their_module
    a_module_whose_words_exclude_each_other_is_refused
    places_for_waiting_words_run_out_and_come_back
    what_is_read_can_be_written
    functions_are_read_by_the_names_that_people_use
    a_line_that_was_begun_is_ended
    lists_are_laid_out_as_those_of_ftrace
    enabled_functions_are_counted_for_two_graph_users
    globs_take_what_a_search_of_the_list_finds
    functions_without_names_are_known_by_their_lines
    files_tell_functions_apart
}
