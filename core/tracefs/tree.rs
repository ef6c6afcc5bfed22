//! Which files and directories there are, and what each is for.

use core::fmt;

use super::TraceOption;
use super::instances::InstanceName;

/// A directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dir {
    Root,
    Options,
    PerCpu,
    Cpu(usize),
    TraceStat,
    Instances,
}

/// A file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum File {
    Top(Top),
    Option(TraceOption),
    Cpu(PerCpu, usize),
    /// `trace_stat/functionN`
    Stat(usize),
}

/// Either.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Node {
    Dir(Dir),
    File(File),
}

/// A file of the top directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Top {
    Available,
    AvailableAddrs,
    AvailableTracers,
    BufferSize,
    BufferTotal,
    CurrentTracer,
    Enabled,
    ErrorLog,
    ProfileEnabled,
    MaxDepth,
    Readme,
    SavedCmdlines,
    Filter,
    Notrace,
    GraphFunction,
    GraphNotrace,
    Pid,
    NotracePid,
    Snapshot,
    Touched,
    Trace,
    Clock,
    Marker,
    Options,
    Pipe,
    Cpumask,
    On,
    Thresh,
}

/// A file of a CPU's directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PerCpu {
    BufferSize,
    Snapshot,
    Stats,
    Trace,
    Pipe,
}

impl Top {
    /// Whether instances have it, as on Linux; what is not among them is about the whole kernel.
    fn is_in_instances(self) -> bool {
        !matches!(
            self,
            Self::Available
                | Self::AvailableAddrs
                | Self::Enabled
                | Self::GraphFunction
                | Self::GraphNotrace
                | Self::MaxDepth
                | Self::ProfileEnabled
                | Self::Readme
                | Self::SavedCmdlines
                | Self::Thresh
                | Self::Touched
        )
    }
}

impl Dir {
    fn is_in_instances(self) -> bool {
        !matches!(self, Self::Instances | Self::TraceStat)
    }
}

/// What can be done with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    Write,
    Both,
}

impl Access {
    pub(super) fn reads(self) -> bool {
        self != Self::Write
    }

    pub(super) fn writes(self) -> bool {
        self != Self::Read
    }
}

/// A file of the top directory, and what `README` says of it.
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) top: Top,
    access: Access,
    pub(super) help: &'static str,
}

const fn row(name: &'static str, top: Top, access: Access, help: &'static str) -> Row {
    Row { name, top, access, help }
}

/// The files of the top directory.
pub(super) const ROWS: [Row; 28] = {
    use Access::{Both, Read, Write};
    [
        row("README", Top::Readme, Read, "this text"),
        row("available_filter_functions", Top::Available, Read, "the functions that can be traced"),
        row("available_filter_functions_addrs", Top::AvailableAddrs, Read, "the same with addresses"),
        row("available_tracers", Top::AvailableTracers, Read, "what current_tracer can be"),
        row("buffer_size_kb", Top::BufferSize, Both, "KiB of each CPU's buffer"),
        row("buffer_total_size_kb", Top::BufferTotal, Read, "KiB of all buffers"),
        row("current_tracer", Top::CurrentTracer, Both, "what is recorded"),
        row("enabled_functions", Top::Enabled, Read, "the functions that are patched now, and for whom"),
        row("error_log", Top::ErrorLog, Both, "what was refused and why; any write empties it"),
        row(
            "function_profile_enabled",
            Top::ProfileEnabled,
            Both,
            "1 counts calls and times into trace_stat",
        ),
        row("max_graph_depth", Top::MaxDepth, Both, "how many calls deep function_graph looks; 0 for all"),
        row("saved_cmdlines", Top::SavedCmdlines, Read, "numbers and names of tasks"),
        row("set_ftrace_filter", Top::Filter, Both, "functions to trace"),
        row("set_ftrace_notrace", Top::Notrace, Both, "functions not to trace"),
        row("set_ftrace_notrace_pid", Top::NotracePid, Both, "tasks whose calls are left out"),
        row("set_ftrace_pid", Top::Pid, Both, "tasks whose calls are traced, and no others"),
        row("set_graph_function", Top::GraphFunction, Both, "function_graph shows calls inside these only"),
        row("set_graph_notrace", Top::GraphNotrace, Both, "function_graph leaves out calls inside these"),
        row("snapshot", Top::Snapshot, Both, "the trace at one moment; 1 takes it, 0 frees it, 2 empties it"),
        row("touched_functions", Top::Touched, Read, "the functions that were ever patched"),
        row("trace", Top::Trace, Both, "what was recorded; a truncating write empties it"),
        row("trace_clock", Top::Clock, Both, "the clocks, the one in use in brackets"),
        row("trace_marker", Top::Marker, Write, "lines to record among the events"),
        row("trace_options", Top::Options, Both, "all options; a name switches on, `no` before it off"),
        row("trace_pipe", Top::Pipe, Read, "what is recorded, as it comes; what is read is gone"),
        row("tracing_cpumask", Top::Cpumask, Both, "the CPUs on which anything is recorded"),
        row("tracing_on", Top::On, Both, "0 stops recording, 1 goes on"),
        row("tracing_thresh", Top::Thresh, Both, "function_graph leaves out calls shorter than so many us"),
    ]
};

const PER_CPU: [(&str, PerCpu); 5] = [
    ("buffer_size_kb", PerCpu::BufferSize),
    ("snapshot", PerCpu::Snapshot),
    ("stats", PerCpu::Stats),
    ("trace", PerCpu::Trace),
    ("trace_pipe", PerCpu::Pipe),
];

const DIRS: [(&str, Dir); 4] = [
    (INSTANCES, Dir::Instances),
    ("options", Dir::Options),
    ("per_cpu", Dir::PerCpu),
    ("trace_stat", Dir::TraceStat),
];

pub(super) const INSTANCES: &str = "instances";
const CPU: &str = "cpu";
const STAT: &str = "function";

/// One name in a directory.
#[expect(clippy::large_enum_variant, reason = "there is one at a time, and nothing to put a large one into")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Name {
    Plain(&'static str),
    Numbered(&'static str, usize),
    Given(InstanceName),
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(name) => f.write_str(name),
            Self::Numbered(name, number) => write!(f, "{name}{number}"),
            Self::Given(name) => f.write_str(name.as_str()),
        }
    }
}

/// The tree, with what decides how large it is. That of an instance begins at the instance; which instances there are it does not know.
pub(super) struct Tree<'a> {
    pub(super) is_top: bool,
    pub(super) cpus: usize,
    pub(super) has: &'a dyn Fn(TraceOption) -> bool,
}

impl Tree<'_> {
    /// What is at a path. Slashes at both ends and several in a row do not matter.
    pub(super) fn find(&self, path: &str) -> Option<Node> {
        let mut node = Node::Dir(Dir::Root);
        for part in path.split('/').filter(|part| !part.is_empty() && *part != ".") {
            let Node::Dir(dir) = node else { return None };
            node = self.child(dir, part)?;
        }
        // A slash behind it asks for a directory.
        match node {
            Node::File(_) if path.ends_with('/') => None,
            node => Some(node),
        }
    }

    /// The files of the top directory.
    fn rows(&self) -> impl Iterator<Item = &'static Row> {
        ROWS.iter().filter(|row| self.is_top || row.top.is_in_instances())
    }

    /// The directories of the top directory.
    fn dirs(&self) -> impl Iterator<Item = &'static (&'static str, Dir)> {
        DIRS.iter().filter(|(_, dir)| self.is_top || dir.is_in_instances())
    }

    fn child(&self, dir: Dir, name: &str) -> Option<Node> {
        match dir {
            Dir::Root => {
                let dir = self.dirs().find(|(dir, _)| *dir == name).map(|(_, dir)| Node::Dir(*dir));
                let top = || self.rows().find(|row| row.name == name);
                dir.or_else(|| top().map(|row| Node::File(File::Top(row.top))))
            }
            Dir::Options => {
                let option = TraceOption::by_name(name).filter(|option| (self.has)(*option));
                option.map(|option| Node::File(File::Option(option)))
            }
            Dir::PerCpu => numbered(name, CPU, self.cpus).map(|cpu| Node::Dir(Dir::Cpu(cpu))),
            Dir::Cpu(cpu) => {
                let file = PER_CPU.iter().find(|(file, _)| *file == name);
                file.map(|(_, file)| Node::File(File::Cpu(*file, cpu)))
            }
            Dir::TraceStat => numbered(name, STAT, self.cpus).map(|cpu| Node::File(File::Stat(cpu))),
            Dir::Instances => None,
        }
    }

    /// What a directory has.
    pub(super) fn list(&self, dir: Dir, each: &mut dyn FnMut(Name, Node)) {
        match dir {
            Dir::Root => {
                self.rows().for_each(|row| each(Name::Plain(row.name), Node::File(File::Top(row.top))));
                self.dirs().for_each(|(name, dir)| each(Name::Plain(name), Node::Dir(*dir)));
            }
            Dir::Options => {
                for option in TraceOption::ALL.into_iter().filter(|option| (self.has)(*option)) {
                    each(Name::Plain(option.name()), Node::File(File::Option(option)));
                }
            }
            Dir::PerCpu => {
                (0..self.cpus).for_each(|cpu| each(Name::Numbered(CPU, cpu), Node::Dir(Dir::Cpu(cpu))));
            }
            Dir::Cpu(cpu) => {
                let files = PER_CPU.iter();
                files.for_each(|(name, file)| each(Name::Plain(name), Node::File(File::Cpu(*file, cpu))));
            }
            Dir::TraceStat => {
                (0..self.cpus).for_each(|cpu| each(Name::Numbered(STAT, cpu), Node::File(File::Stat(cpu))));
            }
            Dir::Instances => {}
        }
    }
}

fn numbered(name: &str, stem: &str, count: usize) -> Option<usize> {
    let digits = name.strip_prefix(stem)?;
    let is_plain = digits.bytes().all(|byte| byte.is_ascii_digit());
    let number = digits.parse().ok().filter(|number| is_plain && *number < count)?;
    // One name for each.
    (digits == "0" || !digits.starts_with('0')).then_some(number)
}

impl File {
    pub(super) fn access(self) -> Access {
        match self {
            Self::Top(top) => ROWS.iter().find(|row| row.top == top).map_or(Access::Read, |row| row.access),
            Self::Option(_) => Access::Both,
            Self::Cpu(PerCpu::BufferSize | PerCpu::Snapshot | PerCpu::Trace, _) => Access::Both,
            Self::Cpu(PerCpu::Stats | PerCpu::Pipe, _) | Self::Stat(_) => Access::Read,
        }
    }
}

/// Its path.
impl fmt::Display for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Top(top) => f.write_str(ROWS.iter().find(|row| row.top == top).map_or("", |row| row.name)),
            Self::Option(option) => write!(f, "options/{}", option.name()),
            Self::Cpu(file, cpu) => {
                let name = PER_CPU.iter().find(|(_, other)| *other == file).map_or("", |(name, _)| name);
                write!(f, "per_cpu/{CPU}{cpu}/{name}")
            }
            Self::Stat(cpu) => write!(f, "trace_stat/{STAT}{cpu}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;
    use std::vec::Vec;

    #[test]
    fn what_is_listed_is_found_under_its_path_and_nothing_else_is() {
        let has = |option| option != TraceOption::FuncArgs;
        let tree = Tree { is_top: true, cpus: 12, has: &has };
        let mut dirs = vec![(std::string::String::new(), Dir::Root)];
        let mut files = 0;
        while let Some((path, dir)) = dirs.pop() {
            assert_eq!(tree.find(&path), Some(Node::Dir(dir)));
            tree.list(dir, &mut |name, node| {
                let path = if path.is_empty() { name.to_string() } else { std::format!("{path}/{name}") };
                assert_eq!(tree.find(&path), Some(node), "{path}");
                assert_eq!(tree.find(&std::format!("//{path}")), Some(node), "{path}");
                let with_slash = tree.find(&std::format!("{path}/"));
                match node {
                    Node::Dir(dir) => {
                        assert_eq!(with_slash, Some(node));
                        dirs.push((path, dir));
                    }
                    Node::File(file) => {
                        assert_eq!(file.to_string(), path);
                        assert_eq!(with_slash, None);
                        assert_eq!(tree.find(&std::format!("{path}/x")), None);
                        assert!(file.access().reads() || file.access().writes());
                        files += 1;
                    }
                }
            });
        }
        assert_eq!(files, ROWS.len() + TraceOption::ALL.len() - 1 + 12 * PER_CPU.len() + 12);
        for path in
            ["nothing", "per_cpu/cpu12", "per_cpu/cpu01", "per_cpu/cpu+1", "per_cpu/cpu", "instances/x"]
        {
            assert_eq!(tree.find(path), None, "{path}");
        }
        assert_eq!(tree.find("options/func-args"), None);
        assert_eq!(tree.find("trace_stat/function99999999999999999999"), None);
    }

    #[test]
    fn the_files_are_sorted_as_people_list_them() {
        let names: Vec<&str> = ROWS.iter().map(|row| row.name).collect();
        assert!(names.is_sorted());
        assert!(PER_CPU.is_sorted_by_key(|(name, _)| name) && DIRS.is_sorted_by_key(|(name, _)| name));
    }
}
