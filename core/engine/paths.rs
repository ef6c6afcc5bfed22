//! Functions whose calls never take the straight path. Under the lock, in task context.

use super::{Engine, Error};
use crate::addr::SiteAddr;
use crate::machine::{Machine, Path, Trampolines};
use crate::platform::Platform;
use crate::site::{Flavor, State, read_site};
use crate::sites::ModuleId;

impl<P: Platform, M: Machine> Engine<P, M> {
    /// Settles for each function, by its number, which ways its calls may go. That is in the text of its site, so that calls of all others
    /// ask nothing. A function that has been patched is left as it is, since a task may stand in what would be written; how many are.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; [`Error::Write`], after which tracing has stopped for good.
    #[cfg_attr(not(any(feature = "trampolines", test)), expect(dead_code, reason = "the tracers settle it"))]
    pub(crate) fn choose_paths(&self, path_of: &dyn Fn(u32) -> Path) -> Result<usize, Error> {
        let control = self.control.lock();
        let trampolines = self.ready(&control)?;
        let late = self
            .sites
            .modules()
            .try_fold(0, |late, module| Ok(late + self.choose_paths_of(module, path_of, trampolines)?))?;
        P::sync_cores();
        Ok(late)
    }

    /// The same for one group, without the core sync that must follow before any of it is patched.
    fn choose_paths_of(
        &self,
        module: ModuleId,
        path_of: &dyn Fn(u32) -> Path,
        trampolines: Trampolines,
    ) -> Result<usize, Error> {
        let table = self.sites.table(module);
        let mut late = 0;
        for (index, site, _, state) in table.iter::<M>() {
            let path = path_of(table.first_number().saturating_add(index as u32));
            let layout = M::on_path(state.layout, path);
            if layout == state.layout {
                continue;
            }
            if state.touched || (state.current, state.target) != (Flavor::Off, Flavor::Off) {
                late += 1;
                continue;
            }
            let prepared =
                M::prepare(site, layout, &trampolines, table.state_addr(index)).map_err(Error::OutOfRange)?;
            table.set_state(index, State { layout, ..state });
            for (addr, code) in prepared.into_iter().flatten() {
                // The sled is the same, and may be running.
                if read_site::<P>(SiteAddr::new(addr), code) != code {
                    self.write(addr, code)?;
                }
            }
        }
        Ok(late)
    }
}

#[cfg(test)]
mod tests {
    use super::super::image::{Image, Target, for_both_machines};
    use super::*;
    use crate::filter::Filter;
    use crate::machine::{Code, Sled};
    use crate::ops::{Ops, OpsFlags};
    use crate::platform::TextWriteError;
    use crate::testing::kernel::{self, Fake};
    use crate::testing::{Random, keep};
    use std::vec::Vec;

    fn every_second(number: u32) -> Path {
        if number.is_multiple_of(2) { Path::General } else { Path::Any }
    }

    /// The site of each function, what its text is now, and what would be there if its calls took this way.
    fn texts<T: Target>(
        engine: &Engine<Fake, T>,
        image: &Image,
        path_of: fn(u32) -> Path,
        sled: fn(usize) -> Sled,
    ) -> Vec<(Code, Code)> {
        let table = engine.sites.kernel();
        let mut all = Vec::new();
        for (index, site, _, state) in table.iter::<T>() {
            let layout = T::on_path(state.layout, path_of(index as u32));
            let to = T::trampolines(layout, &image.trampolines).args;
            let prepared =
                T::prepare(site, layout, &image.trampolines, table.state_addr(index)).expect("in range");
            let on = T::code(site, layout, sled(to)).expect("in range");
            let before = prepared.into_iter().flatten().find(|(addr, _)| *addr < site.get());
            for (addr, code) in before.into_iter().chain([(site.get(), on)]) {
                all.push((read_site::<Fake>(SiteAddr::new(addr), code), code));
            }
        }
        all
    }

    fn is_there(texts: &[(Code, Code)]) -> bool {
        texts.iter().all(|(found, wanted)| found == wanted)
    }

    fn calls_of_chosen_functions_go_their_way<T: Target>() {
        let image = Image::new::<T>(7, &mut Random::new(5));
        let engine = image.start::<T>();
        let before = kernel::text();
        assert_eq!(engine.choose_paths(&|_| Path::Any), Ok(0));
        assert_eq!(kernel::text(), before);

        assert_eq!(engine.choose_paths(&every_second), Ok(0));
        assert!(is_there(&texts(engine, &image, every_second, |_| Sled::Off)));
        let ops = keep(Ops::new(|_, _, _, _| {}, OpsFlags::empty(), Filter::ALL));
        assert_eq!(engine.register_ops(ops), Ok(()));
        assert!(is_there(&texts(engine, &image, every_second, Sled::Call)));

        // All that could change are patched, or have been: they stay as they are.
        let table = engine.sites.kernel();
        let chosen =
            table.iter::<T>().filter(|(.., state)| state.layout != T::on_path(state.layout, Path::Any));
        let chosen = chosen.count();
        assert_eq!(engine.choose_paths(&|_| Path::Any), Ok(chosen));
        assert_eq!(engine.unregister_ops(ops), Ok(()));
        let text = kernel::text();
        assert_eq!(engine.choose_paths(&|_| Path::Any), Ok(chosen));
        assert_eq!(kernel::text(), text);
        assert_eq!(engine.register_ops(ops), Ok(()));
        assert!(is_there(&texts(engine, &image, every_second, Sled::Call)));
    }

    fn a_platform_that_cannot_write_stops_tracing<T: Target>() {
        let image = Image::new::<T>(7, &mut Random::new(5));
        let engine = image.start::<T>();
        kernel::with(|kernel| kernel.writes_left = Some(0));
        let refused = engine.choose_paths(&every_second);
        // Where the text is the same for both ways until a function is traced, there is nothing to write.
        assert!(matches!(refused, Ok(0) | Err(Error::Write(TextWriteError { .. }))), "{refused:?}");
        assert_eq!(engine.is_stopped(), refused.is_err());
    }

    for_both_machines! {
        calls_of_chosen_functions_go_their_way
        a_platform_that_cannot_write_stops_tracing
    }
}
