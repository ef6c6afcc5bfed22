//! The kernel heap: one static region behind one lock. May be used by tasks and interrupt handlers, not by
//! NMI handlers.

use core::{
    alloc::{GlobalAlloc, Layout},
    cell::UnsafeCell,
    ptr::{self, NonNull},
    sync::atomic::{AtomicBool, Ordering},
};

use linked_list_allocator::Heap;

use crate::lock::IrqLock;

/// Bytes of the region. Zero-initialised, so it costs no space in the image.
const HEAP_SIZE: usize = 32 << 20;

/// The region itself; after [`init`] it belongs to the allocator.
#[repr(C, align(4096))]
struct Region(UnsafeCell<[u8; HEAP_SIZE]>);

// SAFETY: nothing touches the bytes through this static; only its address is taken, once, in `init`.
unsafe impl Sync for Region {}

static REGION: Region = Region(UnsafeCell::new([0; HEAP_SIZE]));
static INITIALISED: AtomicBool = AtomicBool::new(false);

/// The allocator that `alloc` uses.
struct KernelHeap(IrqLock<Heap>);

#[global_allocator]
static HEAP: KernelHeap = KernelHeap(IrqLock::new(Heap::empty()));

/// Hands the region to the allocator. Before that every allocation fails.
///
/// # Panics
///
/// On a second call: the region would get a second owner.
pub fn init() {
    assert!(!INITIALISED.swap(true, Ordering::Relaxed), "the heap is initialised already");
    // SAFETY: 1. The region is static, writable and of this size. 2. Nobody else uses it, by `INITIALISED`
    //         and the privacy of `REGION`.
    unsafe { HEAP.0.lock().init(REGION.0.get().cast::<u8>(), HEAP_SIZE) }
}

/// Bytes in use, headers and rounding included.
pub fn used() -> usize {
    HEAP.0.lock().used()
}

// SAFETY: `Heap` gives out disjoint blocks of the size and alignment of the layout, or nothing, and the lock
//         keeps its free list consistent.
unsafe impl GlobalAlloc for KernelHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.0.lock().allocate_first_fit(layout).map_or(ptr::null_mut(), NonNull::as_ptr)
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let Some(block) = NonNull::new(block) else { return };
        // SAFETY: the caller gives back a block of this allocator with the layout it was asked for (contract
        //         of `GlobalAlloc::dealloc`).
        unsafe { self.0.lock().deallocate(block, layout) }
    }
}
