// arm64 entry trampolines: fgraph_args_entry and fgraph_regs_entry for sites that are hooked the classic way, and the text of
// those for the others (balanced.s). As in x86_64/entry.s, but for what is said here.
//
// Who comes here: the `bl` in a patched sled, whose first word is `mov x17, x30`; or the `b` in one whose first word is
// `adr x17, site + tag`.
//
// On arrival   classic                                         balanced
//   x17        parent: where the traced function returns to    the site, with what it is in the two low bits
//   x30        resume: the instruction behind the sled         parent
//   x0-x7    arguments
//   x8       address of a result in memory
//   x9-x15   a function of the preserve-most kind keeps them, so they may hold anything of its caller's
//   x18      the platform's, or a nested C function's static chain
//   x29      the caller's frame pointer
//   sp       the frame's key
//   x16, flags   nobody's (AAPCS64 6.1.1; x17 was, before the sled)
//
// On leaving: x30 = block's lr, x16 = block's pc, everything else as on arrival or as callbacks changed it.
// Classic, control goes on by `ret x16`: paired with the sled's `bl`, and RET needs no landing pad at its target. Balanced, by a
// call whose return address is the balanced hooker if block's lr is that, so every return is paired with a call; otherwise by a jump.
//
// Stack while the handler runs (S is sp on arrival)
//   S-8      parent      \ the traced function's frame record, so that walkers see it
//   S-16     x29         /
//   S-24     resume      \ the trampoline's frame record; x29 points here (S-32)
//   S-32     S-16        /
//   ...      vector registers, if the target uses them
//   sp       FtraceRegs

    .pushsection .text.notrace.fgraph_trampolines, "ax", @progbits

    .globl fgraph_trampolines_start
fgraph_trampolines_start:

    // vectors_at: from sp to their place
    .macro fgraph_save_vectors vectors_at=FGRAPH_REGS_SIZE
    .if FGRAPH_VECTORS
    stp     q0, q1, [sp, #\vectors_at + 0x00]
    stp     q2, q3, [sp, #\vectors_at + 0x20]
    stp     q4, q5, [sp, #\vectors_at + 0x40]
    stp     q6, q7, [sp, #\vectors_at + 0x60]
    .endif
    .endm

    .macro fgraph_restore_vectors vectors_at=FGRAPH_REGS_SIZE
    .if FGRAPH_VECTORS
    ldp     q0, q1, [sp, #\vectors_at + 0x00]
    ldp     q2, q3, [sp, #\vectors_at + 0x20]
    ldp     q4, q5, [sp, #\vectors_at + 0x40]
    ldp     q6, q7, [sp, #\vectors_at + 0x60]
    .endif
    .endm

    // Everything a caller-saved register may hold for the traced code, but x9 and x10, which the entry saves first.
    .macro fgraph_save_scratch
    stp     x0, x1, [sp, #FGRAPH_REGS_X]
    stp     x2, x3, [sp, #FGRAPH_REGS_X + 8 * 2]
    stp     x4, x5, [sp, #FGRAPH_REGS_X + 8 * 4]
    stp     x6, x7, [sp, #FGRAPH_REGS_X + 8 * 6]
    str     x8, [sp, #FGRAPH_REGS_X + 8 * 8]
    stp     x11, x12, [sp, #FGRAPH_REGS_X + 8 * 11]
    stp     x13, x14, [sp, #FGRAPH_REGS_X + 8 * 13]
    str     x15, [sp, #FGRAPH_REGS_X + 8 * 15]
    str     x18, [sp, #FGRAPH_REGS_X + 8 * 18]
    .endm

    .macro fgraph_restore_scratch
    ldp     x0, x1, [sp, #FGRAPH_REGS_X]
    ldp     x2, x3, [sp, #FGRAPH_REGS_X + 8 * 2]
    ldp     x4, x5, [sp, #FGRAPH_REGS_X + 8 * 4]
    ldp     x6, x7, [sp, #FGRAPH_REGS_X + 8 * 6]
    ldr     x8, [sp, #FGRAPH_REGS_X + 8 * 8]
    ldp     x11, x12, [sp, #FGRAPH_REGS_X + 8 * 11]
    ldp     x13, x14, [sp, #FGRAPH_REGS_X + 8 * 13]
    ldr     x15, [sp, #FGRAPH_REGS_X + 8 * 15]
    ldr     x18, [sp, #FGRAPH_REGS_X + 8 * 18]
    ldp     x9, x10, [sp, #FGRAPH_REGS_X + 8 * 9]
    .endm

    // What the straight path computes with: at the lower end of a frame of so many bytes.
    .macro fgraph_straight_save size
    stp     x9, x10, [sp, #-\size]!
    stp     x11, x12, [sp, #16]
    stp     x13, x14, [sp, #32]
    .endm

    .macro fgraph_straight_restore size
    ldp     x13, x14, [sp, #32]
    ldp     x11, x12, [sp, #16]
    ldp     x9, x10, [sp], #\size
    .endm

// The straight path: the frame of the only user, which is the tracer, pushed without a call. core/straight.rs says when,
// core/shadow.rs what the stores and their order are for. Goes to 9f, with everything as it was, where it cannot be taken.
//
// Registers, once saved
//   x16      the task's block
//   x9       the frame's control word
//   x11      the frame
//   x10 x12 x13 x14  what is computed
    .macro fgraph_straight_entry
    tbz     x17, #FGRAPH_TAG_PREFIX_BIT, 9f // the way back needs the prefix to know the function by
    fgraph_straight_save 48
    adrp    x12, {engine} + {straight}
    add     x12, x12, #:lo12:{engine} + {straight}
    ldp     x9, x14, [x12]                  // the control word without its distance; the header of the data
    cbz     x9, 8f
    .word   fgraph_current_read             // mrs x16, <the task's register>: written by the linker
    ldr     x16, [x16, #:lo12:fgraph_current_offset] // this task's block
    cbz     x16, 8f                         // a task that is not traced
    ldr     w10, [x16, #FGRAPH_TASK_PAUSE]
    cbnz    w10, 8f
    ldr     x10, [x16, #FGRAPH_TASK_STATE]  // newest << 32 | top
    ldr     x13, [x16, #FGRAPH_TASK_LEN]
    mov     w12, w10
    add     x11, x12, #FGRAPH_STRAIGHT_WORDS
    cmp     x11, x13
    b.hi    8f                              // no stack, or no room: counted there
    orr     x13, x11, x12, lsl #32          // the new state: this frame, up to its end
    ldr     x11, [x16, #FGRAPH_TASK_WORDS]
    add     x11, x11, x12, lsl #3
    lsr     x10, x10, #32
    sub     w12, w12, w10                   // the distance: 0 on an empty stack, where both are 0
    str     x12, [x11, #FGRAPH_FRAME_CONTROL] // dead
    str     x13, [x16, #FGRAPH_TASK_STATE]
    // From here on interrupts push above. One that came before may have left a live frame here.
    str     x12, [x11, #FGRAPH_FRAME_CONTROL]
    orr     x9, x9, x12
    ldr     w10, [x16, #FGRAPH_TASK_DEPTH]
    add     w10, w10, #1
    // An interrupt before this store counted up and down again, so w10 is still right.
    str     w10, [x16, #FGRAPH_TASK_DEPTH]
    bic     x10, x17, #FGRAPH_TAGS
    and     x12, x17, #FGRAPH_TAG_PAD
    sub     x12, x10, x12, lsl #2           // the function: a landing pad stands before its site
    stp     x30, x12, [x11, #FGRAPH_FRAME_RET]
    add     x12, sp, #48                    // the key
    str     x12, [x11, #FGRAPH_FRAME_KEY]
    str     x14, [x11, #FGRAPH_FRAME_DATA]
    str     x9, [x11, #FGRAPH_FRAME_CONTROL] // sealed: everything that a walker needs is there
    add     x16, x10, #FGRAPH_SLED
    // As late as possible: what runs before belongs to the tracer, not to the function.
    mrs     x10, cntvct_el0
    str     x10, [x11, #FGRAPH_FRAME_TIME]
    fgraph_straight_restore 48
    adr     x30, fgraph_balanced_hooker
    b       fgraph_balanced_call
8:
    fgraph_straight_restore 48
9:
    .endm

    // all: 1 saves every register, 0 those that the handler may change
    // balanced: 1 for the balanced way
    // parent, resume: the registers that have them once x11 is saved
    .macro fgraph_entry name, saved, all, balanced, parent, resume
    .balign 16
    .globl \name
    .type \name, %function
\name:
    .if \balanced && !\all
    fgraph_straight_entry
    .endif
    .word   fgraph_current_read             // mrs x16, <the task's register>: written by the linker
    ldr     x16, [x16, #:lo12:fgraph_current_offset] // this task's block
    cbz     x16, 3f                         // a task that is not traced
    sub     sp, sp, #FGRAPH_REGS_SIZE + FGRAPH_VECTORS + 32
    stp     x9, x10, [sp, #FGRAPH_REGS_X + 8 * 9]
    ldr     w9, [x16, #FGRAPH_TASK_NEST]
    cmp     w9, #FGRAPH_MAX_NEST
    b.hs    2f                              // the tracer is tracing itself
    add     w9, w9, #1
    // An interrupt before this store counted up and down again, so w9 is still right.
    str     w9, [x16, #FGRAPH_TASK_NEST]

    fgraph_save_scratch
    .if \all
    stp     x19, x20, [sp, #FGRAPH_REGS_X + 8 * 19]
    stp     x21, x22, [sp, #FGRAPH_REGS_X + 8 * 21]
    stp     x23, x24, [sp, #FGRAPH_REGS_X + 8 * 23]
    stp     x25, x26, [sp, #FGRAPH_REGS_X + 8 * 25]
    stp     x27, x28, [sp, #FGRAPH_REGS_X + 8 * 27]
    .endif
    .if \balanced
    bic     x11, x17, #FGRAPH_TAGS
    add     x11, x11, #FGRAPH_SLED          // behind the sled
    .endif
    stp     x29, \parent, [sp, #FGRAPH_REGS_FP_LR] // the caller's frame pointer; parent
    add     x10, sp, #FGRAPH_REGS_SIZE + FGRAPH_VECTORS + 32
    stp     x10, \resume, [sp, #FGRAPH_REGS_SP_PC] // the key; resume
    mov     x9, #\saved
    stp     x9, x16, [sp, #FGRAPH_REGS_SAVED_TASK]
    fgraph_save_vectors

    stp     x29, \parent, [x10, #-16]       // the traced function's record
    sub     x9, x10, #16
    stp     x9, \resume, [x10, #-32]        // this trampoline's record
    sub     x29, x10, #32

    mov     x0, sp                          // the block
    .if \balanced
    mov     x1, x17                         // the site and its tag
    bl      {balanced_handler}
    .else
    bl      {entry_handler}
    .endif

    ldr     x16, [sp, #FGRAPH_REGS_TASK]
    ldr     w9, [x16, #FGRAPH_TASK_NEST]
    sub     w9, w9, #1
    str     w9, [x16, #FGRAPH_TASK_NEST]
    fgraph_restore_vectors
    .if \all
    ldp     x19, x20, [sp, #FGRAPH_REGS_X + 8 * 19]
    ldp     x21, x22, [sp, #FGRAPH_REGS_X + 8 * 21]
    ldp     x23, x24, [sp, #FGRAPH_REGS_X + 8 * 23]
    ldp     x25, x26, [sp, #FGRAPH_REGS_X + 8 * 25]
    ldp     x27, x28, [sp, #FGRAPH_REGS_X + 8 * 27]
    .endif
    fgraph_restore_scratch
    ldr     x16, [sp, #FGRAPH_REGS_PC]      // resume, perhaps elsewhere
    ldp     x29, x30, [sp, #FGRAPH_REGS_FP_LR] // x30 = parent, or the return hooker
    add     sp, sp, #FGRAPH_REGS_SIZE + FGRAPH_VECTORS + 32
    .if \balanced
    adr     x17, fgraph_balanced_hooker
    cmp     x17, x30
    b.eq    fgraph_balanced_call
    br      x16
    .else
    ret     x16
    .endif

2:  ldr     x9, [x16, #FGRAPH_TASK_REFUSED]
    add     x9, x9, #1
    str     x9, [x16, #FGRAPH_TASK_REFUSED]
    ldp     x9, x10, [sp, #FGRAPH_REGS_X + 8 * 9]
    add     sp, sp, #FGRAPH_REGS_SIZE + FGRAPH_VECTORS + 32
3:
    .if \balanced
    bic     x16, x17, #FGRAPH_TAGS
    add     x16, x16, #FGRAPH_SLED
    br      x16
    .else
    mov     x16, x30
    mov     x30, x17
    ret     x16
    .endif
    .size \name, . - \name
    .endm

    fgraph_entry fgraph_args_entry, FGRAPH_SAVED_ARGS, 0, 0, x17, x30
    fgraph_entry fgraph_regs_entry, FGRAPH_SAVED_REGS, 1, 0, x17, x30

// Where a function goes on that a callback let return early: everything as at its first instruction.
    .balign 16
    .globl fgraph_return_early
    .type fgraph_return_early, %function
fgraph_return_early:
    ret
    .size fgraph_return_early, . - fgraph_return_early
