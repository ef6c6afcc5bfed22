//! What happened, as every source tells it and every format is told it: one event after another, in the order of their time on each
//! CPU.

/// A function, as an index of [`Names`](super::names::Names).
pub type Func = u32;

/// Values that a call had.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Args {
    /// They were not recorded.
    #[default]
    None,
    /// Words.
    Words(Box<[usize]>),
    /// Text, as the trace has it.
    Text(Box<str>),
}

/// Where a call was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// An address.
    Addr(u64),
    /// A text of [`Names::places`](super::names::Names), as the trace has it.
    Place(u32),
}

/// A call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The function.
    pub func: Func,
    /// How many calls of the task are around it.
    pub depth: u32,
    /// When it was entered, in nanoseconds.
    pub start: u64,
    /// When it returned; `None` if that is not known, or not yet.
    pub end: Option<u64>,
    /// What it returned.
    pub retval: Option<u64>,
    /// The second register of that.
    pub retval2: Option<u64>,
    /// The first bytes of what it returned in memory; none if they were not recorded.
    pub memory: Box<[u8]>,
    /// How many calls its task could not follow so far.
    pub overrun: u32,
    /// Where it returns to.
    pub caller: Option<Caller>,
    /// What it was called with.
    pub args: Args,
    /// Whether it returned an error, if its type is known to tell.
    pub failed: Option<bool>,
    /// Nanoseconds of it in which nothing that it called was running. Set when it returns.
    pub self_ns: u64,
}

impl Call {
    /// A call of which only this is known.
    pub fn new(func: Func, depth: u32, start: u64, end: Option<u64>) -> Self {
        Self {
            func,
            depth,
            start,
            end,
            retval: None,
            retval2: None,
            memory: Box::default(),
            overrun: 0,
            caller: None,
            args: Args::None,
            failed: None,
            self_ns: 0,
        }
    }

    /// How long it took, if it returned.
    pub fn duration(&self) -> Option<u64> {
        self.end.map(|end| end.saturating_sub(self.start))
    }

    /// Whether it returned an error: by its type, or else by the number alone.
    pub fn has_failed(&self) -> bool {
        self.failed.unwrap_or_else(|| self.error().is_some())
    }

    /// The registers of its return value that were recorded.
    pub fn registers(&self) -> Vec<usize> {
        let second = self.retval.and(self.retval2);
        self.retval.into_iter().chain(second).map(|word| word as usize).collect()
    }

    /// The error number that it returned, as C and Linux have them: -1 to -4095, in 64 bits or in the lower 32 alone.
    pub fn error(&self) -> Option<i64> {
        let value = self.retval?;
        let value = u32::try_from(value).map_or(value as i64, |low| i64::from(low as i32));
        (-4095..0).contains(&value).then_some(value)
    }
}

/// What an [`Event`] tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// A call begins.
    Enter(Call),
    /// A call returns.
    Leave(Call),
    /// A call begins, and its return is what comes next on this CPU.
    Leaf(Call),
    /// A function was hit, of which only the entry is traced.
    Hit {
        /// The function.
        func: Func,
        /// Where it was called.
        caller: Option<Caller>,
    },
    /// Something that a user recorded.
    Mark {
        /// What, in the user's numbering.
        id: u32,
        /// What was recorded with it.
        data: Box<[u64]>,
    },
    /// Who called a function.
    Stack {
        /// The function, where it was called, where that was called, and so on.
        addrs: Box<[u64]>,
        /// Whether there were more.
        cut: bool,
    },
    /// Text between calls.
    Note(Box<str>),
    /// So many records are missing here; 0 if nobody knows.
    Lost(u64),
}

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The CPU in whose buffer it was.
    pub cpu: u32,
    /// When, in nanoseconds.
    pub time: u64,
    /// The task that ran.
    pub task: u32,
    /// What it was.
    pub what: What,
}

impl Event {
    /// Who runs: every CPU has an idle task of its own, all with number 0.
    pub fn thread(&self) -> Thread {
        Thread { task: self.task, cpu: if self.task == 0 { self.cpu } else { 0 } }
    }

    /// The same, to say more of it.
    pub fn call_mut(&mut self) -> Option<&mut Call> {
        match &mut self.what {
            What::Enter(call) | What::Leave(call) | What::Leaf(call) => Some(call),
            _ => None,
        }
    }

    /// The call that it is about.
    pub fn call(&self) -> Option<&Call> {
        match &self.what {
            What::Enter(call) | What::Leave(call) | What::Leaf(call) => Some(call),
            _ => None,
        }
    }
}

/// A task, the idle tasks told apart by their CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Thread {
    /// The task's number.
    pub task: u32,
    /// The CPU of an idle task, else 0.
    pub cpu: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_told_from_other_values() {
        let error = |value| Call { retval: Some(value), ..Call::new(0, 0, 0, None) }.error();
        assert_eq!(error(-22_i64 as u64), Some(-22));
        assert_eq!(error(u64::from(-4095_i32 as u32)), Some(-4095));
        for value in [0, 1, -4096_i64 as u64, u64::from(-4096_i32 as u32), u64::from(u32::MAX) + 1, 1 << 63] {
            assert_eq!(error(value), None, "{value:#x}");
        }
        assert_eq!(Call::new(0, 0, 0, None).error(), None);
    }
}
