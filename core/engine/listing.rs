//! What can be asked about sites and functions. Under the lock, except for what a trap handler asks.

use core::ops::Range;

use super::{Engine, Phase, patched};
use crate::addr::{FuncAddr, SiteAddr};
use crate::machine::{Layout, Machine};
use crate::ops::Ops;
use crate::platform::Platform;
use crate::site::Flavor;
use crate::sites::ModuleId;
use crate::users::slots;

/// Figures about the sites.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Sites that can be traced.
    pub sites: usize,
    /// Sites whose sled leads to a trampoline now, this crate's or a user's.
    pub patched: usize,
    /// Sites that are kept out.
    pub notrace: usize,
}

/// What is known of one function that can be traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FunctionInfo {
    /// The function.
    pub func: FuncAddr,
    /// Its site.
    pub site: SiteAddr,
    /// Whose text it is in.
    pub module: ModuleId,
    /// What its sled does.
    pub flavor: Flavor,
    /// How many users it has.
    pub users: u32,
    /// One of them changes where it goes on.
    pub ip_modify: bool,
    /// It has been patched since the start.
    pub touched: bool,
}

impl<P: Platform, M: Machine> Engine<P, M> {
    /// Figures about the sites.
    pub fn stats(&self) -> Stats {
        let control = self.control.lock();
        if !matches!(control.phase, Phase::Ready { .. }) {
            return Stats::default();
        }
        let mut stats = Stats::default();
        for module in self.sites.modules() {
            let table = self.sites.table(module);
            let sites = table.iter::<M>().count();
            stats.sites += sites;
            stats.notrace += table.len() - sites;
            stats.patched += table.iter::<M>().filter(|(.., state)| state.current != Flavor::Off).count();
        }
        stats
    }

    /// The functions that can be traced, the kernel's first, each module's in ascending order. While it runs, modules neither
    /// come nor go.
    pub fn functions(&self, mut each: impl FnMut(FunctionInfo)) {
        let control = self.control.lock();
        for module in self.sites.modules() {
            for (_, site, func, state) in self.sites.table(module).iter::<M>() {
                let users = state.wanted_by(self.users.all()) & patched(&control);
                let modifies = |slot| self.users.entry(slot).is_some_and(Ops::modifies_ip);
                each(FunctionInfo {
                    func,
                    site,
                    module,
                    flavor: state.current,
                    users: users.count_ones(),
                    ip_modify: slots(users).any(modifies),
                    touched: state.touched,
                });
            }
        }
    }

    /// The function whose entry or site is exactly `addr` (`ftrace_location`).
    pub fn location(&self, addr: usize) -> Option<(FuncAddr, SiteAddr)> {
        let _control = self.control.lock();
        let (module, index) = self.sites.find_func::<M>(FuncAddr::new(addr))?;
        let table = self.sites.table(module);
        let site = table.addr(index);
        Some((M::func(site, table.state(index).layout), site))
    }

    /// Where a function goes on behind its sled.
    pub fn resume_address(&self, func: FuncAddr) -> Option<usize> {
        let _control = self.control.lock();
        let (module, index) = self.sites.find_func::<M>(func)?;
        let table = self.sites.table(module);
        Some(M::resume(table.addr(index), table.state(index).layout))
    }

    /// Whether any site that can be patched overlaps `range` (`ftrace_text_reserved`).
    pub fn text_reserved(&self, range: Range<usize>) -> bool {
        let _control = self.control.lock();
        self.sites.modules().any(|module| {
            self.sites.table(module).iter::<M>().any(|(_, site, _, state)| {
                let span = M::span(site, state.layout);
                span.start < range.end && range.start < span.end
            })
        })
    }

    /// What the sled at `site` will do when the update that is under way is done, and how the site is built; from a trap, with
    /// interrupts off.
    pub fn target_of(&self, site: SiteAddr) -> Option<(Flavor, Layout)> {
        let _section = self.quiesce.enter(P::cpu_id())?;
        let state = self.sites.state(site)?;
        (!state.notrace).then_some((state.target, state.layout))
    }
}
