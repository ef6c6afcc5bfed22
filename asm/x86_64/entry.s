# x86_64 entry trampolines of plain sites: fgraph_args_entry and fgraph_regs_entry. Those of prefixed sites are in balanced.s.
#
# Who comes here: the `call` in a patched sled, at a function's first instruction or behind its ENDBR64.
#
# On arrival
#   rsp+0    resume: the instruction behind the sled
#   rsp+8    parent: where the traced function returns to. Its address is the frame's key.
#   rax      number of vector arguments of a variadic function; a value that functions of the preserve-most
#            kind keep
#   rdi rsi rdx rcx r8 r9   arguments
#   r10      static chain of a nested C function
#   rbp      the caller's frame pointer
#   r11, flags   nobody's: the only ones that may be lost
#   interrupts in any state; the stack may be any stack
#
# On leaving: everything as on arrival, or as callbacks changed it in the register block; rip = block's rip, rsp as
# at the traced function's first instruction.
#
# Stack while the handler runs (E is rsp on arrival)
#   E+8      parent
#   E        resume, rewritten from the block at the end
#   E-8      parent      \ the traced function's frame record, so that walkers see it
#   E-16     rbp         /
#   E-24     resume      \ the trampoline's frame record; rbp points here (E-32)
#   E-32     E-16        /
#   ...      vector registers, if the target uses them
#   rsp      FtraceRegs
#
# E is a multiple of 16 (psABI 3.2.2: rsp+8 is at a function's entry, and the sled's call pushed one word more), so
# rsp is at the handler's call.

    .pushsection .text.notrace.fgraph_trampolines, "ax", @progbits

    .globl fgraph_trampolines_start
fgraph_trampolines_start:

    # vectors_at: from rsp to their place
    .macro fgraph_save_vectors vectors_at=FGRAPH_REGS_SIZE
    .if FGRAPH_VECTORS
    movups [rsp + \vectors_at + 0x00], xmm0
    movups [rsp + \vectors_at + 0x10], xmm1
    movups [rsp + \vectors_at + 0x20], xmm2
    movups [rsp + \vectors_at + 0x30], xmm3
    movups [rsp + \vectors_at + 0x40], xmm4
    movups [rsp + \vectors_at + 0x50], xmm5
    movups [rsp + \vectors_at + 0x60], xmm6
    movups [rsp + \vectors_at + 0x70], xmm7
    .endif
    .endm

    .macro fgraph_restore_vectors vectors_at=FGRAPH_REGS_SIZE
    .if FGRAPH_VECTORS
    movups xmm0, [rsp + \vectors_at + 0x00]
    movups xmm1, [rsp + \vectors_at + 0x10]
    movups xmm2, [rsp + \vectors_at + 0x20]
    movups xmm3, [rsp + \vectors_at + 0x30]
    movups xmm4, [rsp + \vectors_at + 0x40]
    movups xmm5, [rsp + \vectors_at + 0x50]
    movups xmm6, [rsp + \vectors_at + 0x60]
    movups xmm7, [rsp + \vectors_at + 0x70]
    .endif
    .endm

    # Everything a caller-saved register may hold for the traced code; r11 is free.
    .macro fgraph_save_scratch
    mov [rsp + FGRAPH_REGS_RAX], rax
    mov [rsp + FGRAPH_REGS_RCX], rcx
    mov [rsp + FGRAPH_REGS_RDX], rdx
    mov [rsp + FGRAPH_REGS_RSI], rsi
    mov [rsp + FGRAPH_REGS_RDI], rdi
    mov [rsp + FGRAPH_REGS_R8], r8
    mov [rsp + FGRAPH_REGS_R9], r9
    mov [rsp + FGRAPH_REGS_R10], r10
    .endm

    .macro fgraph_restore_scratch
    mov rax, [rsp + FGRAPH_REGS_RAX]
    mov rcx, [rsp + FGRAPH_REGS_RCX]
    mov rdx, [rsp + FGRAPH_REGS_RDX]
    mov rsi, [rsp + FGRAPH_REGS_RSI]
    mov rdi, [rsp + FGRAPH_REGS_RDI]
    mov r8, [rsp + FGRAPH_REGS_R8]
    mov r9, [rsp + FGRAPH_REGS_R9]
    mov r10, [rsp + FGRAPH_REGS_R10]
    .endm

    # all: 1 saves every register, 0 those that the handler may change
    .macro fgraph_entry name, saved, all
    .balign 16
    .globl \name
    .type \name, @function
\name:
    .cfi_startproc                          # as a function that the traced one called at its sled
    mov r11, qword ptr gs:[fgraph_current_offset] # this task's block: one load, so a migration cannot tear it
    test r11, r11
    jz 3f                                   # a task that is not traced
    cmp dword ptr [r11 + FGRAPH_TASK_NEST], FGRAPH_MAX_NEST
    jae 2f                                  # the tracer is tracing itself
    # An interrupt here may count up and down again, which leaves the word as it was.
    inc dword ptr [r11 + FGRAPH_TASK_NEST]

    push qword ptr [rsp + 8]                # parent
    .cfi_adjust_cfa_offset 8
    push rbp
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset rbp, 0
    mov rbp, rsp                            # the traced function's record
    push qword ptr [rsp + 16]               # resume
    .cfi_adjust_cfa_offset 8
    push rbp
    .cfi_adjust_cfa_offset 8
    mov rbp, rsp                            # this trampoline's record
    .cfi_def_cfa_register rbp
    sub rsp, FGRAPH_REGS_SIZE + FGRAPH_VECTORS

    fgraph_save_scratch
    .if \all
    mov [rsp + FGRAPH_REGS_RBX], rbx
    mov [rsp + FGRAPH_REGS_R12], r12
    mov [rsp + FGRAPH_REGS_R13], r13
    mov [rsp + FGRAPH_REGS_R14], r14
    mov [rsp + FGRAPH_REGS_R15], r15
    pushfq
    pop qword ptr [rsp + FGRAPH_REGS_RFLAGS] # (the address is computed after the pop)
    .endif
    mov rax, [rbp + 16]
    mov [rsp + FGRAPH_REGS_RBP], rax        # the caller's frame pointer
    mov rax, [rbp + 32]
    mov [rsp + FGRAPH_REGS_RIP], rax        # resume
    lea rax, [rbp + 40]
    mov [rsp + FGRAPH_REGS_RSP], rax        # where parent stands: the key
    mov qword ptr [rsp + FGRAPH_REGS_SAVED], \saved
    mov [rsp + FGRAPH_REGS_TASK], r11
    fgraph_save_vectors

    mov rdi, rsp                            # the block
    call {entry_handler}

    mov r11, [rsp + FGRAPH_REGS_TASK]
    dec dword ptr [r11 + FGRAPH_TASK_NEST]
    mov r11, [rsp + FGRAPH_REGS_RIP]
    mov [rbp + 32], r11                     # resume, perhaps elsewhere
    fgraph_restore_vectors
    .if \all
    mov rbx, [rsp + FGRAPH_REGS_RBX]
    mov r12, [rsp + FGRAPH_REGS_R12]
    mov r13, [rsp + FGRAPH_REGS_R13]
    mov r14, [rsp + FGRAPH_REGS_R14]
    mov r15, [rsp + FGRAPH_REGS_R15]
    .endif
    fgraph_restore_scratch
    mov rbp, [rsp + FGRAPH_REGS_RBP]
    .cfi_def_cfa rsp, FGRAPH_REGS_SIZE + FGRAPH_VECTORS + 40
    .cfi_restore rbp
    add rsp, FGRAPH_REGS_SIZE + FGRAPH_VECTORS + 32
    .cfi_def_cfa_offset 8
    ret                                     # paired with the sled's call

2:  inc qword ptr [r11 + FGRAPH_TASK_REFUSED]
3:  ret
    .cfi_endproc
    .size \name, . - \name
    .endm

    fgraph_entry fgraph_args_entry, FGRAPH_SAVED_ARGS, 0
    fgraph_entry fgraph_regs_entry, FGRAPH_SAVED_REGS, 1

# Where a breakpoint trap sends a core that ran into a site's INT3: r11 = resume, everything else as at the site.
# Does what the sled's call will do.
    .balign 16
    .globl fgraph_trap_args_entry
    .type fgraph_trap_args_entry, @function
fgraph_trap_args_entry:
    push r11
    jmp fgraph_args_entry
    .size fgraph_trap_args_entry, . - fgraph_trap_args_entry

    .balign 16
    .globl fgraph_trap_regs_entry
    .type fgraph_trap_regs_entry, @function
fgraph_trap_regs_entry:
    push r11
    jmp fgraph_regs_entry
    .size fgraph_trap_regs_entry, . - fgraph_trap_regs_entry

# Where a function goes on that a callback let return early: rsp as at its first instruction.
    .balign 16
    .globl fgraph_return_early
    .type fgraph_return_early, @function
fgraph_return_early:
    ret
    .size fgraph_return_early, . - fgraph_return_early

    .purgem fgraph_entry
