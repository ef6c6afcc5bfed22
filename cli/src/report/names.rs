//! What functions, tasks and marks are called.

use std::collections::HashMap;

use fgraph::symbols::Demangled;
use fgraph::text::{COMM_LEN, Task};
use fgraph::wire::TEXT_MARK;

use super::event::{Caller, Func, Thread};
use crate::image::Image;

/// A function.
#[derive(Clone, Debug, Default)]
pub struct Function {
    /// What it is called, as people read it.
    pub name: Box<str>,
    /// The name as the symbol table has it.
    pub raw: Box<str>,
    /// The module it is in; empty for the kernel itself.
    pub module: Box<str>,
    /// Its address in the running kernel, 0 if it is not known.
    pub addr: u64,
    /// Its bytes, 0 if that is not known.
    pub size: u64,
    /// If an interrupt begins with it.
    pub irq_entry: bool,
    /// If it returns nothing.
    pub void: bool,
}

/// All names. Grows while a trace is read.
#[derive(Debug, Default)]
pub struct Names {
    functions: Vec<Function>,
    /// By number in the trace.
    by_index: HashMap<u32, Func>,
    /// By name, where names are all there is.
    by_name: HashMap<Box<str>, Func>,
    /// Functions by address, made when it is first asked for.
    by_addr: Vec<(u64, Func)>,
    /// Texts of places in the code.
    places: Vec<Box<str>>,
    place_ids: HashMap<Box<str>, u32>,
    tasks: HashMap<u32, [u8; COMM_LEN]>,
    marks: HashMap<u32, Box<str>>,
}

impl Names {
    /// The function with a number of the trace, made up if it has no name.
    pub fn by_index(&mut self, index: u32) -> Func {
        if let Some(func) = self.by_index.get(&index) {
            return *func;
        }
        self.define(index, Function { name: format!("func#{index}").into(), ..Function::default() })
    }

    /// Gives the function with a number of the trace its name. Without one, it gets one that says its address or its number.
    pub fn define(&mut self, index: u32, mut function: Function) -> Func {
        if !function.raw.is_empty() {
            function.name = Demangled(&function.raw).to_string().into();
        } else if function.name.is_empty() && function.addr != 0 {
            function.name = format!("{:#x}", function.addr).into();
        } else if function.name.is_empty() {
            function.name = format!("func#{index}").into();
        }
        self.by_addr.clear();
        let next = self.functions.len() as Func;
        let func = *self.by_index.entry(index).or_insert(next);
        match self.functions.get_mut(func as usize) {
            Some(old) => *old = function,
            None => self.functions.push(function),
        }
        func
    }

    /// The function of that name.
    pub fn by_name(&mut self, name: &str) -> Func {
        if let Some(func) = self.by_name.get(name) {
            return *func;
        }
        let func = self.functions.len() as Func;
        self.functions.push(Function { name: name.into(), raw: name.into(), ..Function::default() });
        self.by_name.insert(name.into(), func);
        func
    }

    /// A place in the code that the trace names.
    pub fn place(&mut self, text: &str) -> Caller {
        if let Some(id) = self.place_ids.get(text) {
            return Caller::Place(*id);
        }
        let id = self.places.len() as u32;
        self.places.push(text.into());
        self.place_ids.insert(text.into(), id);
        Caller::Place(id)
    }

    /// Says that an interrupt begins with a function.
    pub fn set_irq_entry(&mut self, func: Func) {
        if let Some(function) = self.functions.get_mut(func as usize) {
            function.irq_entry = true;
        }
    }

    /// Names a task.
    pub fn set_task(&mut self, task: u32, comm: [u8; COMM_LEN]) {
        self.tasks.insert(task, comm);
    }

    /// Names a mark.
    pub fn set_mark(&mut self, id: u32, name: &str) {
        self.marks.insert(id, name.into());
    }

    /// What a function is called.
    pub fn function(&self, func: Func) -> &str {
        self.functions.get(func as usize).map_or("?", |function| &function.name)
    }

    /// All that is known of a function.
    pub fn get(&self, func: Func) -> Option<&Function> {
        self.functions.get(func as usize)
    }

    /// All functions.
    pub fn functions(&self) -> &[Function] {
        &self.functions
    }

    /// All tasks that have a name, by number.
    pub fn tasks(&self) -> Vec<(u32, String)> {
        let mut all: Vec<_> = self.tasks.keys().map(|task| (*task, self.comm(*task))).collect();
        all.sort();
        all
    }

    /// A task for the printer.
    pub fn task(&self, task: u32) -> Task {
        let comm = self.tasks.get(&task).copied();
        comm.map_or_else(
            || Task::new(task, if task == 0 { "" } else { "<...>" }),
            |comm| Task { pid: task, comm },
        )
    }

    /// A task's name as text.
    pub fn comm(&self, task: u32) -> String {
        let comm = self.task(task).comm;
        let len = comm.iter().position(|byte| *byte == 0).unwrap_or(COMM_LEN);
        let name = String::from_utf8_lossy(comm.get(..len).unwrap_or(&comm)).into_owned();
        if name.is_empty() && task == 0 { "<idle>".into() } else { name }
    }

    /// What a thread is called: `name-number`, and the CPU of an idle one.
    pub fn thread(&self, thread: Thread) -> String {
        match thread.task {
            0 => format!("{}/{}", self.comm(0), thread.cpu),
            task => format!("{}-{task}", self.comm(task)),
        }
    }

    /// What a mark says.
    pub fn mark(&self, id: u32, data: &[u64]) -> String {
        if id == TEXT_MARK && !self.marks.contains_key(&id) {
            // Each piece of a text has zeros behind it.
            let bytes = data.iter().flat_map(|word| word.to_le_bytes()).filter(|byte| *byte != 0);
            return String::from_utf8_lossy(&bytes.collect::<Vec<u8>>()).into_owned();
        }
        let mut text = self.marks.get(&id).map_or_else(|| format!("mark {id}"), |name| name.to_string());
        for (i, word) in data.iter().enumerate() {
            text += &format!("{}{word:#x}", if i == 0 { ": " } else { " " });
        }
        text
    }

    /// The function that an address of code lies in, or the address.
    pub fn code(&self, addr: u64) -> String {
        self.at(addr).map_or_else(|| format!("{addr:#x}"), |(function, _)| function.name.to_string())
    }

    /// A stack in one line: the function, and behind it who called it.
    pub fn stack(&self, addrs: &[u64], cut: bool) -> String {
        let mut parts: Vec<String> = addrs.iter().map(|addr| self.code(*addr)).collect();
        parts.extend(cut.then(|| "...".into()));
        parts.join(" <- ")
    }

    /// Makes [`caller`](Self::caller) find functions by their addresses.
    pub fn index_addresses(&mut self) {
        let known = self.functions.iter().zip(0..).filter(|(function, _)| function.addr != 0);
        self.by_addr = known.map(|(function, func)| (function.addr, func)).collect();
        self.by_addr.sort_unstable();
    }

    /// The function that has an address, and how far in it that is.
    fn at(&self, addr: u64) -> Option<(&Function, u64)> {
        let after = self.by_addr.partition_point(|(start, _)| *start <= addr);
        let (start, func) = self.by_addr.get(after.checked_sub(1)?)?;
        let function = self.functions.get(*func as usize)?;
        (function.size == 0 || addr - start < function.size).then_some((function, addr - start))
    }

    /// A place in the code: `name+0x1c/0x80`, without the size where it is not known.
    pub fn caller(&self, caller: Caller) -> String {
        match caller {
            Caller::Place(id) => {
                self.places.get(id as usize).map_or_else(|| "?".into(), |text| text.to_string())
            }
            Caller::Addr(addr) => match self.at(addr) {
                None => format!("{addr:#x}"),
                Some((function, offset)) if function.size == 0 => format!("{}+{offset:#x}", function.name),
                Some((function, offset)) => format!("{}+{offset:#x}/{:#x}", function.name, function.size),
            },
        }
    }

    /// Takes names, sizes and what else is missing from the kernel's image. Functions are found by their addresses; those that the
    /// trace says nothing of, by their place in the site table.
    pub fn add_kernel(&mut self, image: &Image<'_>, sites: &[u64], slide: u64) {
        let find = |addr: u64| {
            let after = image.functions.partition_point(|function| function.at.offset <= addr);
            let last = image.functions.get(after.checked_sub(1)?)?;
            let first = image.functions.partition_point(|function| function.at.offset < last.at.offset);
            image.functions.get(first).filter(|function| {
                // A site stands a few bytes behind the start, or before it.
                addr - function.at.offset < function.size.max(16)
            })
        };
        for (index, site) in (0..).zip(sites) {
            if !self.by_index.contains_key(&index) {
                self.define(index, Function { addr: site.wrapping_add(slide), ..Function::default() });
            }
        }
        for function in &mut self.functions {
            let linked = function.addr.wrapping_sub(slide);
            let Some(found) = find(linked).filter(|_| function.addr != 0) else { continue };
            if function.raw.is_empty() {
                function.raw = found.name.into();
                function.name = Demangled(found.name).to_string().into();
                function.addr = found.at.offset.wrapping_add(slide);
            }
            function.size = found.size;
        }
        self.index_addresses();
    }
}
