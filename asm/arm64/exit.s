// arm64 return hookers: fgraph_return_hooker and fgraph_balanced_hooker. As in x86_64/exit.s, but for what is said here.
//
// Who comes here: the `ret` of a function whose x30 was replaced at its entry; or of one that was called by
// fgraph_balanced_call, in the place of its caller.
//
// On arrival (S is sp, as at the function's entry: the frame's key)
//   x0-x7    results (a structure of up to two words in x0 and x1)
//   x8-x15   after functions of the preserve-most kind the caller relies on x9 to x15
//   x29      the caller's frame pointer
//   x16, x17, x30, flags   nobody's
//
// On leaving: x30 = the real return address, everything else as on arrival, results perhaps changed by callbacks.
//
// Stack while the handler runs
//   S-8      this hooker's own address, then the real address as soon as it is known
//   S-16     x29, the frame record; x29 points here
//   ...      vector registers, if the target uses them
//   sp       FtraceRegs

// The straight path, as in x86_64/exit.s. Goes on behind it, with everything but x16, x17 and x30 as it was, where it cannot be taken.
//
// Stack
//   S-8      this hooker's own address, then the real address
//   S-16     x29, the frame record
//   S-80     x9 to x14
//   ...      for the record: x0 to x8, x15, x18, x9, x11, x16; vector registers, if the target uses them
//
// Registers, once saved
//   x16      the task's block
//   x11      the frame
//   x17      its place on the shadow stack
//   x9       its control word without all that is the same in every frame: the distance
//   x10      when the function returned
//   x12      the words of the straight path
//   x13 x14 x30  what is computed
    .macro fgraph_straight_exit name
    fgraph_straight_save 80
    adr     x30, \name
    stp     x29, x30, [sp, #64]
    adrp    x12, {engine} + {straight}
    add     x12, x12, #:lo12:{engine} + {straight}
    ldp     x9, x14, [x12]                  // the control word without its distance; the header of the data
    cbz     x9, 8f
    // As early as possible: what runs behind it belongs to the tracer, not to the function.
    mrs     x10, cntvct_el0
    .word   fgraph_current_read             // mrs x16, <the task's register>: written by the linker
    ldr     x16, [x16, #:lo12:fgraph_current_offset] // this task's block
    cbz     x16, 8f                         // a task that is not traced
    ldr     w17, [x16, #FGRAPH_TASK_NEWEST]
    ldr     x13, [x16, #FGRAPH_TASK_LEN]
    add     x11, x17, #FGRAPH_STRAIGHT_WORDS
    cmp     x11, x13
    b.hi    8f                              // no stack, or a shorter frame at its end
    ldr     x11, [x16, #FGRAPH_TASK_WORDS]
    add     x11, x11, x17, lsl #3
    ldp     x13, x30, [x11, #FGRAPH_FRAME_KEY] // and the control word
    eor     x9, x9, x30
    cmp     x9, #FGRAPH_DISTANCES
    b.hs    8f                              // not of the tracer as it is registered now
    add     x30, sp, #80                    // S, the key
    cmp     x13, x30
    b.ne    8f                              // frames were left behind above
    ldp     x13, x30, [x11, #FGRAPH_FRAME_DATA] // and the time
    cmp     x13, x14
    b.ne    8f                              // not of this path
    ldr     w14, [x16, #FGRAPH_TASK_DEPTH]
    sub     w14, w14, #1
    // An interrupt before this store counted up and down again, so w14 is still right.
    str     w14, [x16, #FGRAPH_TASK_DEPTH]
    ldr     w13, [x16, #FGRAPH_TASK_MAX_DEPTH]
    cmp     w14, w13
    b.hs    5f                              // deeper than ever
    sub     x13, x10, x30
    ldr     x14, [x12, #FGRAPH_STRAIGHT_LEAST]
    cmp     x13, x14
    b.lo    6f                              // too short
5:
    sub     sp, sp, #112 + FGRAPH_VECTORS
    stp     x0, x1, [sp]
    stp     x2, x3, [sp, #16]
    stp     x4, x5, [sp, #32]
    stp     x6, x7, [sp, #48]
    stp     x8, x15, [sp, #64]
    stp     x18, x9, [sp, #80]
    stp     x11, x16, [sp, #96]
    fgraph_save_vectors 112
    add     x29, sp, #112 + FGRAPH_VECTORS + 64 // S-16, since something is called
    mov     x2, x10
    mov     x3, x0
    mov     x4, x1
    mov     x0, x16
    mov     x1, x11
    bl      {straight_record}               // (block of the task, frame, time, results)
    fgraph_restore_vectors 112
    ldp     x11, x16, [sp, #96]
    ldp     x18, x9, [sp, #80]
    ldp     x8, x15, [sp, #64]
    ldp     x6, x7, [sp, #48]
    ldp     x4, x5, [sp, #32]
    ldp     x2, x3, [sp, #16]
    ldp     x0, x1, [sp]
    add     sp, sp, #112 + FGRAPH_VECTORS
    ldr     w17, [x16, #FGRAPH_TASK_NEWEST]
6:
    add     x12, x16, #FGRAPH_TASK_RETURNS
7:  ldxr    x13, [x12]                      // exclusive against interrupts: the exception return ends it (Arm ARM B2.12.1)
    add     x13, x13, #1
    stxr    w14, x13, [x12]
    cbnz    w14, 7b
    ldr     x13, [x11, #FGRAPH_FRAME_RET]
    str     x13, [sp, #72]                  // the real address, before the frame goes
    str     x9, [x11, #FGRAPH_FRAME_CONTROL] // dead
    sub     w12, w17, w9                    // the one below: 0 if there is none, and so is x17
    orr     x12, x17, x12, lsl #32          // the frame's place is free now
    str     x12, [x16, #FGRAPH_TASK_STATE]
    ldp     x29, x30, [sp, #64]
    fgraph_straight_restore 80
    ret                                     // paired with the caller's call
8:
    fgraph_straight_restore 80
    .endm

    // paired: 1 if the function was called by fgraph_balanced_call
    .macro fgraph_hooker name, paired
    .globl \name
    .type \name, %function
\name:
    .if \paired
    fgraph_straight_exit \name
    .endif
    sub     sp, sp, #FGRAPH_REGS_SIZE + FGRAPH_VECTORS + 16
    adr     x30, \name
    stp     x29, x30, [sp, #FGRAPH_REGS_SIZE + FGRAPH_VECTORS]
    stp     x9, x10, [sp, #FGRAPH_REGS_X + 8 * 9]
    fgraph_save_scratch
    fgraph_save_vectors
    stp     x29, x30, [sp, #FGRAPH_REGS_FP_LR]
    add     x9, sp, #FGRAPH_REGS_SIZE + FGRAPH_VECTORS + 16
    stp     x9, x30, [sp, #FGRAPH_REGS_SP_PC] // the key; pc until the handler knows better
    .word   fgraph_current_read             // mrs x16, <the task's register>: written by the linker
    ldr     x16, [x16, #:lo12:fgraph_current_offset] // this task's block
    mov     x9, #FGRAPH_SAVED_RETURN
    stp     x9, x16, [sp, #FGRAPH_REGS_SAVED_TASK]
    add     x29, sp, #FGRAPH_REGS_SIZE + FGRAPH_VECTORS

    mov     x0, sp                          // the block
    bl      {return_handler}                // writes the real address to S-8
    fgraph_restore_vectors
    fgraph_restore_scratch
    ldp     x29, x30, [sp, #FGRAPH_REGS_SIZE + FGRAPH_VECTORS]
    add     sp, sp, #FGRAPH_REGS_SIZE + FGRAPH_VECTORS + 16
    ret                                     // after a balanced call, paired with the caller's
    .size \name, . - \name
    .endm

    .balign 16
    fgraph_hooker fgraph_return_hooker, 0

// Calls a function's body for its caller: x16 = where it goes on, everything else as at its first instruction.
    .balign 16
    .globl fgraph_balanced_call
    .type fgraph_balanced_call, %function
fgraph_balanced_call:
    blr     x16                             // x30 = the hooker
    .size fgraph_balanced_call, . - fgraph_balanced_call
    fgraph_hooker fgraph_balanced_hooker, 1

    .globl fgraph_trampolines_stop
fgraph_trampolines_stop:

    .purgem fgraph_hooker
    .purgem fgraph_straight_exit
    .purgem fgraph_straight_save
    .purgem fgraph_straight_restore
    .purgem fgraph_save_scratch
    .purgem fgraph_restore_scratch
    .purgem fgraph_save_vectors
    .purgem fgraph_restore_vectors
    .popsection
