//! What each of the room rules looks for. The rules themselves, with what breaks them, are in `rooms.rs`.

use std::collections::{BTreeMap, BTreeSet};

use crate::asm::{self, Line};
use crate::rust::{Token, behind_group, is};
use crate::tree::{Findings, Tree};
use crate::{BARE_OFFSETS, INDEXED, MOST_LINES, ONE_MACHINE_ONLY};

const MACHINES: [&str; 2] = ["arm64", "x86_64"];

/// Rust files that may be asked for another half of their room: everything in `arch/` that is no data half.
fn is_live_half(path: &str) -> bool {
    let in_machine = MACHINES.iter().any(|machine| path.starts_with(&format!("arch/{machine}/")));
    path.starts_with("arch/") && (!in_machine || path.ends_with("/tramp.rs"))
}

pub(crate) fn core_knows_no_machine(tree: &Tree, found: &mut Findings) {
    // What the crate root has from `arch` under names of its own.
    let root = tree.0.get("core/lib.rs").map_or(&[][..], |file| &file.tokens);
    let mut theirs = BTreeSet::new();
    for at in 0..root.len() {
        let statement =
            || root[at..].iter().take_while(|token| token.text != ";").map(|token| token.text.as_str());
        if is(root, at, &["use", "arch", ":", ":"]) || is(root, at, &["use", "crate", ":", ":", "arch"]) {
            theirs.extend(statement().skip(2).filter(|text| *text != "live"));
        } else if is(root, at, &["pub", "type"]) {
            theirs.extend(statement().nth(2));
        }
    }
    let is_word = |text: &str| text.starts_with(|c: char| c.is_alphabetic());
    theirs.retain(|text| is_word(text));

    for (path, file) in tree.under("core/").filter(|(path, _)| *path != "core/lib.rs") {
        for (at, token) in file.tokens.iter().enumerate() {
            if token.text == "arch" {
                found.token(path, token);
            }
            // `super` may lead to the crate root as well.
            if is(&file.tokens, at, &["crate", ":", ":"]) || is(&file.tokens, at, &["super", ":", ":"]) {
                let end = if is(&file.tokens, at + 3, &["{"]) {
                    behind_group(&file.tokens, at + 3)
                } else {
                    at + 4
                };
                for token in file.tokens[..end.min(file.tokens.len())].iter().skip(at + 3) {
                    if theirs.contains(token.text.as_str()) {
                        found.token(path, token);
                    }
                }
            }
        }
    }
}

pub(crate) fn core_tests_know_no_live_half(tree: &Tree, found: &mut Findings) {
    let data = ["arm64", "x86_64", "register_fits"];
    for (path, file) in tree.under("core/") {
        for (at, token) in file.tokens.iter().enumerate().filter(|(_, token)| token.test) {
            if token.text == "tramp" {
                found.token(path, token);
            }
            let goes_on = is(&file.tokens, at + 1, &[":", ":"]);
            if token.text == "arch"
                && !(goes_on
                    && heads(&file.tokens, at + 3).iter().all(|head| data.contains(&head.text.as_str())))
            {
                found.token(path, token);
            }
        }
    }
}

/// The first names behind a `::`: one, or those of all paths in a group.
fn heads(tokens: &[Token], at: usize) -> Vec<&Token> {
    if !is(tokens, at, &["{"]) {
        return tokens.get(at).into_iter().collect();
    }
    let mut heads = Vec::new();
    let mut next = at + 1;
    while next + 1 < behind_group(tokens, at) {
        heads.push(&tokens[next]);
        while next < tokens.len() && ![",", "}"].contains(&tokens[next].text.as_str()) {
            next = if tokens[next].text == "{" { behind_group(tokens, next) } else { next + 1 };
        }
        next += 1;
    }
    heads
}

pub(crate) fn no_target_cfg(tree: &Tree, found: &mut Findings) {
    let may = |path: &str| {
        path == "core/lib.rs"
            || is_live_half(path)
            || (path.starts_with("arch/") && path.ends_with("/mod.rs"))
    };
    for (path, file) in tree.under("core/").chain(tree.under("arch/")).filter(|(path, _)| !may(path)) {
        for token in &file.tokens {
            if ["target_arch", "target_os", "target_feature", "target_env", "target_family"]
                .contains(&&*token.text)
            {
                found.token(path, token);
            }
        }
    }
}

pub(crate) fn no_std(tree: &Tree, found: &mut Findings) {
    for (path, file) in tree.under("core/").chain(tree.under("arch/")) {
        for (at, token) in file.tokens.iter().enumerate().filter(|(_, token)| !token.test) {
            let before = |texts: &[&str]| at >= texts.len() && is(&file.tokens, at - texts.len(), texts);
            if (token.text == "std" || token.text == "alloc")
                && (is(&file.tokens, at + 1, &[":", ":"]) || before(&["extern", "crate"]) || before(&["use"]))
            {
                found.token(path, token);
            }
        }
    }
}

pub(crate) fn no_module_core(tree: &Tree, found: &mut Findings) {
    for (path, file) in tree.under("") {
        for (at, token) in file.tokens.iter().enumerate() {
            if is(&file.tokens, at, &["mod", "core"]) {
                found.token(path, token);
            }
        }
    }
}

pub(crate) fn no_assembly(tree: &Tree, found: &mut Findings) {
    for (path, file) in
        tree.under("core/").chain(tree.under("arch/")).filter(|(path, _)| !path.ends_with("/tramp.rs"))
    {
        for (at, token) in file.tokens.iter().enumerate() {
            if ["asm", "global_asm", "naked_asm"].contains(&&*token.text) && is(&file.tokens, at + 1, &["!"])
            {
                found.token(path, token);
            }
        }
    }
}

pub(crate) fn no_static(tree: &Tree, found: &mut Findings) {
    for (path, file) in tree.under("core/").chain(tree.under("arch/")).filter(|(path, _)| !is_live_half(path))
    {
        for token in file.tokens.iter().filter(|token| !token.test && token.text == "static") {
            found.token(path, token);
        }
    }
}

pub(crate) fn only_targets_are_traced(tree: &Tree, found: &mut Findings) {
    let may = |path: &str| path == "arch/selftest/targets.rs";
    for (path, file) in tree.under("core/").chain(tree.under("arch/")).filter(|(path, _)| !may(path)) {
        // What a macro puts into another crate is that crate's.
        for token in file.tokens.iter().filter(|token| !token.test && token.exported.is_none()) {
            if ["no_mangle", "export_name", "link_section"].contains(&&*token.text) {
                found.token(path, token);
            }
        }
    }
}

pub(crate) fn same_files(tree: &Tree, found: &mut Findings) {
    for room in ["arch/", "asm/", "qemu/src/machine/"] {
        for (path, _) in tree.under(room) {
            let Some((machine, file)) = path[room.len()..].split_once('/') else { continue };
            // A folder with a file of its name beside it has that module's parts: machines have a `mod.rs`.
            if ONE_MACHINE_ONLY.iter().any(|(known, _)| *known == path)
                || tree.0.contains_key(&format!("{room}{machine}.rs"))
            {
                continue;
            }
            if !MACHINES.contains(&machine) {
                found.add(path, 1, format!("`{machine}` is no machine"));
            }
            for other in MACHINES.iter().map(|other| format!("{room}{other}/{file}")) {
                if !tree.0.contains_key(&other) {
                    found.add(path, 1, format!("there is no {other}"));
                }
            }
        }
    }
}

pub(crate) fn assembly_is_included(tree: &Tree, found: &mut Findings) {
    for machine in MACHINES {
        let (tramp, folder) = (format!("arch/{machine}/tramp.rs"), format!("asm/{machine}/"));
        let included = tree.included_by(machine);
        for path in included.iter().filter(|path| !tree.0.contains_key(*path)) {
            found.add(&tramp, 1, format!("there is no {path}"));
        }
        for (path, _) in tree.under(&folder) {
            if included.iter().filter(|known| *known == path).count() != 1 {
                found.add(path, 1, format!("not included once by {tramp}"));
            }
        }
        for token in tree.0.get(&tramp).map_or(&[][..], |file| &file.tokens) {
            if token.string().is_some_and(|text| text.starts_with(".set ") && !text.contains('{')) {
                found.token(&tramp, token);
            }
        }
    }
    for line in tree.assembly() {
        if [".set", ".equ"].iter().any(|directive| line.arguments(directive).is_some())
            || line.code.contains(" = ")
        {
            found.line(&line, "names are given in offsets.rs");
        }
    }
}

pub(crate) fn symbols_are_ours(tree: &Tree, found: &mut Findings) {
    for lines in MACHINES.map(|machine| asm::expand(&tree.assembly_of(machine))) {
        for line in &lines {
            let directive =
                [".globl", ".global", ".weak"].into_iter().find_map(|directive| line.arguments(directive));
            for name in directive.unwrap_or_default() {
                if !name.starts_with("fgraph_") {
                    found.line(line, "does not start with `fgraph_`");
                }
                if !lines.iter().any(|line| line.code.strip_suffix(':') == Some(name)) {
                    found.line(line, "has no label");
                }
                let is_mark = name.ends_with("_start") || name.ends_with("_stop");
                for wanted in [".type", ".size"] {
                    let has = |line: &Line| {
                        line.arguments(wanted).is_some_and(|words| words.first() == Some(&name))
                    };
                    if lines.iter().any(has) == is_mark {
                        found.line(
                            line,
                            &format!("{wanted} is {}", if is_mark { "not for a mark" } else { "missing" }),
                        );
                    }
                }
            }
        }
    }
}

/// The words and numbers of an operand.
fn words(operand: &str) -> impl Iterator<Item = &str> {
    operand.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// Whether an operand has a number that no name explains.
fn is_bare(operand: &str) -> bool {
    words(operand).any(|word| word.starts_with(|c: char| c.is_ascii_digit()))
        && !words(operand).any(|word| INDEXED.contains(&word))
}

pub(crate) fn offsets_have_names(tree: &Tree, found: &mut Findings) {
    for line in tree.assembly() {
        for operand in line.memory_operands().into_iter().filter(|operand| is_bare(operand)) {
            if !BARE_OFFSETS.iter().any(|(path, known, _)| *path == line.path && *known == operand) {
                found.line(&line, operand);
            }
        }
    }
}

pub(crate) fn labels_count_from_2(tree: &Tree, found: &mut Findings) {
    for line in tree.assembly().filter(|line| line.label.is_some_and(|label| label < 2)) {
        found.line(&line, "label below 2");
    }
}

pub(crate) fn sections_end(tree: &Tree, found: &mut Findings) {
    for lines in MACHINES.map(|machine| tree.assembly_of(machine)) {
        let mut depth = 0;
        let mut macros = BTreeMap::new();
        for line in &lines {
            match line.code.split_whitespace().collect::<Vec<_>>()[..] {
                [".pushsection", ..] => depth += 1,
                [".popsection", ..] => depth -= 1,
                [".macro", name, ..] => drop(macros.insert(name, line)),
                [".purgem", name] => drop(macros.remove(name)),
                [".section" | ".text" | ".data" | ".previous", ..] => found.line(line, "does not come back"),
                _ if depth < 1 => found.line(line, "outside of a section of ours"),
                _ => {}
            }
            if depth < 0 {
                found.line(line, "ends what it did not begin");
            }
        }
        if let Some(last) = lines.last().filter(|last| depth != 0 || last.code != ".popsection") {
            found.line(last, "is last instead of `.popsection`");
        }
        for line in macros.values() {
            found.line(line, "has no .purgem");
        }
    }
}

pub(crate) fn assembly_calls_only_handlers(tree: &Tree, found: &mut Findings) {
    for line in tree.assembly() {
        let mnemonic = words(&line.code).next().unwrap_or_default();
        // `b` has its condition behind a dot; x86_64 writes it into the mnemonic.
        let jumps = if line.path.contains("arm64") {
            ["b", "bl", "blr", "br", "cbz", "cbnz", "tbz", "tbnz"].contains(&mnemonic)
        } else {
            mnemonic.starts_with('j') || mnemonic == "call"
        };
        let target = line.code.rsplit([',', ' ']).next().unwrap_or_default();
        let is_register = target.starts_with(['x', 'r']) && target[1..].len() < 3;
        let is_label = target.trim_end_matches(['b', 'f']).bytes().all(|byte| byte.is_ascii_digit());
        if jumps
            && !(is_register || is_label || target.starts_with("fgraph_") || target.ends_with(['}', ']']))
        {
            found.line(&line, "goes elsewhere");
        }
    }
}

pub(crate) fn files_are_short(tree: &Tree, found: &mut Findings) {
    for (path, file) in ["core/", "arch/", "asm/"].into_iter().flat_map(|room| tree.under(room)) {
        let count = file.text.lines().count();
        if count > MOST_LINES {
            found.add(path, count, format!("{count} lines, and {MOST_LINES} at most"));
        }
    }
}

pub(crate) fn files_have_heads(tree: &Tree, found: &mut Findings) {
    for (path, file) in tree.under("") {
        let text = file.text.as_str();
        let has_head = match path.rsplit_once('.') {
            Some((_, "rs")) => text.starts_with("//! "),
            Some((_, "s")) => asm::has_head(path, text),
            Some((_, "ld")) => text.starts_with("/* "),
            _ => text.starts_with("#!") && text.lines().nth(1).is_some_and(|line| line.starts_with("# ")),
        };
        if !has_head {
            found.add(path, 1, "does not say what it is");
        }
    }
}
