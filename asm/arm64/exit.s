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

    // paired: 1 if the function was called by fgraph_balanced_call
    .macro fgraph_hooker name, paired
    .globl \name
    .type \name, %function
\name:
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
    .purgem fgraph_save_scratch
    .purgem fgraph_restore_scratch
    .purgem fgraph_save_vectors
    .purgem fgraph_restore_vectors
    .popsection
