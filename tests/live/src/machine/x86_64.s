# Functions of the live tests that no compiler would write: for registers, tail calls and non-local jumps. Traced ones
# (`live_function`) begin with a compiler's sled and have an entry in the table of sites.
#
# Registers, the block: general registers by their number (rax rcx rdx rbx rsp rbp rsi rdi r8 to r15), then xmm0 to xmm15.

    # A function whose calls can be traced.
    .macro live_function name
    .pushsection .text.\name, "ax", @progbits
    .balign 16
    .globl \name
    .type \name, @function
2:  .if LIVE_PREFIX
    .fill 16, 1, 0x90
    .endif
\name:
    .if LIVE_PREFIX
    .byte 0x66, 0x90
    .else
    .byte 0x0f, 0x1f, 0x44, 0x00, 0x00
    .endif
    .pushsection __patchable_function_entries, "awo", @progbits, \name
    .balign 8
    .quad 2b
    .popsection
    .endm

    # One whose calls cannot.
    .macro live_plain name, section
    .pushsection \section\().\name, "ax", @progbits
    .balign 16
    .globl \name
    .type \name, @function
\name:
    .endm

    .macro live_end name
    .size \name, . - \name
    .popsection
    .endm

    .macro live_load_vectors from
    .irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
    movups xmm\n, [\from + LIVE_VECTORS + 16 * \n]
    .endr
    .endm

    .macro live_store_vectors to
    .irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
    movups [\to + LIVE_VECTORS + 16 * \n], xmm\n
    .endr
    .endm

    # All general registers but r11, which is `to`.
    .macro live_store_general to
    mov [\to + 8 * 0], rax
    mov [\to + 8 * 1], rcx
    mov [\to + 8 * 2], rdx
    mov [\to + 8 * 3], rbx
    mov [\to + 8 * 4], rsp
    mov [\to + 8 * 5], rbp
    mov [\to + 8 * 6], rsi
    mov [\to + 8 * 7], rdi
    mov [\to + 8 * 8], r8
    mov [\to + 8 * 9], r9
    mov [\to + 8 * 10], r10
    mov [\to + 8 * 12], r12
    mov [\to + 8 * 13], r13
    mov [\to + 8 * 14], r14
    mov [\to + 8 * 15], r15
    .endm

# live_call(rdi = function, rsi = registers to call it with, rdx = where to put those it leaves). rsp is not loaded.
    live_plain live_call, .text
    push rbp
    push rbx
    push r12
    push r13
    push r14
    push r15
    push rdx                                # where to put them
    push rdi                                # the function
    sub rsp, 8                              # rsp is a multiple of 16 at the call
    live_load_vectors rsi
    mov rax, [rsi + 8 * 0]
    mov rcx, [rsi + 8 * 1]
    mov rdx, [rsi + 8 * 2]
    mov rbx, [rsi + 8 * 3]
    mov rbp, [rsi + 8 * 5]
    mov rdi, [rsi + 8 * 7]
    mov r8, [rsi + 8 * 8]
    mov r9, [rsi + 8 * 9]
    mov r10, [rsi + 8 * 10]
    mov r11, [rsi + 8 * 11]
    mov r12, [rsi + 8 * 12]
    mov r13, [rsi + 8 * 13]
    mov r14, [rsi + 8 * 14]
    mov r15, [rsi + 8 * 15]
    mov rsi, [rsi + 8 * 6]
    call [rsp + 8]
    .globl live_call_return
live_call_return:
    mov r11, [rsp + 16]
    live_store_general r11
    live_store_vectors r11
    add rsp, 24
    pop r15
    pop r14
    pop r13
    pop r12
    pop rbx
    pop rbp
    ret
    live_end live_call

# Keeps the registers it is entered with in {saw}, and leaves those of {gives}, but for what it must not change.
    live_function live_probe
    lea r11, [rip + {saw}]
    live_store_general r11
    live_store_vectors r11
    lea r11, [rip + {gives}]
    live_load_vectors r11
    mov rax, [r11 + 8 * 0]
    mov rcx, [r11 + 8 * 1]
    mov rdx, [r11 + 8 * 2]
    mov rsi, [r11 + 8 * 6]
    mov rdi, [r11 + 8 * 7]
    mov r8, [r11 + 8 * 8]
    mov r9, [r11 + 8 * 9]
    mov r10, [r11 + 8 * 10]
    ret
    live_end live_probe

# live_tail_first(n) = (n + 1) * 2 + 100, by two tail calls.
    live_function live_tail_first
    add rdi, 1
    jmp live_tail_second
    live_end live_tail_first

    live_function live_tail_second
    add rdi, rdi
    jmp live_tail_third
    live_end live_tail_second

    live_function live_tail_third
    lea rax, [rdi + 100]
    ret
    live_end live_tail_third

# The same, from a function that is not traced.
    live_plain live_tail_untraced, .text
    jmp live_tail_first
    live_end live_tail_untraced

# live_tail_loop(n, sum) = sum + n + ... + 1, by n tail calls of itself.
    live_function live_tail_loop
    test rdi, rdi
    jz 3f
    add rsi, rdi
    dec rdi
    jmp live_tail_loop
3:  mov rax, rsi
    ret
    live_end live_tail_loop

# live_catch(rdi = function, rsi = argument): what function(argument) returns, or what live_throw is given below it.
    live_plain live_catch, .text
    push rbp
    push rbx
    push r12
    push r13
    push r14
    push r15
    push qword ptr [rip + {catcher}]        # of the catch around this one; rsp is a multiple of 16 now
    mov [rip + {catcher}], rsp
    mov rax, rdi
    mov rdi, rsi
    call rax
3:  pop qword ptr [rip + {catcher}]
    pop r15
    pop r14
    pop r13
    pop r12
    pop rbx
    pop rbp
    ret
    live_end live_catch

# live_throw(rdi = value): goes on behind the call in live_catch. Nothing returns to what is between.
    live_plain live_throw, .text
    mov rax, rdi
    mov rsp, [rip + {catcher}]
    jmp 3b
    live_end live_throw

# live_misalignment() = bits of rsp that should be 0
    live_plain live_misalignment, .text.notrace
    lea rax, [rsp + 8]
    and eax, 15
    ret
    live_end live_misalignment

    .purgem live_function
    .purgem live_plain
    .purgem live_end
    .purgem live_load_vectors
    .purgem live_store_vectors
    .purgem live_store_general
