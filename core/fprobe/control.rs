//! Probes come and go. Under the lock, in task context.

use super::{Fprobe, FprobeError, Fprobes, Kind, MAX_FPROBE_WORDS, MAX_FPROBES};
use crate::addr::FuncAddr;
use crate::bits::ones;
use crate::engine::{Engine, Error, SetChange, WhichSet};
use crate::machine::Machine;
use crate::platform::Platform;
use crate::regs::Regs;
use crate::sync::Ordering;

/// Functions that are taken out of a filter at once.
const BATCH: usize = 64;

impl<R: Regs> Fprobes<R> {
    /// Registers a probe with an engine, always the same, and patches the functions it wants. Task context.
    ///
    /// # Errors
    /// Nothing is changed; see [`FprobeError`]. A function that cannot be traced refuses the whole probe.
    pub fn register<P: Platform, M: Machine<Regs = R>>(
        &'static self,
        engine: &Engine<P, M>,
        probe: &'static Fprobe<R>,
    ) -> Result<(), FprobeError> {
        if probe.funcs.is_empty() {
            return Err(FprobeError::NoFunctions);
        }
        if probe.data_words > MAX_FPROBE_WORDS {
            return Err(FprobeError::TooMuchData { words: probe.data_words, max: MAX_FPROBE_WORDS });
        }
        // Handlers are looked up by entry, so nothing else will do. The engine looks again, under its own lock.
        let not_an_entry =
            |func: &&FuncAddr| engine.location(func.get()).is_some_and(|(entry, _)| entry != **func);
        if let Some(func) = probe.funcs.iter().find(not_an_entry) {
            return Err(FprobeError::NotAnEntry { func: *func });
        }
        let mut control = self.control.lock();
        if self.place_of(probe).is_some() {
            return Err(FprobeError::AlreadyRegistered);
        }
        let taken = self.masks.iter().fold(0, |taken, mask| taken | mask.load(Ordering::Relaxed));
        let place = (!taken).trailing_zeros() as usize;
        let free = self.places.get(place).ok_or(FprobeError::TooManyProbes { max: MAX_FPROBES })?;

        self.entries.owner.set(self);
        self.exits.owner.set(self);
        *control += 1;
        free.stamp.store(*control, Ordering::Relaxed);
        free.probe.store(core::ptr::from_ref(probe).cast_mut(), Ordering::Release);
        let kind = probe.kind();
        let before = self.mask(kind).fetch_or(1 << place, Ordering::Release);
        // Before the text, so that no call is missed that comes through it.
        let added = self.add(engine, kind, probe.funcs, before == 0);
        if added.is_err() {
            self.withdraw(engine, kind, place);
        }
        added.map_err(FprobeError::Engine)
    }

    /// Takes a probe out. When this returns, no handler of it is under way or will come; of calls that are under way the exits are not
    /// told any more. Functions that no other probe wants are not traced for it any more. Task context, not from a handler.
    ///
    /// # Errors
    /// [`FprobeError::NotRegistered`]; and what goes wrong with the text, but the probe is out even so.
    pub fn unregister<P: Platform, M: Machine<Regs = R>>(
        &'static self,
        engine: &Engine<P, M>,
        probe: &'static Fprobe<R>,
    ) -> Result<(), FprobeError> {
        let _control = self.control.lock();
        let (place, kind) = (self.place_of(probe).ok_or(FprobeError::NotRegistered)?, probe.kind());
        let left = self.mask(kind).fetch_and(!(1 << place), Ordering::Release) & !(1 << place);
        let removed = if left == 0 {
            self.unregister_user(engine, kind)
        } else {
            self.remove(engine, kind, probe.funcs, left)
        };
        self.withdraw(engine, kind, place);
        removed.map_err(FprobeError::Engine)
    }

    fn place_of(&self, probe: &'static Fprobe<R>) -> Option<usize> {
        let mask = self.mask(probe.kind()).load(Ordering::Relaxed);
        ones(mask).find(|place| self.probe(*place).is_some_and(|there| core::ptr::eq(there, probe)))
    }

    /// Frees a place, once no callback uses it any more.
    fn withdraw<P: Platform, M: Machine<Regs = R>>(&self, engine: &Engine<P, M>, kind: Kind, place: usize) {
        self.mask(kind).fetch_and(!(1 << place), Ordering::Release);
        engine.synchronize();
        self.places[place].probe.store(core::ptr::null_mut(), Ordering::Release);
    }

    fn add<P: Platform, M: Machine<Regs = R>>(
        &'static self,
        engine: &Engine<P, M>,
        kind: Kind,
        funcs: &[FuncAddr],
        first: bool,
    ) -> Result<(), Error> {
        if first {
            // It wants nothing yet.
            match kind {
                Kind::Entry => engine.register_ops(&self.entries)?,
                Kind::Exit => engine.register_graph(&self.exits)?,
            }
        }
        let added = self.change(engine, kind, SetChange::Add(funcs));
        if added.is_err() && first {
            // What went wrong first is what is told.
            let _ = self.unregister_user(engine, kind);
        }
        added
    }

    /// Takes those functions out of the filter that no probe of `left` wants, and that are still there: those of a module go with it.
    fn remove<P: Platform, M: Machine<Regs = R>>(
        &'static self,
        engine: &Engine<P, M>,
        kind: Kind,
        funcs: &[FuncAddr],
        left: u64,
    ) -> Result<(), Error> {
        let unwanted = |func: &FuncAddr| {
            !ones(left).any(|place| self.probe(place).is_some_and(|probe| probe.wants(*func)))
                && engine.location(func.get()).is_some()
        };
        let (mut batch, mut count, mut result) = ([FuncAddr::new(0); BATCH], 0, Ok(()));
        for func in funcs.iter().copied().filter(unwanted) {
            batch[count] = func;
            count += 1;
            if count == BATCH {
                result = result.and(self.change(engine, kind, SetChange::Remove(&batch)));
                count = 0;
            }
        }
        if count != 0 {
            result = result.and(self.change(engine, kind, SetChange::Remove(&batch[..count])));
        }
        result
    }

    fn change<P: Platform, M: Machine<Regs = R>>(
        &'static self,
        engine: &Engine<P, M>,
        kind: Kind,
        change: SetChange<'_>,
    ) -> Result<(), Error> {
        match kind {
            Kind::Entry => engine.change_ops(&self.entries, WhichSet::Filter, change),
            Kind::Exit => engine.change_graph(&self.exits, WhichSet::Filter, change),
        }
    }

    fn unregister_user<P: Platform, M: Machine<Regs = R>>(
        &'static self,
        engine: &Engine<P, M>,
        kind: Kind,
    ) -> Result<(), Error> {
        match kind {
            Kind::Entry => engine.unregister_ops(&self.entries),
            Kind::Exit => engine.unregister_graph(&self.exits),
        }
    }
}
