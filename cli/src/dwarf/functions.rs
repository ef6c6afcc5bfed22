//! Functions by address, with the prototypes that their entries give.
//!
//! Invariant: a function gets a prototype only from an entry whose first instruction is its own, and if several entries
//! are there, only one that all of them agree on. Parameters come in the order of the source: from the abstract entry that
//! an optimised one refers to, whose own children may be others.

use std::collections::HashMap;

use gimli::{AttributeValue, DwAt, UnitOffset};

use super::convert::{Class, Converter, fits};
use super::place::{Piece, Place, Places, is_site};
use super::rust::Repr;
use super::signature::{Convention, Returned, contradicts, expected, returned};
use super::units::{Die, Entry, Language, Maker, Units, flag};
use super::{Described, Prototypes, Reason, Report, Wanted};
use crate::btf::types::{Parameter, Text, Type, TypeId, Types, VOID};
use crate::btf::write::Function;
use crate::image::Machine;

/// How many entries are gone through from a function to where it was declared.
const MAX_ORIGINS: usize = 8;
/// What compilers put behind the names of clones.
const CLONES: [&str; 3] = [".isra", ".constprop", ".part"];

/// The old one, too.
const LINKAGE_NAMES: [DwAt; 2] = [gimli::DW_AT_linkage_name, gimli::DW_AT_MIPS_linkage_name];

/// An entry and the ones it refers to for what it does not say itself.
type Origins<'d> = Vec<(Die, Entry<'d>)>;

struct Reader<'u, 'd, 'w> {
    converter: Converter<'u, 'd>,
    machine: Machine,
    wanted: &'w [Wanted<'w>],
    /// Functions that have their code in common with others, by all their names; and entries of that name whose own code the linker
    /// threw away.
    merged: HashMap<&'w str, Vec<Die>>,
    report: Report,
}

/// A parameter: its own entry, where the function has one for it, and the origins to ask for its name and type.
struct Given<'d> {
    own: Option<Entry<'d>>,
    origins: Origins<'d>,
}

/// Finds the prototypes of these functions, which ascend by address.
pub(crate) fn read<'d>(units: &Units<'d>, machine: Machine, wanted: &[Wanted<'_>]) -> Prototypes {
    let report = Report {
        units: units.slots.len() + units.split.len() + units.malformed.len(),
        split: units.split.clone(),
        malformed: units.malformed.clone(),
        ..Report::default()
    };
    let shared = wanted.iter().filter(|wanted| !wanted.aliases.is_empty());
    let names = shared.flat_map(|wanted| std::iter::once(&wanted.name).chain(wanted.aliases));
    let merged = names.map(|name| (*name, Vec::new())).collect();
    let mut reader = Reader { converter: Converter::new(units), machine, wanted, merged, report };
    let mut entries: Vec<Vec<Die>> = vec![Vec::new(); wanted.len()];
    for unit in 0..units.slots.len() as u32 {
        if let Err(reason) = reader.scan(unit, &mut entries) {
            reader.report.malformed.push(format!("the rest of unit {unit}: {reason}"));
        }
    }
    let mut functions = Vec::new();
    for (function, dies) in wanted.iter().zip(entries) {
        match reader.agreed(function, &dies) {
            Ok(found) => functions.push(Described { address: function.address, function: found }),
            Err(reason) => {
                reader.report.left_out.push((function.address, function.name.to_owned(), reason));
            }
        }
    }
    reader.converter.define_noted();
    Prototypes { types: reader.converter.types, functions, report: reader.report }
}

impl<'d> Reader<'_, 'd, '_> {
    /// Goes over a unit for the functions in it, and where types can be in namespaces, for these.
    fn scan(&mut self, unit: u32, entries: &mut [Vec<Die>]) -> Result<(), Reason> {
        let units = self.converter.units;
        let slot = &units.slots[unit as usize];
        let has_scopes = match slot.language {
            Language::Assembly => return Ok(()),
            Language::Rust | Language::Cpp => true,
            Language::C | Language::Other => false,
        };
        let mut raw = slot.unit.entries_raw(None)?;
        // What encloses the next entry: depth and name.
        let mut scopes: Vec<(isize, Text)> = Vec::new();
        while !raw.is_empty() {
            let (at, depth) = (raw.next_offset(), raw.next_depth());
            let Some(abbreviation) = raw.read_abbreviation()? else { continue };
            raw.skip_attributes(abbreviation.attributes())?;
            let tag = abbreviation.tag();
            let die = Die { unit, at: at.0 };
            if tag == gimli::DW_TAG_subprogram
                && let entry = slot.unit.entry(UnitOffset(die.at))?
                && let Some(start) = self.start(die, &entry)
            {
                if is_thrown_away(start) {
                    self.note_merged(die, entry);
                } else if let Some(index) = self.wanted_at(start) {
                    entries[index].push(die);
                }
            }
            if !has_scopes {
                continue;
            }
            let is_type = matches!(
                tag,
                gimli::DW_TAG_structure_type | gimli::DW_TAG_union_type | gimli::DW_TAG_class_type
            );
            if is_type || matches!(tag, gimli::DW_TAG_namespace | gimli::DW_TAG_subprogram) {
                while scopes.last().is_some_and(|(outer, _)| *outer >= depth) {
                    scopes.pop();
                }
                let outer = scopes.last().map_or(Text(0), |(_, scope)| *scope);
                if is_type {
                    self.converter.scopes.insert(die, outer);
                }
                if abbreviation.has_children() {
                    let entry = slot.unit.entry(UnitOffset(die.at))?;
                    let name = units.text(die, &entry, gimli::DW_AT_name).unwrap_or_default();
                    let types = &mut self.converter.types;
                    let scope = if outer == Text(0) { name } else { format!("{}::{name}", types.str(outer)) };
                    scopes.push((depth, types.text(&scope)));
                }
            }
        }
        Ok(())
    }

    /// The first instruction of what an entry describes.
    fn start(&self, die: Die, entry: &Entry<'d>) -> Option<u64> {
        let units = self.converter.units;
        let unit = &units.slot(die).unit;
        match entry.attr_value(gimli::DW_AT_low_pc) {
            Some(low) => units.dwarf(die).attr_address(unit, low).ok()?,
            // Of several pieces, the first is where it starts.
            None => {
                entry.attr_value(gimli::DW_AT_ranges)?;
                Some(units.dwarf(die).die_ranges(unit, entry).ok()?.next().ok()??.begin)
            }
        }
    }

    /// Keeps an entry whose code was thrown away, if there is a function of its name: it may be one that was merged with another.
    fn note_merged(&mut self, die: Die, entry: Entry<'d>) {
        if self.merged.is_empty() {
            return;
        }
        let Ok(origins) = self.origins_from(die, entry) else { return };
        let name = self.name(&origins, &LINKAGE_NAMES);
        let name = if name.is_empty() { self.name(&origins, &[gimli::DW_AT_name]) } else { name };
        if let Some(entries) = self.merged.get_mut(name.as_str()) {
            entries.push(die);
        }
    }

    /// The function that starts there, or whose site ends there: GCC for arm64 begins its entries behind the NOPs.
    fn wanted_at(&self, start: u64) -> Option<usize> {
        let index = self.wanted.partition_point(|wanted| wanted.address <= start).checked_sub(1)?;
        let wanted = &self.wanted[index];
        let before = usize::try_from(start - wanted.address).ok()?;
        let is_its = before == 0 || wanted.code.get(..before).is_some_and(|code| is_site(self.machine, code));
        is_its.then_some(index)
    }

    fn agreed(&mut self, wanted: &Wanted<'_>, dies: &[Die]) -> Result<Function, Reason> {
        if is_clone(wanted.name, ".part") || is_clone(wanted.name, ".cold") {
            return Err(Reason::Part);
        }
        let (first, others) = dies.split_first().ok_or(Reason::NoDebugInfo)?;
        let (found, is_changed, places) = self.one(wanted, *first)?;
        for die in others {
            let (other, ..) = self.one(wanted, *die)?;
            if (other.prototype, &other.tags) != (found.prototype, &found.tags) {
                return Err(Reason::Folded);
            }
        }
        let names = std::iter::once(&wanted.name).chain(wanted.aliases);
        let merged: Vec<_> = names.flat_map(|name| self.merged.get(name)).flatten().copied().collect();
        let is_it = |types: &Types, function: &Function, symbol: &str| {
            symbol.split('.').next() == Some(types.str(function.name))
        };
        let mut has_shown = is_it(&self.converter.types, &found, wanted.name);
        for die in merged {
            // Where its parameters were is not known any more.
            let (other, ..) = self.one(wanted, die)?;
            if other.prototype != found.prototype {
                return Err(Reason::Folded);
            }
            has_shown |= is_it(&self.converter.types, &other, wanted.name);
        }
        // Of functions with the same code LLVM keeps the debug information of one, which may not be the one that is shown. In C a second
        // name is one that the source gave.
        let is_mangled = ["_R", "_Z"].iter().any(|start| wanted.name.starts_with(start));
        if is_mangled
            && !has_shown
            && wanted.aliases.iter().any(|alias| is_it(&self.converter.types, &found, alias))
        {
            return Err(Reason::Folded);
        }
        *(if is_changed { &mut self.report.changed } else { &mut self.report.as_written }) += 1;
        self.report.places += places;
        Ok(found)
    }

    /// The function that an entry describes, whether its signature was changed, and how many places are said.
    fn one(&mut self, wanted: &Wanted<'_>, die: Die) -> Result<(Function, bool, usize), Reason> {
        let units = self.converter.units;
        let origins = self.origins(die)?;
        let language = origins.last().map_or(Language::Other, |(die, _)| units.slot(*die).language);
        let returns = match self.first(&origins, gimli::DW_AT_type)? {
            Some(of) => self.converter.convert(of, false)?,
            None => VOID,
        };
        if self.converter.classes.contains_key(&self.converter.types.plain(returns)) {
            return Err(Reason::Type("class that may be returned in memory".into()));
        }
        let returns = self.converter.returned(returns);

        let (given, has_more) = self.parameters(&origins)?;
        let places = Places {
            units,
            machine: self.machine,
            function: die,
            start: wanted.address,
            code: wanted.code,
            is_frame_of_caller: is_frame_of_caller(units, die, &origins),
            has_registers_for_all: self.has_registers_for_all(returns, &given)?,
        };
        let (mut parameters, mut known, mut gone) = (Vec::new(), Vec::new(), Vec::new());
        for given in &given {
            let mut of = match self.first(&given.origins, gimli::DW_AT_type)? {
                Some(of) => self.converter.convert(of, false)?,
                None => return Err(Reason::Malformed("a parameter without a type".into())),
            };
            let place = given.own.as_ref().and_then(|own| places.of(own));
            match (self.converter.classes.get(&self.converter.types.plain(of)), place) {
                (None, place) => known.push(place),
                (Some(_), Some(Place::Behind(n))) => {
                    of = self.converter.types.add(Type::Pointer { to: of });
                    known.push(Some(Place::Pieces(Piece::Register(n), None)));
                }
                (Some(Class::ByReference), None) => {
                    of = self.converter.types.add(Type::Pointer { to: of });
                    known.push(None);
                }
                (Some(_), _) => return Err(Reason::Type("class that may be passed by reference".into())),
            }
            let name = self.name(&given.origins, &[gimli::DW_AT_name]);
            let name = self.converter.types.text(&name);
            parameters.push(Parameter { name, of });
            gone.push(given.own.as_ref().is_none_or(|own| !own.has_attr(gimli::DW_AT_location)));
        }
        let types: Vec<_> = parameters.iter().map(|parameter| parameter.of).collect();
        if has_more {
            parameters.push(Parameter { name: Text(0), of: VOID });
        }

        fits("parameters", parameters.len())?;

        let short = self.name(&origins, &[gimli::DW_AT_name]);
        let linkage = self.name(&origins, &LINKAGE_NAMES);
        let is_mangled = !linkage.is_empty() && linkage != short;
        let (abi, convention) = match language {
            Language::Rust if is_mangled => (Some("rust"), Some(Convention::Rust)),
            Language::Rust => (Some("rust-unknown"), None),
            Language::C | Language::Cpp => (None, Some(Convention::C)),
            Language::Assembly | Language::Other => (Some("unknown"), None),
        };
        let mut tags = Vec::new();
        if let Some(abi) = abi {
            tags.push((-1, self.converter.types.text(&format!("fgraph:abi={abi}"))));
        }
        let found = Found {
            wanted,
            origins: &origins,
            convention,
            returns,
            types: &types,
            known: &known,
            gone: &gone,
        };
        let mut call = self.call(&found);
        if language == Language::Rust && self.is_spread(&short, &types) {
            call.places = Some(known.clone());
        }
        // Also where nothing is known any more: with no types, registers would be shown that may hold nothing.
        if let Some(place) = call.returned {
            let text = match place {
                Where::Unknown => "fgraph:ret=none",
                Where::Given => "fgraph:ret=e0",
            };
            tags.push((-1, self.converter.types.text(text)));
        }
        let mut said = 0;
        for (index, (known, of)) in call.places.iter().flatten().zip(&types).enumerate() {
            let text = known.and_then(|place| place.text(self.split_of(*of)));
            said += usize::from(text.is_some());
            let text = format!("fgraph:loc={}", text.as_deref().unwrap_or("none"));
            tags.push((index as i32, self.converter.types.text(&text)));
        }
        let prototype = self.converter.types.add(Type::Prototype { returns, parameters });
        let is_global = origins.iter().any(|(_, entry)| flag(entry, gimli::DW_AT_external));
        let name = if linkage.is_empty() { short } else { linkage };
        let name = self.converter.types.text(&name);
        Ok((Function { name, is_global, prototype, tags }, call.is_changed, said))
    }

    /// How a function is called, as far as that is not what the convention says.
    fn call(&self, found: &Found<'_, 'd>) -> Call {
        let (wanted, known) = (found.wanted, found.known);
        let said =
            found.origins.iter().find_map(|(_, entry)| entry.attr_value(gimli::DW_AT_calling_convention));
        let is_said = matches!(said, Some(AttributeValue::CallingConvention(gimli::DW_CC_nocall)));
        let is_named = CLONES.iter().any(|clone| is_clone(wanted.name, clone));
        if is_said || is_named {
            // A clone for constant arguments still returns what it did.
            let is_only_constant = !is_said && !is_clone(wanted.name, ".isra");
            let returned = (!is_only_constant).then_some(Where::Unknown);
            return Call { is_changed: true, places: Some(known.to_vec()), returned };
        }
        let Some(convention) = found.convention else {
            let places = known.iter().any(Option::is_some).then(|| known.to_vec());
            return Call { is_changed: false, places, returned: None };
        };
        let in_memory = match returned(&self.converter, self.machine, convention, found.returns) {
            Some(returned) => returned == Returned::InMemory,
            None => return Call::default(),
        };
        let expected = |used| expected(&self.converter, self.machine, convention, used, found.types);
        let has_own_register = self.machine == Machine::Arm64;
        let places = expected(u8::from(in_memory && !has_own_register));
        let agrees = |places: &[Option<Place>]| {
            let both = known.iter().zip(places).filter_map(|(known, expected)| (*known).zip(*expected));
            both.fold((true, false), |(all, any), (known, expected)| {
                let agrees = !contradicts(known, expected);
                (all && agrees, any || agrees)
            })
        };
        let (agree, is_confirmed) = agrees(&places);
        // LLVM hands the address of the memory for the return value over as any other argument if it knows all callers. It is then no
        // longer in its own register (arm64), and is no longer given back (x86_64).
        let maker =
            found.origins.first().map_or(Maker::Other, |(die, _)| self.converter.units.slot(*die).maker);
        let may_be_plain = in_memory && wanted.is_local && maker != Maker::Gnu;
        if !agree {
            let shifted = expected(1);
            if may_be_plain && has_own_register && agrees(&shifted).0 {
                let places = known.iter().zip(shifted).map(|(known, expected)| known.or(expected)).collect();
                return Call { is_changed: false, places: Some(places), returned: Some(Where::Given) };
            }
            let returned = Some(Where::Unknown);
            return Call { is_changed: true, places: Some(known.to_vec()), returned };
        }
        let call = match (may_be_plain, has_own_register) {
            (true, false) => Call { returned: Some(Where::Given), ..Call::default() },
            (true, true) if !is_confirmed => {
                let places = (!known.is_empty()).then(|| known.to_vec());
                Call { is_changed: false, places, returned: Some(Where::Unknown) }
            }
            _ => Call::default(),
        };
        let is_optimised =
            known.iter().any(Option::is_some) || found.gone.contains(&true) || known.is_empty();
        if maker != Maker::SilentLlvm || !wanted.is_local || !is_optimised {
            return call;
        }
        // What has no place may have been removed, and so may what nobody uses of what is returned.
        let places = found.gone.contains(&true).then(|| {
            let all = known.iter().zip(&places).zip(found.gone);
            all.map(|((known, expected), is_gone)| if *is_gone { None } else { known.or(*expected) })
                .collect()
        });
        let returned = (found.returns != VOID).then_some(Where::Unknown);
        Call { is_changed: false, places: call.places.or(places), returned }
    }

    /// Whether no convention has a parameter of these on the stack.
    fn has_registers_for_all(&mut self, returns: TypeId, given: &[Given<'d>]) -> Result<bool, Reason> {
        let registers = match self.machine {
            Machine::X86_64 => 6,
            Machine::Arm64 => 8,
        };
        // One for the address of a return value that is in memory.
        let mut words = if self.converter.types.size(returns) > 8 { 1 } else { 0 };
        for given in given {
            let Some(of) = self.first(&given.origins, gimli::DW_AT_type)? else { return Ok(false) };
            let of = self.converter.convert(of, false)?;
            let size = self.converter.types.size(of);
            // A large structure of C stands on the stack of x86_64.
            if self.machine == Machine::X86_64 && size > 16 {
                return Ok(false);
            }
            words += if size > 8 { 2 } else { 1 };
        }
        Ok(words <= registers)
    }

    /// Whether a function of Rust gets the fields of its last parameter as so many arguments: `Fn::call` and the like.
    fn is_spread(&self, name: &str, types: &[TypeId]) -> bool {
        let Some(last) = types.last().filter(|_| ["call", "call_mut", "call_once"].contains(&name)) else {
            return false;
        };
        let types = &self.converter.types;
        matches!(types.get(*last), Type::Composite(last) if types.str(last.identity.name).starts_with('('))
    }

    /// Where the second piece of a value begins, for who reads the tags.
    fn split_of(&self, of: TypeId) -> u64 {
        match self.converter.repr(of) {
            Repr::Pair(_, offset, _) if offset <= 8 => offset.into(),
            _ => 8,
        }
    }

    /// The parameters in the order of the source, and whether more can follow, as in `printf`.
    fn parameters(&self, origins: &Origins<'d>) -> Result<(Vec<Given<'d>>, bool), Reason> {
        let units = self.converter.units;
        let (own, own_more) = self.list(origins.first())?;
        let mut by_origin = HashMap::new();
        let mut is_made = false;
        for (die, entry) in &own {
            match units.refers(*die, entry, gimli::DW_AT_abstract_origin)? {
                Some(origin) => {
                    by_origin.insert(origin, entry.clone());
                    is_made = true;
                }
                None => {
                    by_origin.insert(*die, entry.clone());
                }
            }
        }
        let (mut list, mut has_more) = (own, own_more);
        // Without parameters of its own it may still have those of its origin.
        if is_made || list.is_empty() {
            for origin in origins.iter().skip(1) {
                let (origins_list, more) = self.list(Some(origin))?;
                has_more |= more;
                if !origins_list.is_empty() {
                    list = origins_list;
                    break;
                }
            }
        }
        let given = list.into_iter().map(|(die, entry)| {
            let own = by_origin.get(&die).cloned();
            Ok(Given { own, origins: self.origins_from(die, entry)? })
        });
        Ok((given.collect::<Result<_, Reason>>()?, has_more))
    }

    fn list(&self, of: Option<&(Die, Entry<'d>)>) -> Result<(Origins<'d>, bool), Reason> {
        let (mut list, mut has_more) = (Vec::new(), false);
        let children = of.map_or(Ok(Vec::new()), |(die, _)| self.converter.units.children(*die))?;
        for (die, entry) in children {
            match entry.tag() {
                gimli::DW_TAG_formal_parameter => list.push((die, entry)),
                gimli::DW_TAG_unspecified_parameters => has_more = true,
                gimli::DW_TAG_GNU_formal_parameter_pack => {
                    return Err(Reason::Type("parameters without a number (pack)".into()));
                }
                _ => {}
            }
        }
        Ok((list, has_more))
    }

    fn origins(&self, die: Die) -> Result<Origins<'d>, Reason> {
        self.origins_from(die, self.converter.units.entry(die)?)
    }

    fn origins_from(&self, die: Die, entry: Entry<'d>) -> Result<Origins<'d>, Reason> {
        let units = self.converter.units;
        let mut origins = vec![(die, entry)];
        while let Some((die, entry)) = origins.last() {
            let next = match units.refers(*die, entry, gimli::DW_AT_abstract_origin)? {
                Some(next) => Some(next),
                None => units.refers(*die, entry, gimli::DW_AT_specification)?,
            };
            let Some(next) = next else { break };
            if origins.len() == MAX_ORIGINS {
                return Err(Reason::Malformed("origins without an end".into()));
            }
            origins.push((next, units.entry(next)?));
        }
        Ok(origins)
    }

    /// What the first entry that has such a reference refers to.
    fn first(&self, origins: &Origins<'d>, name: DwAt) -> Result<Option<Die>, Reason> {
        for (die, entry) in origins {
            if let Some(found) = self.converter.units.refers(*die, entry, name)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// The first text of these attributes.
    fn name(&self, origins: &Origins<'d>, names: &[DwAt]) -> String {
        let texts = origins.iter().flat_map(|(die, entry)| names.iter().map(move |name| (die, entry, *name)));
        texts
            .into_iter()
            .find_map(|(die, entry, name)| self.converter.units.text(*die, entry, name))
            .unwrap_or_default()
    }
}

/// What an entry says of a function.
struct Found<'f, 'd> {
    wanted: &'f Wanted<'f>,
    origins: &'f Origins<'d>,
    convention: Option<Convention>,
    returns: TypeId,
    types: &'f [TypeId],
    known: &'f [Option<Place>],
    /// Parameters that are nowhere in the whole of the function.
    gone: &'f [bool],
}

/// How a function is called, where that is not what the convention says.
#[derive(Default)]
struct Call {
    /// The signature is not that of the source.
    is_changed: bool,
    /// Where the parameters are, and nowhere else.
    places: Option<Vec<Option<Place>>>,
    returned: Option<Where>,
}

/// Where a return value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Where {
    Unknown,
    /// In the memory whose address was the first argument.
    Given,
}

/// Whether linkers give such an address to what they throw away.
fn is_thrown_away(start: u64) -> bool {
    start == 0 || start >= u64::MAX - 1
}

/// Whether a symbol is that of such a clone: `.isra` in `f.isra.0`.
fn is_clone(symbol: &str, what: &str) -> bool {
    let mut rest = symbol;
    while let Some(at) = rest.find(what) {
        rest = &rest[at + what.len()..];
        if rest.is_empty() || rest.starts_with('.') {
            return true;
        }
    }
    false
}

/// Whether the function's frame is counted from where the caller's ends.
fn is_frame_of_caller(units: &Units<'_>, die: Die, origins: &Origins<'_>) -> bool {
    let base = origins.first().and_then(|(_, entry)| entry.attr_value(gimli::DW_AT_frame_base));
    let Some(AttributeValue::Exprloc(base)) = base else { return false };
    let mut operations = base.operations(units.slot(die).unit.encoding());
    matches!((operations.next(), operations.next()), (Ok(Some(gimli::Operation::CallFrameCFA)), Ok(None)))
}
