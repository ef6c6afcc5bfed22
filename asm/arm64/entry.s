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

    // all: 1 saves every register, 0 those that the handler may change
    // balanced: 1 for the balanced way
    // parent, resume: the registers that have them once x11 is saved
    .macro fgraph_entry name, saved, all, balanced, parent, resume
    .balign 16
    .globl \name
    .type \name, %function
\name:
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
