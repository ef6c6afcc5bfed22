# x86_64 return hookers: fgraph_return_hooker and fgraph_balanced_hooker.
#
# Who comes here: the `ret` of a function whose return address was replaced; or of one that was called by
# fgraph_balanced_call, in the place of its caller.
#
# On arrival (S is where the return address stood: the frame's key)
#   rsp      S+8: the caller's, as behind its call
#   rax rdx  results; everything else as the function left it: callee-saved registers the caller's, and after
#            functions of the preserve-most kind the caller relies on all but r11
#   r11, flags   nobody's (psABI 3.2.1: flags are not preserved across calls)
#
# On leaving: everything as on arrival, results perhaps changed by callbacks; rip = the real return address.
#
# Stack while the handler runs
#   S        this hooker's own address, then the real address as soon as it is known: a walker finds the one
#            translated by the frame on the shadow stack, or the other
#   S-8      rbp, the frame record; rbp points here
#   ...      vector registers, if the target uses them
#   rsp      FtraceRegs
#
# S+8 is a multiple of 16 (psABI 3.2.2), so rsp is at the handler's call.

    # paired: 1 if the traced function's `ret` was paired with a call of ours, so that the caller's call still waits for
    # its own
    .macro fgraph_hooker name, paired
    .globl \name
    .type \name, @function
\name:
    .cfi_startproc
    .cfi_def_cfa_offset 0
    lea r11, [rip + \name]
    push r11                                # S again
    .cfi_adjust_cfa_offset 8
    push rbp
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset rbp, 0
    mov rbp, rsp
    .cfi_def_cfa_register rbp
    sub rsp, FGRAPH_REGS_SIZE + FGRAPH_VECTORS

    fgraph_save_scratch
    fgraph_save_vectors
    mov rax, [rbp]
    mov [rsp + FGRAPH_REGS_RBP], rax        # the caller's frame pointer
    mov [rsp + FGRAPH_REGS_RIP], r11        # until the handler knows better
    lea rax, [rbp + 16]
    mov [rsp + FGRAPH_REGS_RSP], rax        # S+8
    mov qword ptr [rsp + FGRAPH_REGS_SAVED], FGRAPH_SAVED_RETURN
    mov r11, qword ptr gs:[fgraph_current_offset]
    mov [rsp + FGRAPH_REGS_TASK], r11

    mov rdi, rsp                            # the block
    call {return_handler}                   # writes the real address to S
    fgraph_restore_vectors
    fgraph_restore_scratch
    .if !\paired
    mov r11, [rbp + 8]                      # the real address
    .endif
    mov rbp, [rbp]
    .cfi_def_cfa rsp, FGRAPH_REGS_SIZE + FGRAPH_VECTORS + 16
    .cfi_restore rbp
    .if \paired
    add rsp, FGRAPH_REGS_SIZE + FGRAPH_VECTORS + 8
    .cfi_def_cfa_offset 8
    ret                                     # to what stands at S, where the caller's call left it
    .else
    add rsp, FGRAPH_REGS_SIZE + FGRAPH_VECTORS + 16
    .cfi_def_cfa_offset 0
    # The function's `ret` used up the prediction of its call; so this return brings a call of its own, and those of
    # the callers stay paired. No landing pad is needed at the target, as an indirect jump would.
    call 2f
    int3
2:  mov [rsp], r11
    ret
    .endif
    .cfi_endproc
    .size \name, . - \name
    .endm

    .balign 16
    fgraph_hooker fgraph_return_hooker, 0

# Calls a function's body for its caller: r11 = where it goes on, rsp = S, where the hooker's address stands that the call will
# push, everything else as at its first instruction. Two symbols, so that a stack walker knows for each instruction where
# the return address is: in the first it stands at S, in the second nowhere but on the shadow stack.
    .balign 16
    .globl fgraph_balanced_drop
    .type fgraph_balanced_drop, @function
fgraph_balanced_drop:
    .cfi_startproc
    lea rsp, [rsp + 8]
    .cfi_endproc
    .size fgraph_balanced_drop, . - fgraph_balanced_drop
    .globl fgraph_balanced_call
    .type fgraph_balanced_call, @function
fgraph_balanced_call:
    .cfi_startproc
    .cfi_def_cfa_offset 0
    call r11                                # pushes the hooker's address, to S
    .cfi_endproc
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
