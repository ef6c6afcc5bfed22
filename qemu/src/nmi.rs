//! Non-maskable interrupts: what both machines do with one. On x86_64 it is the CPU's own kind, on arm64 a fast interrupt,
//! which nothing here masks but another one and the first and last instructions of a trap.
//!
//! Whoever holds whatever lock may be interrupted, so a hook takes none.

use core::{
    mem, ptr,
    sync::atomic::{AtomicPtr, Ordering},
};

use crate::{context, machine::TrapFrame, panic};

/// What is told of each NMI; null, or a `fn(&mut TrapFrame)`.
static HOOK: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());

/// Makes `hook` what is told of each NMI, on any CPU. It runs between `nmi_enter` and `nmi_exit`, and may be traced.
pub fn set_hook(hook: fn(&mut TrapFrame)) {
    HOOK.store(hook as *mut (), Ordering::Release);
}

/// What the machine's trap entry calls for each NMI, once it has been taken from the controller.
#[inline(always)]
pub fn handle(frame: &mut TrapFrame) {
    panic::stop_if_over();
    context::nmi_enter();
    let hook = HOOK.load(Ordering::Acquire);
    if !hook.is_null() {
        // SAFETY: not null, so `set_hook` stored it.
        let hook = unsafe { mem::transmute::<*mut (), fn(&mut TrapFrame)>(hook) };
        hook(frame);
    }
    context::nmi_exit();
}
