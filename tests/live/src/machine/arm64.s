// Functions of the live tests that no compiler would write. As in x86_64.s, but for what is said here.
//
// Registers, the block: x0 to x30, sp, then v0 to v31.

    // A function whose calls can be traced.
    .macro live_function name
    .pushsection .text.\name, "ax", %progbits
    .balign 16
    .globl \name
    .type \name, %function
2:  .if LIVE_PREFIX
    nop
    nop
    .endif
\name:
    nop
    nop
    .pushsection __patchable_function_entries, "awo", %progbits, \name
    .balign 8
    .quad 2b
    .popsection
    .endm

    // One whose calls cannot.
    .macro live_plain name, section
    .pushsection \section\().\name, "ax", %progbits
    .balign 16
    .globl \name
    .type \name, %function
\name:
    .endm

    .macro live_end name
    .size \name, . - \name
    .popsection
    .endm

    // x16 = address of a symbol
    .macro live_address symbol
    adrp    x16, \symbol
    add     x16, x16, #:lo12:\symbol
    .endm

    // All but x16 and x17, which are free; x16 is the block.
    .macro live_store_all
    stp     x0, x1, [x16, #8 * 0]
    stp     x2, x3, [x16, #8 * 2]
    stp     x4, x5, [x16, #8 * 4]
    stp     x6, x7, [x16, #8 * 6]
    stp     x8, x9, [x16, #8 * 8]
    stp     x10, x11, [x16, #8 * 10]
    stp     x12, x13, [x16, #8 * 12]
    stp     x14, x15, [x16, #8 * 14]
    stp     x18, x19, [x16, #8 * 18]
    stp     x20, x21, [x16, #8 * 20]
    stp     x22, x23, [x16, #8 * 22]
    stp     x24, x25, [x16, #8 * 24]
    stp     x26, x27, [x16, #8 * 26]
    stp     x28, x29, [x16, #8 * 28]
    mov     x17, sp
    stp     x30, x17, [x16, #8 * 30]
    .irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
    str     q\n, [x16, #LIVE_VECTORS + 16 * \n]
    .endr
    .irp n, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
    str     q\n, [x16, #LIVE_VECTORS + 16 * \n]
    .endr
    .endm

    // Those that a function may change, but x16 and x17; x16 is the block.
    .macro live_load_scratch
    .irp n, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
    ldr     q\n, [x16, #LIVE_VECTORS + 16 * \n]
    .endr
    ldp     x0, x1, [x16, #8 * 0]
    ldp     x2, x3, [x16, #8 * 2]
    ldp     x4, x5, [x16, #8 * 4]
    ldp     x6, x7, [x16, #8 * 6]
    ldp     x8, x9, [x16, #8 * 8]
    ldp     x10, x11, [x16, #8 * 10]
    ldp     x12, x13, [x16, #8 * 12]
    ldp     x14, x15, [x16, #8 * 14]
    ldr     x18, [x16, #8 * 18]
    .endm

    // Those that a function gives back as they were, on the stack.
    .macro live_push_saved
    stp     x29, x30, [sp, #-176]!
    stp     x19, x20, [sp, #16]
    stp     x21, x22, [sp, #32]
    stp     x23, x24, [sp, #48]
    stp     x25, x26, [sp, #64]
    stp     x27, x28, [sp, #80]
    stp     d8, d9, [sp, #96]
    stp     d10, d11, [sp, #112]
    stp     d12, d13, [sp, #128]
    stp     d14, d15, [sp, #144]
    .endm

    .macro live_pop_saved
    ldp     x19, x20, [sp, #16]
    ldp     x21, x22, [sp, #32]
    ldp     x23, x24, [sp, #48]
    ldp     x25, x26, [sp, #64]
    ldp     x27, x28, [sp, #80]
    ldp     d8, d9, [sp, #96]
    ldp     d10, d11, [sp, #112]
    ldp     d12, d13, [sp, #128]
    ldp     d14, d15, [sp, #144]
    ldp     x29, x30, [sp], #176
    .endm

// live_call(x0 = function, x1 = registers to call it with, x2 = where to put those it leaves). sp and x30 are not loaded.
    live_plain live_call, .text
    live_push_saved
    stp     x0, x2, [sp, #160]              // the function; where to put them
    mov     x16, x1
    live_load_scratch
    .irp n, 8, 9, 10, 11, 12, 13, 14, 15
    ldr     q\n, [x16, #LIVE_VECTORS + 16 * \n]
    .endr
    ldr     x19, [x16, #8 * 19]
    ldp     x20, x21, [x16, #8 * 20]
    ldp     x22, x23, [x16, #8 * 22]
    ldp     x24, x25, [x16, #8 * 24]
    ldp     x26, x27, [x16, #8 * 26]
    ldp     x28, x29, [x16, #8 * 28]
    ldr     x16, [sp, #160]
    blr     x16
    .globl live_call_return
live_call_return:
    ldr     x16, [sp, #168]
    live_store_all
    live_pop_saved
    ret
    live_end live_call

// Keeps the registers it is entered with in {saw}, and leaves those of {gives}, but for what it must not change.
    live_function live_probe
    live_address {saw}
    live_store_all
    live_address {gives}
    live_load_scratch
    ret
    live_end live_probe

    live_function live_tail_first
    add     x0, x0, #1
    b       live_tail_second
    live_end live_tail_first

    live_function live_tail_second
    add     x0, x0, x0
    b       live_tail_third
    live_end live_tail_second

    live_function live_tail_third
    add     x0, x0, #100
    ret
    live_end live_tail_third

    live_plain live_tail_untraced, .text
    b       live_tail_first
    live_end live_tail_untraced

    live_function live_tail_loop
    cbz     x0, 3f
    add     x1, x1, x0
    sub     x0, x0, #1
    b       live_tail_loop
3:  mov     x0, x1
    ret
    live_end live_tail_loop

    live_plain live_catch, .text
    live_push_saved
    live_address {catcher}
    ldr     x17, [x16]                      // of the catch around this one
    str     x17, [sp, #160]
    mov     x17, sp
    str     x17, [x16]
    mov     x16, x0
    mov     x0, x1
    blr     x16
    .globl live_caught
live_caught:
    live_address {catcher}
    ldr     x17, [sp, #160]
    str     x17, [x16]
    live_pop_saved
    ret
    live_end live_catch

    live_plain live_throw, .text
    live_address {catcher}
    ldr     x17, [x16]
    mov     sp, x17
    b       live_caught
    live_end live_throw

    live_plain live_misalignment, .text.notrace
    mov     x0, sp
    and     x0, x0, #15
    ret
    live_end live_misalignment

    .purgem live_function
    .purgem live_plain
    .purgem live_end
    .purgem live_address
    .purgem live_store_all
    .purgem live_load_scratch
    .purgem live_push_saved
    .purgem live_pop_saved
