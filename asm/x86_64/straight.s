# x86_64's straight path: fgraph_straight_entry and fgraph_straight_hooker, the whole way of a call that the function_graph tracer alone wants.
# core/straight.rs says when it is taken, core/shadow.rs what the stores to the shadow stack and their order are for.
#
# Who comes to the entry: the `jmp` in a site's prefix, as in balanced.s, whose trampoline goes on where this one cannot. Who comes to the
# hooker: the `ret` of a function that was called by fgraph_straight_call, as in exit.s, whose balanced hooker goes on. Everything on arrival
# and on leaving is as there.

    # What both compute with.
    .macro fgraph_straight_save
    push rax
    .cfi_adjust_cfa_offset 8
    push rdx
    .cfi_adjust_cfa_offset 8
    push rcx
    .cfi_adjust_cfa_offset 8
    push rsi
    .cfi_adjust_cfa_offset 8
    push rdi
    .cfi_adjust_cfa_offset 8
    .endm

    .macro fgraph_straight_restore
    pop rdi
    .cfi_adjust_cfa_offset -8
    pop rsi
    .cfi_adjust_cfa_offset -8
    pop rcx
    .cfi_adjust_cfa_offset -8
    pop rdx
    .cfi_adjust_cfa_offset -8
    pop rax
    .cfi_adjust_cfa_offset -8
    .endm

# The frame of the only user, which is the tracer, pushed without a call.
#
# Stack
#   S        parent
#   S-40     rax, rdx, rcx, rsi, rdi from S-8 on
#
# Registers
#   r11      the function
#   rcx      the task's block
#   rsi      the frame
#   rdi      the stack's new state
#   rax      the distance to the frame below; then the frame's control word
#   rdx      what is computed
    .balign 16
    .globl fgraph_straight_entry
    .type fgraph_straight_entry, @function
fgraph_straight_entry:
    .cfi_startproc                          # as the function itself
    cmp dword ptr [rip + {engine} + {straight}], 0
    je fgraph_balanced_entry
    fgraph_straight_save
    mov rcx, qword ptr gs:[fgraph_current_offset]
    test rcx, rcx
    jz 8f                                   # a task that is not traced
    mov edx, [rcx + FGRAPH_TASK_STATE]      # top
    lea rdi, [rdx + FGRAPH_STRAIGHT_WORDS]
    cmp rdi, [rcx + FGRAPH_TASK_ROOM]
    ja 8f                                   # no stack, or no room, which is counted there; or paused
    mov eax, edx
    sub eax, [rcx + FGRAPH_TASK_NEWEST]     # the distance: 0 on an empty stack, where both are 0
    mov rsi, [rcx + FGRAPH_TASK_WORDS]
    lea rsi, [rsi + rdx * 8]
    shl rdx, 32
    or rdi, rdx                             # the new state: this frame, up to its end
    mov [rsi + FGRAPH_FRAME_CONTROL], rax   # dead
    mov [rcx + FGRAPH_TASK_STATE], rdi
    # From here on interrupts push above. One that came before may have left a live frame here.
    mov [rsi + FGRAPH_FRAME_CONTROL], rax
    inc dword ptr [rcx + FGRAPH_TASK_DEPTH]
    or rax, [rip + {engine} + {straight_sealed}] # on, whatever became of the switch since
    mov rcx, [rsp + 40]
    mov [rsi + FGRAPH_FRAME_RET], rcx
    mov [rsi + FGRAPH_FRAME_FUNC], r11
    lea rcx, [rsp + 40]                     # S, the key; in a register that a stack walker does not follow
    mov [rsi + FGRAPH_FRAME_KEY], rcx
    mov [rsi + FGRAPH_FRAME_CONTROL], rax   # sealed: everything that a walker needs is there
    # As late as possible: what runs before belongs to the tracer, not to the function.
    rdtsc
    shl rdx, 32
    or rax, rdx
    mov [rsi + FGRAPH_FRAME_TIME], rax
    fgraph_straight_restore
    lea r11, [r11 + FGRAPH_SHORT_SLED]      # no landing pad stands before it: such sites are guarded
    jmp fgraph_straight_drop
8:
    .cfi_adjust_cfa_offset 40
    fgraph_straight_restore
    jmp fgraph_balanced_entry
    .cfi_endproc
    .size fgraph_straight_entry, . - fgraph_straight_entry
    .globl fgraph_jumped_stop
fgraph_jumped_stop:

# Calls the function's body for its caller, as fgraph_balanced_call does. The call puts the hooker's address to S, in the place of parent.
    .globl fgraph_straight_drop
    .type fgraph_straight_drop, @function
fgraph_straight_drop:
    .cfi_startproc
    lea rsp, [rsp + 8]
    .cfi_endproc
    .size fgraph_straight_drop, . - fgraph_straight_drop
    .globl fgraph_straight_call
    .type fgraph_straight_call, @function
fgraph_straight_call:
    .cfi_startproc
    .cfi_def_cfa_offset 0
    call r11
    .cfi_endproc
    .size fgraph_straight_call, . - fgraph_straight_call

    # void: 1 for a function whose return value is not kept. Goes on behind itself when the record is there.
    .macro fgraph_straight_record void
    inc dword ptr gs:[fgraph_preempt_count] # from here on the task stays on its CPU
    test dword ptr gs:[fgraph_preempt_count], FGRAPH_INTERRUPTS
    jnz 41f
    sub rsi, [rip + {engine} + {straight_states}]
    shl rsi, FGRAPH_FUNC_SHIFT - FGRAPH_STATE_LOG2
    .if \void
    lea rax, [rsi + rax * 8 + FGRAPH_TAG_VOID]
    .else
    lea rax, [rsi + rax * 8 + FGRAPH_TAG_VALUE]
    .endif
    mov esi, gs:[fgraph_cpu_number]
    shl esi, FGRAPH_RING_LOG2
    lea rdi, [rip + {rings}]
    mov rdi, [rdi + rsi]
    test rdi, rdi
    jz 46f
    cmp qword ptr [rdi + FGRAPH_RING_BUSY], 0
    jne 38f
    mov qword ptr [rdi + FGRAPH_RING_BUSY], FGRAPH_RING_SHORT
    mov rsi, [rcx + FGRAPH_TASK_WHO]
    cmp rsi, [rdi + FGRAPH_RING_WHO]
    jne 43f                                 # another task, or one that is not known yet
    mov rsi, rdx
    sub rsi, [rdi + FGRAPH_RING_BASE]
    mov rcx, rsi
    or rcx, r11
    shr rcx, FGRAPH_TIME_BITS
    jnz 43f                                 # a time is too long for a record in short
    shl rsi, FGRAPH_DELTA_SHIFT
    shl r11, FGRAPH_DURATION_SHIFT
    or rax, rsi
    or rax, r11
    mov rsi, [rdi]
    .if !\void
    mov r11, [rsp + 32]                     # what it returned
    cmp r11, FGRAPH_SMALL_VALUES
    jb 4f
    lea rcx, [rsi + 2]
    fgraph_straight_place
    mov [rsi + 8], r11
    jmp 2f
4:
    add rax, r11
    add rax, FGRAPH_TAG_SMALL - FGRAPH_TAG_VALUE
    .endif
    lea rcx, [rsi + 1]
    fgraph_straight_place
2:
    mov [rsi], rax
    mov [rdi + FGRAPH_RING_BASE], rdx
    inc qword ptr [rdi + FGRAPH_RING_RECORDS]
    mov [rdi], rcx                          # committed
    mov qword ptr [rdi + FGRAPH_RING_BUSY], 0
    cmp [rdi + FGRAPH_RING_NESTED], rcx
    ja 45f
    dec dword ptr gs:[fgraph_preempt_count]
    jz 47f
    .endm

    # The address of the record at position rsi that ends at rcx.
    .macro fgraph_straight_place
    cmp rcx, [rdi + FGRAPH_RING_LIMIT]
    ja 44f
    and rsi, [rdi + FGRAPH_RING_MASK]
    shl rsi, 3
    add rsi, [rdi + FGRAPH_RING_FIRST_WORD]
    .endm

# Pops that frame, and records the call unless it was too short. What is not the usual case is left to Rust (arch/straight.rs), which is
# told how far this has come.
#
# Stack
#   S        this hooker's own address; then the real one, once the frame is found
#   S-40     rax, rdx, rcx, rsi, rdi from S-8 on
#   S-56     for Rust: a frame record; then r8, r9, r10; a word; vector registers, if the target uses them
#
# Registers
#   rcx      the task's block
#   rsi      the frame; then the function
#   rdi      the frame's control word without all that is the same in every frame: the distance; then the stack's new state
#   rdx      when the function returned
#   rax      where the newest frame is; then the call's depth
#   r11      what is computed; then how long the call took
    .globl fgraph_straight_hooker
    .type fgraph_straight_hooker, @function
fgraph_straight_hooker:
    .cfi_startproc
    .cfi_def_cfa_offset 0
    lea r11, [rip + fgraph_straight_hooker]
    push r11                                # S again
    .cfi_adjust_cfa_offset 8
    fgraph_straight_save
    # As early as possible: what runs behind it belongs to the tracer, not to the function.
    rdtsc
    shl rdx, 32
    or rdx, rax
    mov rcx, qword ptr gs:[fgraph_current_offset]
    test rcx, rcx
    jz 8f                                   # a task that is not traced any more
    mov eax, [rcx + FGRAPH_TASK_NEWEST]
    mov rsi, [rcx + FGRAPH_TASK_WORDS]      # a dead frame, if there is no stack
    lea rsi, [rsi + rax * 8]
    mov rdi, [rsi + FGRAPH_FRAME_CONTROL]
    xor rdi, [rip + {engine} + {straight}]
    cmp rdi, FGRAPH_DISTANCES
    jae 8f                                  # of another tracer than is registered now, or there is no straight path any more
    lea r11, [rsp + 40]                     # S, the key
    cmp r11, [rsi + FGRAPH_FRAME_KEY]
    jne 8f                                  # frames were left behind above
    # Interrupts leave what follows as they find it, but for the count of returns.
    mov r11, [rsi + FGRAPH_FRAME_RET]
    mov [rsp + 40], r11                     # the real address, before the frame goes
    mov r11, rdx
    sub r11, [rsi + FGRAPH_FRAME_TIME]
    dec dword ptr [rcx + FGRAPH_TASK_DEPTH]
    mov [rsi + FGRAPH_FRAME_CONTROL], rdi   # dead
    mov rsi, [rsi + FGRAPH_FRAME_FUNC]
    sub edi, eax                            # the one below is where this one is, less the distance: 0 if there is none, and
    neg edi                                 # so is this one
    shl rdi, 32
    or rdi, rax                             # the frame's place is free now
    mov [rcx + FGRAPH_TASK_STATE], rdi
    inc qword ptr [rcx + FGRAPH_TASK_RETURNS] # one instruction, which no interrupt comes between
    mov eax, [rcx + FGRAPH_TASK_DEPTH]
    cmp r11, [rip + {engine} + {straight_least}]
    jb 7f                                   # too short
    cmp eax, [rcx + FGRAPH_TASK_USUAL_DEPTH]
    jae 5f                                  # deeper than ever, or too deep for a record in short

# Writes the record, as Buffer::call does (core/ring/write.rs), store by store: who may come in between, and what for, stands there.
#
# Registers, beside the above
#   rsi      the function's state word; then what is computed
#   rax      the depth; then the record's first word
#   rdi      the buffer
#   rcx      the task's block; then where the record ends
    movsxd rdi, dword ptr [rsi - FGRAPH_STATE_BEFORE]
    add rsi, rdi
    test byte ptr [rsi], FGRAPH_KEPT_VALUE
    jz 42f
    fgraph_straight_record 0
6:
    fgraph_straight_restore
    ret                                     # to what stands at S, where the caller's call left it

    .cfi_adjust_cfa_offset 48
7:
    cmp eax, [rcx + FGRAPH_TASK_MAX_DEPTH]
    jb 6b
5: # Rust does it all.
    movsxd rdi, dword ptr [rsi - FGRAPH_STATE_BEFORE]
    add rsi, rdi
    jmp 40f
42: # Nothing is kept of what it returned; or more than one register, or the function is not the kernel's, or the platform has no words for us.
    test byte ptr [rsi], FGRAPH_KEPT_NOTHING
    jz 40f
    fgraph_straight_record 1
    jmp 6b
41: # This is not the task itself.
    dec dword ptr gs:[fgraph_preempt_count]
    jmp 40f
38: # On top of another writer.
    dec dword ptr gs:[fgraph_preempt_count] # the switch that may be due is made behind Rust's own hold
    mov rsi, rax
40:
    xor eax, eax
    jmp 49f
44: # The page is full.
    mov r11, rax
    shr r11, FGRAPH_DURATION_SHIFT
    and r11d, (1 << FGRAPH_TIME_BITS) - 1
43: # The buffer is busy for this record, which does not fit behind those that are there.
    mov rsi, rax
    mov rax, rdi
    jmp 49f
45: # The record is written, and interrupts left theirs behind it.
    lea rax, [rdi + FGRAPH_WRITTEN]
    jmp 49f
46: # There is no buffer to write to.
    dec dword ptr gs:[fgraph_preempt_count]
    jnz 6b
47: # All is done, but for a switch of tasks.
    mov eax, FGRAPH_SWITCH_DUE
49:
    push qword ptr [rsp + 40]               # a frame record, since something is called
    .cfi_adjust_cfa_offset 8
    push rbp
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset rbp, 0
    mov rbp, rsp
    push r8
    .cfi_adjust_cfa_offset 8
    push r9
    .cfi_adjust_cfa_offset 8
    push r10
    .cfi_adjust_cfa_offset 8
    sub rsp, FGRAPH_VECTORS + 8
    .cfi_adjust_cfa_offset FGRAPH_VECTORS + 8
    fgraph_save_vectors 0
    mov rdi, qword ptr gs:[fgraph_current_offset]
    mov rcx, rdx
    sub rcx, r11
    lea r8, [rbp + 40]                      # rdx, rax and the real address
    mov r9, rax
    call {straight_record}                  # (block of the task, function, end, start, results, how far this came)
    fgraph_restore_vectors 0
    add rsp, FGRAPH_VECTORS + 8
    .cfi_adjust_cfa_offset -(FGRAPH_VECTORS + 8)
    pop r10
    .cfi_adjust_cfa_offset -8
    pop r9
    .cfi_adjust_cfa_offset -8
    pop r8
    .cfi_adjust_cfa_offset -8
    pop rbp
    .cfi_adjust_cfa_offset -8
    .cfi_restore rbp
    lea rsp, [rsp + 8]
    .cfi_adjust_cfa_offset -8
    jmp 6b
8:
    fgraph_straight_restore
    lea rsp, [rsp + 8]                      # as on arrival
    .cfi_adjust_cfa_offset -8
    jmp fgraph_balanced_hooker
    .cfi_endproc
    .size fgraph_straight_hooker, . - fgraph_straight_hooker

    .purgem fgraph_straight_record
    .purgem fgraph_straight_place
    .purgem fgraph_straight_save
    .purgem fgraph_straight_restore
