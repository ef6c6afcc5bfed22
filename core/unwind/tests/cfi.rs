//! The states that are found by following instructions, compared with what compilers say of their own code: the call frame
//! information in this test program, at every instruction of every function, or in the ELF file that `FGRAPH_CFI_IMAGE` names.

use std::borrow::ToOwned;
use std::path::PathBuf;
use std::string::String;
use std::vec::Vec;

use gimli::{
    BaseAddresses, CfaRule, DebugFrame, EhFrame, EndianSlice, LittleEndian, RegisterRule, UnwindContext,
    UnwindSection, UnwindTableRow,
};
use object::{Architecture, Object, ObjectSection, ObjectSymbol, SymbolKind};

use crate::arch::arm64::patch::Arm64;
use crate::arch::x86_64::patch::X86_64;
use crate::unwind::sweep::{Place, sweep};
use crate::unwind::{CallFrames, Code, FP, LINK, Reached, SP, State, Value};

/// DWARF numbers of the registers that matter (DWARF for the Arm 64-bit architecture, 4.1; psABI figure 3.36).
struct Numbers {
    sp: u16,
    fp: u16,
    link: Option<u16>,
}

/// The longest function that is looked at: each instruction is found from the function's start on.
const MOST: usize = if cfg!(debug_assertions) { 1 << 10 } else { 32 << 10 };

#[derive(Debug, Default)]
struct Counts {
    functions: usize,
    same: usize,
    unknown: usize,
    wrong: usize,
}

struct Checker<'a> {
    text: &'a [u8],
    text_at: usize,
    numbers: Numbers,
    counts: Counts,
    shown: Vec<String>,
}

impl Checker<'_> {
    fn fetch(&self, at: usize, bytes: &mut [u8]) -> bool {
        let from = at.checked_sub(self.text_at).and_then(|from| self.text.get(from..)?.get(..bytes.len()));
        from.map(|from| bytes.copy_from_slice(from)).is_some()
    }

    /// x86_64: what nothing comes to, and what is behind a push that the compiler does not know of.
    fn is_not_described(&self, at: usize, start: usize) -> bool {
        let from = at - self.text_at;
        let (before, code) = self.text.split_at(from);
        // arm64: tables of functions that do not return to their callers begin late.
        if self.numbers.link.is_some() {
            return at - start < 12;
        }
        let code = &code[code.iter().take_while(|byte| matches!(byte, 0x66 | 0x2e)).count()..];
        let pushes_flags = before.ends_with(&[0x9c]);
        pushes_flags || code.starts_with(&[0x0f, 0x0b]) || code.starts_with(&[0x0f, 0x1f])
    }

    /// Whether `state` is what the compiler says.
    fn agrees(&self, state: &State, row: &UnwindTableRow<usize>) -> bool {
        let CfaRule::RegisterAndOffset { register, offset } = *row.cfa() else { return true };
        let offset = offset as i32;
        let reg = if register.0 == self.numbers.sp {
            SP
        } else if register.0 == self.numbers.fp {
            FP
        } else {
            return true;
        };
        let cfa = match (state.get(Some(reg)), state.get(Some(SP)), state.get(Some(FP))) {
            (Value::Cfa(is), ..) => is == -offset,
            // The compiler does not say where a frame is taken down again; then it must be down in all respects.
            (_, Value::Cfa(_), Value::Fp) => true,
            (_, Value::Other, Value::Cfa(_)) => true,
            _ => false,
        };
        let has_frame = matches!(state.get(Some(FP)), Value::Cfa(_));
        let kept = |number: u16, reg: usize, value: Value| match (
            row.register(gimli::Register(number)),
            state.place(value),
        ) {
            (Some(RegisterRule::Offset(should)), Some(Place::Slot(is))) => {
                // The trampolines keep it twice.
                i64::from(is) == should || state.load(Value::Cfa(should as i32)) == value
            }
            // Not described, once more: what is said to be saved may be back in its register.
            (Some(RegisterRule::Offset(_)), Some(Place::Register(is))) => is == reg && !has_frame,
            // Saved already, and still in its register.
            (_, Some(Place::Slot(_))) => state.get(Some(reg)) == value,
            (_, Some(Place::Register(is))) => is == reg,
            (_, None) => false,
        };
        let link = self.numbers.link.is_none_or(|link| kept(link, LINK, Value::Return));
        cfa && kept(self.numbers.fp, FP, Value::Fp) && link
    }

    fn row<M: CallFrames>(&mut self, start: usize, end: usize, name: &str, row: &UnwindTableRow<usize>) {
        // Instructions begin where the decoder says; a wrong length shows as a wrong state further on.
        let mut at = row.start_address() as usize;
        let mut scratch = M::entry(Reached::Called);
        while at < (row.end_address() as usize).min(end) {
            let fetch = |at: usize, bytes: &mut [u8]| self.fetch(at, bytes);
            match sweep::<M>(&(start..end), at, Reached::Called, &(0..0), fetch) {
                None => self.counts.unknown += 1,
                Some(state) if [SP, FP].iter().all(|reg| !matches!(state.get(Some(*reg)), Value::Cfa(_))) => {
                    self.counts.unknown += 1;
                }
                Some(state) if self.agrees(&state, row) => self.counts.same += 1,
                Some(_) if self.is_not_described(at, start) => {}
                Some(state) => {
                    self.counts.wrong += 1;
                    if self.shown.len() < 20 {
                        self.shown.push(format!("{name}+{:#x}: {state:?} {:?}", at - start, row.cfa()));
                    }
                }
            }
            let mut bytes = [0; 16];
            let bytes = &mut bytes[..M::LONGEST.min(end - at)];
            if !self.fetch(at, bytes) {
                return;
            }
            match M::step(Code { bytes, at, start, prefixed: false, trampolines: &(0..0) }, &mut scratch) {
                Some(step) => at += step.len,
                None => return,
            }
        }
    }
}

fn check(path: &PathBuf) -> Result<Counts, String> {
    let data = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let file = object::File::parse(&*data).map_err(|error| format!("{error}"))?;
    let text = file.section_by_name(".text").ok_or("no text")?;
    let numbers = match file.architecture() {
        Architecture::Aarch64 => Numbers { sp: 31, fp: 29, link: Some(30) },
        Architecture::X86_64 => Numbers { sp: 7, fp: 6, link: None },
        other => return Err(format!("no such machine: {other:?}")),
    };
    let mut checker = Checker {
        text: text.data().map_err(|error| format!("{error}"))?,
        text_at: text.address() as usize,
        numbers,
        counts: Counts::default(),
        shown: Vec::new(),
    };
    let functions = file.symbols().filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.size() > 0);
    let mut functions: Vec<_> =
        functions.map(|symbol| (symbol.address() as usize, symbol.name().unwrap_or("?"))).collect();
    functions.sort_unstable();
    let arm64 = checker.numbers.link.is_some();
    if let Some(section) = file.section_by_name(".eh_frame") {
        let bytes = section.uncompressed_data().map_err(|error| format!("{error}"))?;
        let bases = BaseAddresses::default().set_eh_frame(section.address()).set_text(text.address());
        rows(&EhFrame::new(&bytes, LittleEndian), &bases, &functions, &mut checker, arm64)?;
    }
    if let Some(section) = file.section_by_name(".debug_frame") {
        let bytes = section.uncompressed_data().map_err(|error| format!("{error}"))?;
        let frames = DebugFrame::new(&bytes, LittleEndian);
        rows(&frames, &BaseAddresses::default(), &functions, &mut checker, arm64)?;
    }
    for line in &checker.shown {
        std::println!("{line}");
    }
    Ok(checker.counts)
}

fn rows<'a, S>(
    frames: &S,
    bases: &BaseAddresses,
    functions: &[(usize, &str)],
    checker: &mut Checker<'_>,
    arm64: bool,
) -> Result<(), String>
where
    S: UnwindSection<EndianSlice<'a, LittleEndian>>,
    S::Offset: gimli::UnwindOffset<usize>,
{
    let mut entries = frames.entries(bases);
    let mut context = UnwindContext::new();
    while let Some(entry) = entries.next().map_err(|error| format!("{error}"))? {
        let gimli::CieOrFde::Fde(partial) = entry else { continue };
        let fde = partial.parse(S::cie_from_offset).map_err(|error| format!("{error}"))?;
        let (start, end) =
            (fde.initial_address() as usize, fde.initial_address() as usize + fde.len() as usize);
        let text = checker.text_at..checker.text_at + checker.text.len();
        let Ok(index) = functions.binary_search_by_key(&start, |function| function.0) else { continue };
        let name = functions[index].1.to_owned();
        // The trampolines begin in a state of their own.
        if !text.contains(&start)
            || name.contains("fgraph_return_hooker")
            || name == "_start"
            || end - start > MOST
        {
            continue;
        }
        checker.counts.functions += 1;
        let mut table = fde.rows(frames, bases, &mut context).map_err(|error| format!("{error}"))?;
        while let Some(row) = table.next_row().map_err(|error| format!("{error}"))? {
            if arm64 {
                checker.row::<Arm64>(start, end, &name, row);
            } else {
                checker.row::<X86_64>(start, end, &name, row);
            }
        }
    }
    Ok(())
}

#[test]
fn the_states_of_compiled_code_are_what_compilers_say() {
    if cfg!(miri) {
        std::println!("skipped: Miri has no program file");
        return;
    }
    let path = std::env::var_os("FGRAPH_CFI_IMAGE").map(PathBuf::from);
    if path.is_none() && !cfg!(debug_assertions) {
        std::println!("skipped: an optimised program has no frame pointers, which walks rely on");
        return;
    }
    let path = path.or_else(|| std::env::current_exe().ok()).expect("a program");
    let counts = check(&path).expect("an ELF file");
    std::println!("{counts:?}");
    assert_eq!(counts.wrong, 0, "{counts:?}");
    assert!(counts.functions > 300, "{counts:?}");
}
