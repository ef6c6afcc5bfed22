# x86_64 entry trampolines of prefixed sites: fgraph_balanced_entry and fgraph_guarded_entry. As in entry.s, but for what is said
# here.
#
# Who comes here: the `jmp` in a site's prefix, which the two-byte jump at the function's entry goes to; to the first by way of
# fgraph_straight_entry (straight.s), but for functions that never take the straight path.
#
# On arrival
#   r11      the function; the word of 32 bits before it is the distance from there to the site's state word
#   rsp+0    parent: where the traced function returns to. Its address (S) is the frame's key.
#   everything else as in entry.s
#
# On leaving: rip = the block's rip, rsp as at the function's first instruction (S), with a call from here in the place of the
# caller's if the return address became the balanced return hooker: the address pushed is the hooker's, so the stack is the
# same either way, and every return is paired with a call. (A guarded site's function is entered by a `ret`, which needs no landing
# pad, and its return address is the classic hooker.)
#
# Stack while the handler runs
#   S        parent      \ the traced function's frame record, so that walkers see it
#   S-8      rbp         /
#   S-16     resume      \ the trampoline's frame record; rbp points here (S-24)
#   S-24     S-8         /
#   ...      vector registers, if the target uses them
#   rsp      FtraceRegs
#
# S+8 is a multiple of 16 (psABI 3.2.2), so rsp is at the handler's call.

    # hooker: what a hooked function returns to
    # guarded: 1 if the body must not be called
    .macro fgraph_prefixed_entry name, hooker, guarded
    .balign 16
    .globl \name
    .type \name, @function
\name:
    .cfi_startproc                          # as the function itself
    push rbp
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset rbp, 0
    mov rbp, rsp                            # the traced function's record
    lea r11, [r11 + FGRAPH_SHORT_SLED]      # in the function, whatever its sled is
    push r11
    .cfi_adjust_cfa_offset 8
    push rbp
    .cfi_adjust_cfa_offset 8
    mov rbp, rsp                            # this trampoline's record
    .cfi_def_cfa_register rbp
    mov r11, qword ptr gs:[fgraph_current_offset] # this task's block: one load, so a migration cannot tear it
    test r11, r11
    jz 3f                                   # a task that is not traced
    cmp dword ptr [r11 + FGRAPH_TASK_NEST], FGRAPH_MAX_NEST
    jae 2f                                  # the tracer is tracing itself
    # An interrupt here may count up and down again, which leaves the word as it was.
    inc dword ptr [r11 + FGRAPH_TASK_NEST]
    sub rsp, FGRAPH_REGS_SIZE + FGRAPH_VECTORS

    fgraph_save_scratch
    mov [rsp + FGRAPH_REGS_TASK], r11
    mov rdx, [rbp + 8]
    sub rdx, FGRAPH_SHORT_SLED              # the function
    movsxd rsi, dword ptr [rdx - FGRAPH_STATE_BEFORE]
    add rsi, rdx                            # the state word
    mov rax, [rbp + 16]
    mov [rsp + FGRAPH_REGS_RBP], rax        # the caller's frame pointer
    lea rax, [rbp + 24]
    mov [rsp + FGRAPH_REGS_RSP], rax        # where parent stands: the key
    mov qword ptr [rsp + FGRAPH_REGS_SAVED], FGRAPH_SAVED_ARGS
    test byte ptr [rsi], FGRAPH_STATE_REGS
    jz 5f
    mov qword ptr [rsp + FGRAPH_REGS_SAVED], FGRAPH_SAVED_REGS
    mov [rsp + FGRAPH_REGS_RBX], rbx
    mov [rsp + FGRAPH_REGS_R12], r12
    mov [rsp + FGRAPH_REGS_R13], r13
    mov [rsp + FGRAPH_REGS_R14], r14
    mov [rsp + FGRAPH_REGS_R15], r15
    pushfq
    pop qword ptr [rsp + FGRAPH_REGS_RFLAGS] # (the address is computed after the pop)
5:  fgraph_save_vectors

    lea rcx, [rip + \hooker]
    mov rdi, rsp                            # the block
    call {prefixed_handler}                 # (block, state, function, hooker); sets the block's rip

    mov r11, [rsp + FGRAPH_REGS_TASK]
    dec dword ptr [r11 + FGRAPH_TASK_NEST]
    fgraph_restore_vectors
    cmp qword ptr [rsp + FGRAPH_REGS_SAVED], FGRAPH_SAVED_REGS
    jne 6f
    mov rbx, [rsp + FGRAPH_REGS_RBX]
    mov r12, [rsp + FGRAPH_REGS_R12]
    mov r13, [rsp + FGRAPH_REGS_R13]
    mov r14, [rsp + FGRAPH_REGS_R14]
    mov r15, [rsp + FGRAPH_REGS_R15]
6:
    .if !\guarded
    lea rax, [rip + \hooker]
    cmp rax, [rbp + 24]                     # hooked? No flag changes on the way to the branch.
    .endif
    fgraph_restore_scratch
    mov r11, [rsp + FGRAPH_REGS_RIP]
    mov rbp, [rsp + FGRAPH_REGS_RBP]
    .cfi_def_cfa rsp, FGRAPH_REGS_SIZE + FGRAPH_VECTORS + 32
    .cfi_restore rbp
    lea rsp, [rsp + FGRAPH_REGS_SIZE + FGRAPH_VECTORS + 24]
    .cfi_def_cfa_offset 8
    .if \guarded
    push r11
    .cfi_adjust_cfa_offset 8
    ret
    .else
    je fgraph_balanced_drop
    jmp r11
    .endif

    .cfi_def_cfa rbp, 32
    .cfi_offset rbp, -16
2:  inc qword ptr [r11 + FGRAPH_TASK_REFUSED]
3:  mov r11, [rbp + 8]                      # behind the sled, if there is no landing pad
    mov rbp, [rbp + 16]
    .cfi_def_cfa rsp, 32
    .cfi_restore rbp
    lea rsp, [rsp + 24]
    .cfi_def_cfa_offset 8
    cmp byte ptr [r11 - FGRAPH_SHORT_SLED], FGRAPH_PAD_FIRST # a landing pad, or the sled
    jne 4f
    lea r11, [r11 + FGRAPH_PAD_LEN]
4:
    .if \guarded
    push r11
    .cfi_adjust_cfa_offset 8
    ret
    .else
    jmp r11
    .endif
    .cfi_endproc
    .size \name, . - \name
    .endm

    .globl fgraph_jumped_start
fgraph_jumped_start:
    fgraph_prefixed_entry fgraph_balanced_entry, fgraph_balanced_hooker, 0
    fgraph_prefixed_entry fgraph_guarded_entry, fgraph_return_hooker, 1

    .purgem fgraph_prefixed_entry
