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

# The straight path: pops the frame that the entry's half (balanced.s) has pushed, and has the call recorded unless it was too short; nothing
# is called then. Goes to 3f, with everything but r11 as it was, where it cannot be taken.
#
# Stack
#   S-48     rax, rdx, rcx, rsi, rdi from S-16 on
#   ...      for the record: r8, r9, r10, rcx, rsi, rdi; a word; vector registers, if the target uses them
#
# Registers
#   rcx      the task's block
#   rsi      the frame
#   rdi      its control word without all that is the same in every frame: the distance
#   rdx      when the function returned
#   rax r11  what is computed
    .macro fgraph_straight_exit
    cmp dword ptr [rip + {engine} + {straight}], 0
    je 3f
    .cfi_remember_state
    fgraph_straight_save
    # As early as possible: what runs behind it belongs to the tracer, not to the function.
    rdtsc
    shl rdx, 32
    or rdx, rax
    mov rcx, qword ptr gs:[fgraph_current_offset]
    test rcx, rcx
    jz 8f                                   # a task that is not traced
    mov eax, [rcx + FGRAPH_TASK_NEWEST]
    lea rsi, [rax + FGRAPH_STRAIGHT_WORDS]
    cmp rsi, [rcx + FGRAPH_TASK_LEN]
    ja 8f                                   # no stack, or a shorter frame at its end
    mov rsi, [rcx + FGRAPH_TASK_WORDS]
    lea rsi, [rsi + rax * 8]
    mov rdi, [rsi + FGRAPH_FRAME_CONTROL]
    xor rdi, [rip + {engine} + {straight_sealed}] # not 0, whatever became of the switch since
    cmp rdi, FGRAPH_DISTANCES
    jae 8f                                  # not of the tracer as it is registered now
    mov r11, [rsi + FGRAPH_FRAME_DATA]
    cmp r11, [rip + {engine} + {straight_header}]
    jne 8f                                  # not of this path
    lea r11, [rsp + 48]                     # S, the key
    cmp r11, [rsi + FGRAPH_FRAME_KEY]
    jne 8f                                  # frames were left behind above
    # Interrupts leave what follows as they find it, but for the count of returns.
    dec dword ptr [rcx + FGRAPH_TASK_DEPTH]
    mov eax, [rcx + FGRAPH_TASK_DEPTH]
    cmp eax, [rcx + FGRAPH_TASK_MAX_DEPTH]
    jae 5f                                  # deeper than ever
    mov r11, rdx
    sub r11, [rsi + FGRAPH_FRAME_TIME]
    cmp r11, [rip + {engine} + {straight_least}]
    jb 6f                                   # too short
5:
    push r8
    .cfi_adjust_cfa_offset 8
    push r9
    .cfi_adjust_cfa_offset 8
    push r10
    .cfi_adjust_cfa_offset 8
    push rcx
    .cfi_adjust_cfa_offset 8
    push rsi
    .cfi_adjust_cfa_offset 8
    push rdi
    .cfi_adjust_cfa_offset 8
    sub rsp, FGRAPH_VECTORS + 8
    .cfi_adjust_cfa_offset FGRAPH_VECTORS + 8
    fgraph_save_vectors 0
    lea rbp, [rsp + FGRAPH_VECTORS + 96]    # S-8, the frame record, since something is called
    mov rdi, rcx
    mov rcx, [rbp - 8]
    mov r8, [rbp - 16]
    call {straight_record}                  # (block of the task, frame, time, results)
    fgraph_restore_vectors 0
    add rsp, FGRAPH_VECTORS + 8
    .cfi_adjust_cfa_offset -(FGRAPH_VECTORS + 8)
    pop rdi
    .cfi_adjust_cfa_offset -8
    pop rsi
    .cfi_adjust_cfa_offset -8
    pop rcx
    .cfi_adjust_cfa_offset -8
    pop r10
    .cfi_adjust_cfa_offset -8
    pop r9
    .cfi_adjust_cfa_offset -8
    pop r8
    .cfi_adjust_cfa_offset -8
6:
    inc qword ptr [rcx + FGRAPH_TASK_RETURNS] # one instruction, which no interrupt comes between
    mov rax, [rsi + FGRAPH_FRAME_RET]
    mov [rsp + 48], rax                     # the real address, before the frame goes
    mov [rsi + FGRAPH_FRAME_CONTROL], rdi   # dead
    mov eax, [rcx + FGRAPH_TASK_NEWEST]     # the frame's place, which is free now
    mov edx, eax
    sub edx, edi                            # the one below: 0 if there is none, and so is eax
    shl rdx, 32
    or rax, rdx
    mov [rcx + FGRAPH_TASK_STATE], rax
    fgraph_straight_restore
    pop rbp
    .cfi_adjust_cfa_offset -8
    ret                                     # to what stands at S, where the caller's call left it
8:
    .cfi_restore_state
    .cfi_remember_state
    .cfi_adjust_cfa_offset 40
    fgraph_straight_restore
3:
    .cfi_restore_state
    .endm

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
    .if \paired
    fgraph_straight_exit
    lea r11, [rip + \name]
    .endif
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
    .purgem fgraph_straight_exit
    .purgem fgraph_straight_save
    .purgem fgraph_straight_restore
    .purgem fgraph_save_scratch
    .purgem fgraph_restore_scratch
    .purgem fgraph_save_vectors
    .purgem fgraph_restore_vectors
    .popsection
