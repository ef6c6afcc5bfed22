//! The rules that keep the rooms `core/`, `arch/` and `asm/` apart, held by reading the sources.
//!
//! [`RULES`] is the list: each rule has its name, what it asks for, its check, and small trees that it must object
//! to or let pass. What a file may do all the same is in [`EXCEPTIONS`] and [`BARE_OFFSETS`], with the reason; one
//! that is not needed any more is an error too.

#[path = "rooms/asm.rs"]
mod asm;
#[path = "rooms/checks.rs"]
mod checks;
#[path = "rooms/rust.rs"]
mod rust;
#[path = "rooms/tree.rs"]
mod tree;

use asm::Line;
use tree::{Finding, Findings, Tree};

/// A rule about the sources.
struct Rule {
    name: &'static str,
    what: &'static str,
    check: fn(&Tree, &mut Findings),
    /// Each of these trees must be objected to.
    bad: &'static [&'static [(&'static str, &'static str)]],
    /// Nothing in these trees may be objected to.
    good: &'static [&'static [(&'static str, &'static str)]],
}

/// A rule that does not hold at one place: the rule, the file or room, where in it, why. Where is the name of an
/// exported macro, or `cfg(test)` for what only tests see, or `""` for the whole file.
const EXCEPTIONS: &[(&str, &str, &str, &str)] = &[
    (
        "core-knows-no-machine",
        "core/platform.rs",
        "bind_platform",
        "text for the embedder's crate: only there are the platform's numbers known, which the trampolines need",
    ),
    (
        "core-knows-no-machine",
        "core/",
        "cfg(test)",
        "tests of the engine run it on the register blocks and codecs of both machines, which are plain data",
    ),
    (
        "assembly-is-in-the-live-half",
        "core/platform.rs",
        "bind_platform",
        "as above; it defines two symbols and has no instruction",
    ),
    (
        "state-is-in-the-live-half",
        "core/linker.rs",
        "",
        "declares the symbols of the linker fragments, which are on every machine; defines nothing",
    ),
    (
        "state-is-in-the-live-half",
        "core/symbols.rs",
        "symbol_space",
        "the space belongs to the embedder's image",
    ),
    (
        "state-is-in-the-live-half",
        "core/btf/image.rs",
        "type_space",
        "the space belongs to the embedder's image",
    ),
];

/// Memory operands with a number instead of a name: file, operand, why.
const BARE_OFFSETS: &[(&str, &str, &str)] = &[
    ("asm/arm64/entry.s", "[x10, #-16]", RECORD),
    ("asm/arm64/entry.s", "[x10, #-32]", RECORD),
    ("asm/x86_64/entry.s", "[rsp + 8]", RECORD),
    ("asm/x86_64/entry.s", "[rsp + 16]", RECORD),
    ("asm/x86_64/entry.s", "[rbp + 16]", RECORD),
    ("asm/x86_64/entry.s", "[rbp + 32]", RECORD),
    ("asm/x86_64/entry.s", "[rbp + 40]", RECORD),
    ("asm/x86_64/exit.s", "[rbp + 8]", RECORD),
    ("asm/x86_64/balanced.s", "[rbp + 8]", RECORD),
    ("asm/x86_64/balanced.s", "[rbp + 16]", RECORD),
    ("asm/x86_64/balanced.s", "[rbp + 24]", RECORD),
    ("asm/x86_64/balanced.s", "[rsp + 24]", RECORD),
    ("asm/x86_64/exit.s", "[rsp + 8]", RECORD),
    ("asm/x86_64/exit.s", "[rbp + 16]", RECORD),
    ("asm/x86_64/straight.s", "[rsp + 40]", PUSHED),
    ("asm/x86_64/straight.s", "[rsp + 32]", PUSHED),
    ("asm/x86_64/straight.s", "[rbp + 40]", PUSHED),
    ("asm/x86_64/straight.s", "[rsp + 8]", RECORD),
    ("asm/x86_64/straight.s", "[rsi + rdx * 8]", "an array of words"),
    ("asm/x86_64/straight.s", "[rsi + rax * 8]", "an array of words"),
    ("asm/x86_64/straight.s", "[rsi + rax * 8 + FGRAPH_TAG_VALUE]", "no memory: a sum"),
    ("asm/x86_64/straight.s", "[rsi + rax * 8 + FGRAPH_TAG_VOID]", "no memory: a sum"),
    ("asm/x86_64/straight.s", "[rsi + 1]", "no memory: a sum"),
    ("asm/x86_64/straight.s", "[rsi + 2]", "no memory: a sum"),
    ("asm/x86_64/straight.s", "[rsi + 8]", "an array of words"),
    ("asm/arm64/straight.s", "[sp, #-48]", PUSHED),
    ("asm/arm64/straight.s", "[sp], #48", PUSHED),
    ("asm/arm64/straight.s", "[sp, #16]", PUSHED),
    ("asm/arm64/straight.s", "[sp, #32]", PUSHED),
    ("asm/arm64/straight.s", "[sp, #40]", RECORD),
    ("asm/arm64/straight.s", "[sp, #48]", PUSHED),
    ("asm/arm64/straight.s", "[sp, #64]", PUSHED),
    ("asm/arm64/straight.s", "[sp, #80]", PUSHED),
    ("asm/arm64/straight.s", "[sp, #96]", PUSHED),
    ("asm/arm64/straight.s", "[sp, #112]", PUSHED),
];

const PUSHED: &str = "registers that the straight path saves, a few lines above";

const RECORD: &str =
    "frame records and return addresses, as the calling convention has them; the file's head draws them";

/// Names for the beginning of something that has many parts of one size: these may have a number added.
const INDEXED: &[&str] = &["FGRAPH_REGS_X", "FGRAPH_REGS_SIZE", "vectors_at"];

/// Files that only one machine needs.
const ONE_MACHINE_ONLY: &[(&str, &str)] = &[
    ("qemu/src/machine/arm64/gic.rs", "the interrupt controller"),
    ("qemu/src/machine/x86_64/apic.rs", "the interrupt controller"),
    ("qemu/src/machine/x86_64/descriptors.rs", "segments and gates"),
    ("qemu/src/machine/x86_64/port.rs", "I/O ports"),
];

/// One concept a file: what is longer has several.
const MOST_LINES: usize = 650;

/// The rules.
const RULES: &[Rule] = &[
    Rule {
        name: "core-knows-no-machine",
        what: "nothing under core/ but lib.rs, which joins the rooms, names `arch` or what lib.rs takes from there",
        check: checks::core_knows_no_machine,
        bad: &[
            &[("core/a.rs", "use crate::arch::FtraceRegs;")],
            &[("core/a.rs", "use crate::{addr, arch};")],
            &[("core/a.rs", "fn f() { ::core::arch::x86_64::_mm_pause() }")],
            &[("core/a/b.rs", "mod c { use super::super::arch::live; }")],
            &[("core/lib.rs", "pub use arch::{A, b::C};"), ("core/a.rs", "use crate::{addr::X, C};")],
            &[("core/lib.rs", "pub use arch::A;"), ("core/a.rs", "use super::A;")],
            &[
                ("core/lib.rs", "pub type Short = Ops<arch::Regs>;"),
                ("core/a.rs", "fn f(_: crate::Short) {}"),
            ],
        ],
        good: &[&[
            ("core/lib.rs", "mod arch; pub use arch::{A, live::init}; pub use addr::B;"),
            (
                "core/a.rs",
                "// arch::x\nuse crate::{addr, B}; const S: &str = \"arch::\"; fn init() { target_arch }",
            ),
            ("arch/a.rs", "use crate::arch::b;"),
        ]],
    },
    Rule {
        name: "core-tests-know-no-live-half",
        what: "tests in core/ name nothing of `arch` but its data halves: they run on any host",
        check: checks::core_tests_know_no_live_half,
        bad: &[
            &[("core/a.rs", "#[cfg(test)] mod tests { use super::super::arch::live::ENGINE; }")],
            &[("core/a.rs", "#[cfg(test)] mod tests { use crate::arch::{arm64::regs, live}; }")],
            &[("core/a.rs", "#[cfg(test)] mod tests { use crate::arch::x86_64::tramp; }")],
            &[("core/a.rs", "#[cfg(test)] mod tests { use crate::{arch, regs}; }")],
        ],
        good: &[&[(
            "core/a.rs",
            "#[cfg(test)] mod tests { use crate::arch::{arm64, x86_64::regs}; const B: bool = \
             crate::arch::register_fits(x); }",
        )]],
    },
    Rule {
        name: "cfg-on-targets-is-in-the-live-half",
        what: "only core/lib.rs, arch/mod.rs, a machine's mod.rs and the live half ask what the target is",
        check: checks::no_target_cfg,
        bad: &[
            &[("core/a.rs", "#[cfg(target_arch = \"x86_64\")] fn f() {}")],
            &[("core/a.rs", "const B: bool = cfg!(all(unix, target_feature = \"sse\"));")],
            &[("arch/arm64/regs.rs", "#[cfg_attr(target_os = \"none\", inline)] fn f() {}")],
        ],
        good: &[&[
            ("core/lib.rs", "#[cfg(target_arch = \"x86_64\")] pub use arch::a;"),
            (
                "core/a.rs",
                "#[cfg(target_pointer_width = \"64\")] #[cfg(feature = \"target_arch\")] fn f() {}",
            ),
            ("arch/arm64/tramp.rs", "const B: bool = cfg!(target_feature = \"neon\");"),
        ]],
    },
    Rule {
        name: "no-std-and-no-alloc",
        what: "core/ and arch/ use `core` alone, outside of tests",
        check: checks::no_std,
        bad: &[
            &[("core/a.rs", "use std::vec::Vec;")],
            &[("core/a.rs", "fn f() { let x = ::alloc::vec![]; }")],
            &[("arch/a.rs", "extern crate alloc;")],
            &[("arch/a.rs", "use alloc as a;")],
            &[("core/a.rs", "#[cfg(test)] mod tests { use std::vec; } use std::vec;")],
            &[("core/a.rs", "#[cfg(not(test))] use std::vec;")],
        ],
        good: &[
            &[(
                "core/a.rs",
                "//! std::vec\n#[cfg(test)] mod tests { use std::vec; } fn alloc(x: u8) { x.std }",
            )],
            &[(
                "core/lib.rs",
                "#[cfg(test)] extern crate std; #[cfg(test)] #[macro_use] extern crate alloc;",
            )],
            &[
                ("core/lib.rs", "#[cfg(test)] mod testing;"),
                ("core/testing.rs", "use std::vec; mod kernel;"),
                ("core/testing/kernel.rs", "use std::vec;"),
            ],
        ],
    },
    Rule {
        name: "no-module-named-core",
        what: "a module named `core` would hide the library of that name",
        check: checks::no_module_core,
        bad: &[&[("core/lib.rs", "pub mod core;")], &[("qemu/src/main.rs", "mod core { }")]],
        good: &[&[("core/lib.rs", "mod cores; use core::fmt; // mod core")]],
    },
    Rule {
        name: "assembly-is-in-the-live-half",
        what: "in core/ and arch/, only a machine's tramp.rs has assembly",
        check: checks::no_assembly,
        bad: &[
            &[("arch/arm64/insn.rs", "fn f() { asm!(\"nop\") }")],
            &[("core/a.rs", "::core::arch::global_asm!(\"nop\");")],
            &[("arch/live.rs", "#[cfg(test)] mod tests { fn f() { naked_asm!(\"nop\") } }")],
        ],
        good: &[&[("arch/arm64/tramp.rs", "asm!(\"isb\");"), ("arch/a.rs", "fn asm() {} // asm!()")]],
    },
    Rule {
        name: "state-is-in-the-live-half",
        what: "outside of tests, core/ and the data half of arch/ have no static: what they keep is given to them",
        check: checks::no_static,
        bad: &[
            &[("core/a.rs", "static A: u8 = 0;")],
            &[("arch/arm64/regs.rs", "fn f() { static mut A: u8 = 0; }")],
            &[("core/a.rs", "extern \"C\" { static A: u8; }")],
        ],
        good: &[&[
            (
                "core/a.rs",
                "use static_assertions as s; fn f(_: &'static u8) {} #[cfg(test)] static A: u8 = 0;",
            ),
            ("arch/live.rs", "static A: u8 = 0;"),
            ("arch/arm64/tramp.rs", "static A: u8 = 0;"),
        ]],
    },
    Rule {
        name: "only-targets-can-be-traced",
        what: "of this crate's functions only those that the self-tests trace have a section or a plain name of their own: \
               the linker fragment knows what must not be traced by its mangled name",
        check: checks::only_targets_are_traced,
        bad: &[
            &[("core/a.rs", "#[unsafe(no_mangle)] fn f() {}")],
            &[("arch/live.rs", "#[unsafe(export_name = \"f\")] fn f() {}")],
            &[("arch/selftest/graph.rs", "#[unsafe(link_section = \".text.a\")] fn f() {}")],
            &[("arch/arm64/tramp.rs", "#[cfg_attr(a, no_mangle)] fn f() {}")],
        ],
        good: &[&[
            (
                "arch/selftest/targets.rs",
                "#[unsafe(no_mangle)] #[unsafe(link_section = \".text.a\")] fn f() {}",
            ),
            (
                "core/a.rs",
                "#[macro_export] macro_rules! m { () => { #[unsafe(no_mangle)] fn f() {} }; } \
                 #[cfg(test)] #[unsafe(link_section = \"a\")] static A: u8 = 0;",
            ),
        ]],
    },
    Rule {
        name: "machines-have-the-same-files",
        what: "what one machine has a file for, the other has too: a gap is seen by `ls`",
        check: checks::same_files,
        bad: &[
            &[("arch/arm64/a.rs", ""), ("arch/x86_64/b.rs", "")],
            &[("asm/arm64/a.s", ""), ("asm/x86_64/a.s", ""), ("asm/x86_64/b.s", "")],
            &[("qemu/src/machine/arm64/a.rs", "")],
            &[("arch/riscv/a.rs", "")],
            &[("arch/selftest/a.rs", ""), ("arch/selftest/mod.rs", "")],
        ],
        good: &[&[
            ("arch/mod.rs", ""),
            ("arch/selftest.rs", ""),
            ("arch/selftest/a.rs", ""),
            ("arch/arm64/a.rs", ""),
            ("arch/x86_64/a.rs", ""),
            ("qemu/src/machine/arm64/gic.rs", ""),
        ]],
    },
    Rule {
        name: "assembly-is-included-once",
        what: "a machine's tramp.rs includes each of its assembly files, and names nothing by a bare number",
        check: checks::assembly_is_included,
        bad: &[
            &[("arch/arm64/tramp.rs", "global_asm!()"), ("asm/arm64/a.s", "")],
            &[("arch/arm64/tramp.rs", "global_asm!(include_str!(\"../../asm/arm64/a.s\"))")],
            &[("arch/arm64/tramp.rs", "global_asm!(\".set FGRAPH_A, 8\")")],
            &[("asm/arm64/a.s", "    .set FGRAPH_A, 8\n"), TRAMP_A],
            &[("asm/arm64/a.s", "FGRAPH_A = 8\n"), TRAMP_A],
        ],
        good: &[&[
            ("arch/arm64/tramp.rs", "(\".set A, {a}\", include_str!(\"../../asm/arm64/a.s\"))"),
            ("asm/arm64/a.s", ""),
        ]],
    },
    Rule {
        name: "symbols-are-ours",
        what: "global symbols start with `fgraph_`; those of functions have a type and a size, the marks of a range \
               (`_start`, `_stop`) have none",
        check: checks::symbols_are_ours,
        bad: &[
            &[
                (
                    "asm/arm64/a.s",
                    "    .globl entry\nentry:\n    .type entry, %function\n    .size entry, . - entry",
                ),
                TRAMP_A,
            ],
            &[("asm/arm64/a.s", "    .globl fgraph_a\nfgraph_a:\n    .type fgraph_a, %function\n"), TRAMP_A],
            &[
                ("asm/arm64/a.s", "    .global fgraph_a\nfgraph_a:\n    .size fgraph_a, . - fgraph_a\n"),
                TRAMP_A,
            ],
            &[
                (
                    "asm/arm64/a.s",
                    "    .globl fgraph_a_start\nfgraph_a_start:\n    .type fgraph_a_start, %function\n",
                ),
                TRAMP_A,
            ],
            &[
                ("asm/arm64/a.s", "    .macro m name\n    .globl \\name\n    .endm\n    m fgraph_a\n"),
                TRAMP_A,
            ],
        ],
        good: &[&[
            (
                "asm/arm64/a.s",
                "    .macro m name\n    .globl \\name\n    .type \\name, %function\n\\name:\n    .size \\name, . - \\name\n    \
                 .endm\n    m fgraph_a\n    .globl fgraph_x_start\nfgraph_x_start:\n",
            ),
            TRAMP_A,
        ]],
    },
    Rule {
        name: "offsets-have-names",
        what: "a number in a memory operand is a name of offsets.rs, or added to the name of an array, or in the list",
        check: checks::offsets_have_names,
        bad: &[
            &[("asm/arm64/a.s", "    str x30, [sp, #72]\n")],
            &[("asm/arm64/a.s", "    ldr x0, [sp], #16\n")],
            &[("asm/x86_64/a.s", "    mov [rsp + FGRAPH_REGS_RIP + 8], rax\n")],
            &[("asm/x86_64/a.s", "    .macro m\n    mov rax, [rsp + 0x10]\n    .endm\n")],
        ],
        good: &[&[
            (
                "asm/arm64/a.s",
                "    stp x0, x1, [sp, #FGRAPH_REGS_X + 8 * 2] // [sp, #8]\n    ldr x16, [x16]\n",
            ),
            (
                "asm/x86_64/a.s",
                "    mov r11, gs:[fgraph_offset] # [rsp + 8]\n    mov rax, [rsp + FGRAPH_REGS_RAX]\n",
            ),
        ]],
    },
    Rule {
        name: "labels-count-from-2",
        what: "0: and 1: are read as numbers in Intel syntax",
        check: checks::labels_count_from_2,
        bad: &[&[("asm/x86_64/a.s", "1:  ret\n")], &[("asm/arm64/a.s", "    .macro m\n0:\n    .endm\n")]],
        good: &[&[("asm/x86_64/a.s", "2:  jmp 2b # 1:\n11: ret\n")]],
    },
    Rule {
        name: "sections-and-macros-end",
        what: "a machine's assembly leaves the section that it entered with its last line, and leaves no macro behind",
        check: checks::sections_end,
        bad: &[
            &[("asm/arm64/a.s", "    .pushsection .text\n    ret\n"), TRAMP_A],
            &[("asm/arm64/a.s", "    .pushsection .text\n    .popsection\n    ret\n"), TRAMP_A],
            &[("asm/arm64/a.s", "    .popsection\n"), TRAMP_A],
            &[("asm/arm64/a.s", "    .text\n    ret\n"), TRAMP_A],
            &[
                ("asm/arm64/a.s", "    .pushsection .text\n    .macro m\n    .endm\n    .popsection\n"),
                TRAMP_A,
            ],
        ],
        good: &[&[
            (
                "asm/arm64/a.s",
                "    .pushsection .text\n    .macro m\n    .endm\n    .purgem m\n    .popsection // out\n",
            ),
            TRAMP_A,
        ]],
    },
    Rule {
        name: "assembly-calls-only-the-handlers",
        what: "a jump or call goes to an operand, a numeric label, a `fgraph_` symbol, or where a register says",
        check: checks::assembly_calls_only_handlers,
        bad: &[
            &[("asm/arm64/a.s", "    bl memcpy\n")],
            &[("asm/arm64/a.s", "    cbz x0, elsewhere\n")],
            &[("asm/x86_64/a.s", "2:  call memcpy # {x}\n")],
        ],
        good: &[&[
            (
                "asm/arm64/a.s",
                "    bl {handler}\n    b.hs 2f\n    cbz x16, 3f\n    blr x17\n    bic x0, x0, x1\n",
            ),
            ("asm/x86_64/a.s", "    jz 3f\n    jmp fgraph_a\n    call qword ptr [rax]\n    jmp r11\n"),
        ]],
    },
    Rule {
        name: "files-are-short",
        what: "a file in core/, arch/ or asm/ has 650 lines at most",
        check: checks::files_are_short,
        bad: &[&[("core/a.rs", LONG)], &[("asm/arm64/a.s", LONG)]],
        good: &[&[("cli/src/a.rs", LONG), ("core/a.rs", "\n\n")]],
    },
    Rule {
        name: "files-say-what-they-are",
        what: "every source opens with a comment: what it is, its invariant, who calls it",
        check: checks::files_have_heads,
        bad: &[
            &[("core/a.rs", "use core::fmt;\n//! late\n")],
            &[("core/a.rs", "// not in the reference\n")],
            &[("asm/x86_64/a.s", "// not a comment here\n")],
            &[("link/a.ld", "x = .;\n")],
            &[("scripts/a", "#!/bin/sh\nset -e\n")],
        ],
        good: &[&[
            ("core/a.rs", "//! Words.\n"),
            ("asm/x86_64/a.s", "# words\n"),
            ("asm/arm64/a.s", "// words\n"),
            ("link/a.ld", "/* Words. */\n"),
            ("scripts/a", "#!/bin/sh\n# Words.\n"),
        ]],
    },
];

/// For the trees of the rules: includes `asm/arm64/a.s`.
const TRAMP_A: (&str, &str) = ("arch/arm64/tramp.rs", "global_asm!(include_str!(\"../../asm/arm64/a.s\"))");

/// For the trees of the rules: more than [`MOST_LINES`].
const LONG: &str = {
    const BYTES: [u8; MOST_LINES + 1] = [b'\n'; MOST_LINES + 1];
    match std::str::from_utf8(&BYTES) {
        Ok(text) => text,
        Err(_) => unreachable!(),
    }
};

/// What a rule objects to in a tree, and which exceptions it would not have needed.
fn findings(rule: &Rule, tree: &Tree) -> (Vec<Finding>, Vec<String>) {
    let mut found = Findings::default();
    (rule.check)(tree, &mut found);
    let mut unused = Vec::new();
    for (_, path, place, _) in EXCEPTIONS.iter().filter(|(name, ..)| *name == rule.name) {
        let before = found.0.len();
        let covers = |found: &str| found == *path || (path.ends_with('/') && found.starts_with(path));
        found.0.retain(|finding| !covers(&finding.path) || (!place.is_empty() && finding.place != *place));
        if found.0.len() == before {
            unused.push(format!("{path} {place}"));
        }
    }
    (found.0.into_iter().collect(), unused)
}

#[test]
fn the_sources_keep_the_rules() {
    let tree = Tree::read();
    let mut broken = 0;
    for rule in RULES {
        let (found, unused) = findings(rule, &tree);
        for finding in &found {
            println!("{finding}\n    {}: {}", rule.name, rule.what);
        }
        for exception in &unused {
            println!("{exception}\n    {}: the exception is not needed", rule.name);
        }
        broken += found.len() + unused.len();
    }
    assert_eq!(broken, 0, "places where a rule is broken");
}

#[test]
fn every_rule_objects_to_what_breaks_it() {
    for rule in RULES {
        assert!(!rule.bad.is_empty() && !rule.good.is_empty(), "{} has no trees", rule.name);
        for bad in rule.bad {
            let (found, _) = findings(rule, &Tree::of(bad.iter().copied()));
            assert!(!found.is_empty(), "{} lets pass: {bad:?}", rule.name);
        }
        for good in rule.good {
            let (found, _) = findings(rule, &Tree::of(good.iter().copied()));
            assert!(found.is_empty(), "{} objects to {good:?}: {found:?}", rule.name);
        }
    }
}

#[test]
fn lists_name_what_is_there() {
    let tree = Tree::read();
    for (rule, path, ..) in EXCEPTIONS {
        assert!(RULES.iter().any(|known| known.name == *rule), "there is no rule {rule}");
        assert!(tree.under(path).next().is_some(), "there is no {path}");
    }
    for (path, _) in ONE_MACHINE_ONLY {
        assert!(tree.0.contains_key(*path), "there is no {path}");
    }
    let lines: Vec<Line> = tree.assembly().collect();
    for (path, operand, _) in BARE_OFFSETS {
        let has = |line: &Line| line.path == *path && line.memory_operands().contains(operand);
        assert!(lines.iter().any(has), "{path} has no {operand}");
    }
}

#[test]
fn an_exception_covers_no_more_than_its_macro() {
    let rule = RULES.iter().find(|rule| rule.name == "core-knows-no-machine").unwrap();
    let text = "#[macro_export] macro_rules! bind_platform { () => { arch::a }; }";
    let (found, _) = findings(rule, &Tree::of([("core/platform.rs", text)]));
    assert_eq!(found, []);
    let (found, _) = findings(rule, &Tree::of([("core/platform.rs", &*format!("{text} use crate::arch;"))]));
    assert_eq!(found.len(), 1);
}
