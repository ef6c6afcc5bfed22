//! `ftrace_ops`: users of function entries. Who is registered, `users` knows.

use bitflags::bitflags;

use crate::addr::{FuncAddr, RetAddr};
use crate::filter::Filter;
use crate::owner::Owner;
use crate::regs::Regs;
use crate::sync::{AtomicUsize, Ordering};

bitflags! {
    /// What an `ftrace_ops` needs; the names are the field's own.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct OpsFlags: u32 {
        /// The callback needs every register ([`Saved::Regs`](crate::Saved::Regs)), not the argument registers alone.
        const SAVE_REGS = 1 << 0;
        /// The callback gets every register where that is possible, and what there is elsewhere. Both machines have a regs
        /// trampoline, so here it is the same as `SAVE_REGS`.
        const SAVE_REGS_IF_SUPPORTED = 1 << 1;
        /// The callback needs the argument registers: every trampoline saves them.
        const SAVE_ARGS = 1 << 2;
        /// The callback asks to be protected from its own recursion. Every callback is; the flag is kept for who reads it.
        const RECURSION = 1 << 3;
        /// The callback changes where the function goes on (`set_ip`). One such user per function.
        const IPMODIFY = 1 << 4;
        /// The user cannot be disabled by the global switch, and cannot be registered while that is off.
        const PERMANENT = 1 << 5;
        /// The functions go on at a trampoline of the user's: set by [`Ops::direct`]. One such user
        /// per function, and none beside one with `IPMODIFY`.
        const DIRECT = 1 << 6;
    }
}

/// A callback at a function's entry.
///
/// It runs with preemption off, in whatever context the function was called, and must not sleep. It should not be traced;
/// if it is, its own calls reach it once more and then run untraced.
pub type OpsFunc<R> = fn(ip: FuncAddr, parent_ip: RetAddr, ops: &Ops<R>, fregs: &mut R);

/// One user of function entries. Kept in a `static` by whoever registers it.
#[derive(Debug)]
pub struct Ops<R: Regs> {
    func: OpsFunc<R>,
    flags: OpsFlags,
    filter: Filter,
    private: usize,
    /// Where the functions go on; 0 without `DIRECT`.
    direct: AtomicUsize,
    /// What this is a part of, if it is one of this crate's own.
    pub(crate) owner: Owner,
}

/// What an `ftrace_ops` with a trampoline of its own does where the sled cannot jump there, or other users are to be told first.
fn go_direct<R: Regs>(_ip: FuncAddr, _parent_ip: RetAddr, ops: &Ops<R>, fregs: &mut R) {
    // SAFETY: who made `ops` promised that the address gets on with the state at a function's entry.
    unsafe { fregs.set_ip(ops.direct_target()) };
}

impl<R: Regs> Ops<R> {
    /// A user that wants `func` called at the entry of every function that `filter` lets through.
    pub const fn new(func: OpsFunc<R>, flags: OpsFlags, filter: Filter) -> Self {
        let flags = flags.difference(OpsFlags::DIRECT);
        Self { func, flags, filter, private: 0, direct: AtomicUsize::new(0), owner: Owner::none() }
    }

    /// A user whose functions go on at `target` instead of their own bodies (`register_ftrace_direct`).
    ///
    /// `target` gets control as if it had been called in the function's place: every register and the stack as at the function's
    /// first instruction. It may return to the function's caller, or go on in the function at
    /// [`ftrace_resume_address`](crate::ftrace_resume_address); r11 on x86_64, x16 and x17 on arm64 are free. Where the sled can, it jumps
    /// there by itself, and no trampoline of this crate runs; with other users on the function, those are told first.
    ///
    /// # Safety
    /// `target` must be code that does one of both, for every function of the filter and of any later one, and stays mapped until
    /// the user is unregistered and no task runs in it any more, which the tracer cannot know.
    pub const unsafe fn direct(target: usize, flags: OpsFlags, filter: Filter) -> Self {
        Self {
            func: go_direct,
            flags: flags.union(OpsFlags::DIRECT),
            filter,
            private: 0,
            direct: AtomicUsize::new(target),
            owner: Owner::none(),
        }
    }

    /// Where the functions of a user with `DIRECT` go on; 0 for others.
    #[inline]
    pub fn direct_target(&self) -> usize {
        self.direct.load(Ordering::Acquire)
    }

    /// Under the engine's lock, with no sled jumping there.
    pub(crate) fn set_direct_target(&self, target: usize) {
        self.direct.store(target, Ordering::Release);
    }

    /// The same with a word of the user's own.
    pub const fn with_private(mut self, private: usize) -> Self {
        self.private = private;
        self
    }

    /// The user's own word.
    #[inline]
    pub fn private(&self) -> usize {
        self.private
    }

    /// What the user needs.
    pub fn flags(&self) -> OpsFlags {
        self.flags
    }

    /// The callback.
    #[inline]
    pub(crate) fn func(&self) -> OpsFunc<R> {
        self.func
    }

    /// Whether the user decides where a function goes on.
    pub(crate) fn modifies_ip(&self) -> bool {
        self.flags.intersects(OpsFlags::IPMODIFY.union(OpsFlags::DIRECT))
    }

    /// Whether the callback needs every register.
    pub(crate) fn needs_regs(&self) -> bool {
        self.flags.intersects(OpsFlags::SAVE_REGS.union(OpsFlags::SAVE_REGS_IF_SUPPORTED))
    }

    /// Which functions the user wants when it is attached.
    pub fn filter(&self) -> &Filter {
        &self.filter
    }
}
