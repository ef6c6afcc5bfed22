// arm64's straight path: fgraph_straight_entry and fgraph_straight_hooker. As in x86_64/straight.s, but for what is said here.
//
// Who comes to the entry: the `b` in a patched sled whose first word is `adr x17, site + tag`, as in entry.s. Such a site has no landing pad
// before it, or it would be hooked the classic way.

// Stack
//   S-48     x9 to x14
//
// Registers
//   x17      the site and its tag
//   x16      the task's block; then where the function goes on
//   x9       the frame's control word
//   x11      the frame
//   x10 x12 x13 x14  what is computed
    .balign 16
    .globl fgraph_straight_entry
    .type fgraph_straight_entry, %function
fgraph_straight_entry:
    tbz     x17, #FGRAPH_TAG_PREFIX_BIT, fgraph_balanced_args_entry // the way back needs the prefix to know the function by
    stp     x9, x10, [sp, #-48]!
    stp     x11, x12, [sp, #16]
    stp     x13, x14, [sp, #32]
    adrp    x9, {engine} + {straight}
    ldr     x9, [x9, #:lo12:{engine} + {straight}] // the control word without its distance
    tbz     x9, #FGRAPH_STRAIGHT_BIT, 8f    // there is no straight path
    .word   fgraph_current_read             // mrs x16, <the task's register>: written by the linker
    ldr     x16, [x16, #:lo12:fgraph_current_offset] // this task's block
    cbz     x16, 8f                         // a task that is not traced
    ldp     w10, w14, [x16, #FGRAPH_TASK_STATE] // top; newest
    ldr     x13, [x16, #FGRAPH_TASK_ROOM]
    add     x12, x10, #FGRAPH_STRAIGHT_WORDS
    cmp     x12, x13
    b.hi    8f                              // no stack, or no room, which is counted there; or paused
    orr     x13, x12, x10, lsl #32          // the new state: this frame, up to its end
    ldr     x11, [x16, #FGRAPH_TASK_WORDS]
    add     x11, x11, x10, lsl #3
    sub     w12, w10, w14                   // the distance: 0 on an empty stack, where both are 0
    str     x12, [x11, #FGRAPH_FRAME_CONTROL] // dead
    str     x13, [x16, #FGRAPH_TASK_STATE]
    // From here on interrupts push above. One that came before may have left a live frame here.
    str     x12, [x11, #FGRAPH_FRAME_CONTROL]
    orr     x9, x9, x12
    ldr     w10, [x16, #FGRAPH_TASK_DEPTH]
    add     w10, w10, #1
    // An interrupt before this store counted up and down again, so w10 is still right.
    str     w10, [x16, #FGRAPH_TASK_DEPTH]
    bic     x10, x17, #FGRAPH_TAGS          // the function
    stp     x30, x10, [x11, #FGRAPH_FRAME_RET]
    add     x12, sp, #48                    // the key
    str     x12, [x11, #FGRAPH_FRAME_KEY]
    str     x9, [x11, #FGRAPH_FRAME_CONTROL] // sealed: everything that a walker needs is there
    add     x16, x10, #FGRAPH_SLED
    // As late as possible: what runs before belongs to the tracer, not to the function.
    mrs     x10, cntvct_el0
    str     x10, [x11, #FGRAPH_FRAME_TIME]
    ldp     x13, x14, [sp, #32]
    ldp     x11, x12, [sp, #16]
    ldp     x9, x10, [sp], #48
    b       fgraph_straight_call
8:
    ldp     x13, x14, [sp, #32]
    ldp     x11, x12, [sp, #16]
    ldp     x9, x10, [sp], #48
    b       fgraph_balanced_args_entry
    .size fgraph_straight_entry, . - fgraph_straight_entry
    .globl fgraph_jumped_stop
fgraph_jumped_stop:

    // void: 1 for a function whose return value is not kept. Goes on behind itself when the record is there.
    .macro fgraph_straight_record void
    ldr     w9, [x16, #:lo12:fgraph_preempt_count]
    add     w9, w9, #1                      // interrupts leave it as they find it
    str     w9, [x16, #:lo12:fgraph_preempt_count] // from here on the task stays on its CPU
    tst     w9, #FGRAPH_INTERRUPTS
    b.ne    41f
    ldr     x9, [x17, #FGRAPH_TASK_RETURNS] // interrupts count theirs apart
    add     x9, x9, #1
    str     x9, [x17, #FGRAPH_TASK_RETURNS]
    adrp    x9, {engine} + {straight_states}
    ldr     x9, [x9, #:lo12:{engine} + {straight_states}]
    sub     x11, x11, x9
    lsl     x11, x11, #FGRAPH_FUNC_SHIFT - FGRAPH_STATE_LOG2
    orr     x11, x11, x12, lsl #FGRAPH_DEPTH_SHIFT
    .if \void
    add     x11, x11, #FGRAPH_TAG_VOID
    .else
    add     x11, x11, #FGRAPH_TAG_VALUE
    .endif
    ldr     w9, [x16, #:lo12:fgraph_cpu_number]
    adrp    x12, {rings}
    add     x12, x12, #:lo12:{rings}
    add     x12, x12, x9, lsl #FGRAPH_RING_LOG2
    ldr     x12, [x12]
    cbz     x12, 46f
    ldr     x9, [x12, #FGRAPH_RING_BUSY]
    cbnz    x9, 38f
    mov     w9, #FGRAPH_RING_SHORT
    str     x9, [x12, #FGRAPH_RING_BUSY]
    ldp     x9, x30, [x12, #FGRAPH_RING_BASE] // and who
    ldr     x17, [x17, #FGRAPH_TASK_WHO]
    cmp     x30, x17
    b.ne    43f                             // another task, or one that is not known yet
    sub     x9, x10, x9
    orr     x30, x9, x13
    lsr     x30, x30, #FGRAPH_TIME_BITS
    cbnz    x30, 43f                        // a time is too long for a record in short
    orr     x11, x11, x13, lsl #FGRAPH_DURATION_SHIFT
    orr     x11, x11, x9, lsl #FGRAPH_DELTA_SHIFT
    ldr     x9, [x12]                       // where the record goes
    .if !\void
    cmp     x0, #FGRAPH_SMALL_VALUES
    b.lo    4f
    add     x13, x9, #2
    fgraph_straight_place
    stp     x11, x0, [x9]
    b       2f
4:
    add     x11, x11, x0
    add     x11, x11, #FGRAPH_TAG_SMALL - FGRAPH_TAG_VALUE
    .endif
    add     x13, x9, #1
    fgraph_straight_place
    str     x11, [x9]
2:
    str     x10, [x12, #FGRAPH_RING_BASE]
    ldr     x9, [x12, #FGRAPH_RING_RECORDS]
    add     x9, x9, #1
    str     x9, [x12, #FGRAPH_RING_RECORDS]
    stlr    x13, [x12]                      // committed
    str     xzr, [x12, #FGRAPH_RING_BUSY]
    ldr     x9, [x12, #FGRAPH_RING_NESTED]
    cmp     x9, x13
    b.hi    45f
    ldr     w9, [x16, #:lo12:fgraph_preempt_count]
    sub     w9, w9, #1
    str     w9, [x16, #:lo12:fgraph_preempt_count]
    ldr     x9, [x16, #:lo12:fgraph_preempt_count]
    cbz     x9, 47f
    .endm

    // The address of the record at position x9 that ends at x13.
    .macro fgraph_straight_place
    ldr     x30, [x12, #FGRAPH_RING_LIMIT]
    cmp     x13, x30
    b.hi    44f
    ldp     x30, x17, [x12, #FGRAPH_RING_FIRST_WORD] // and the mask
    and     x9, x9, x17
    add     x9, x30, x9, lsl #3
    .endm

    // Counts a return of an interrupt's, or of a task's that may be interrupted here. Takes x9, x12 and x30.
    .macro fgraph_straight_count
    add     x12, x17, #FGRAPH_TASK_RETURNS_APART
3:  ldxr    x9, [x12]                       // exclusive against interrupts: the exception return ends it (Arm ARM B2.12.1)
    add     x9, x9, #1
    stxr    w30, x9, [x12]
    cbnz    w30, 3b
    .endm

    // Takes the hold back. A switch that may be due is made behind Rust's own hold.
    .macro fgraph_straight_release
    ldr     w9, [x16, #:lo12:fgraph_preempt_count]
    sub     w9, w9, #1
    str     w9, [x16, #:lo12:fgraph_preempt_count]
    .endm

// Calls the function's body for its caller: x16 = where it goes on, everything else as at its first instruction.
    .globl fgraph_straight_call
    .type fgraph_straight_call, %function
fgraph_straight_call:
    blr     x16                             // x30 = the hooker
    .size fgraph_straight_call, . - fgraph_straight_call

// Stack
//   S-8      this hooker's own address; then the real one, once the frame is found
//   S-48     x9 to x13
//   S-64     for Rust: a frame record; then x0 to x8, x14, x15, x18, with the results and the real address first; vector registers, if the
//            target uses them
//
// Registers
//   x16      what the task's register has
//   x17      the task's block
//   x10      when the function returned
//   x11      the frame; then the function; its state word; the record's first word
//   x12      where the newest frame is; then the call's depth; then the buffer, or what Rust is told
//   x13      how long the call took; then where the record ends
//   x9 x30   what is computed
    .globl fgraph_straight_hooker
    .type fgraph_straight_hooker, %function
fgraph_straight_hooker:
    stp     x9, x10, [sp, #-48]!
    stp     x11, x12, [sp, #16]
    adr     x30, fgraph_straight_hooker
    stp     x13, x30, [sp, #32]
    // As early as possible: what runs behind it belongs to the tracer, not to the function.
    mrs     x10, cntvct_el0
    .word   fgraph_current_read             // mrs x16, <the task's register>: written by the linker
    ldr     x17, [x16, #:lo12:fgraph_current_offset] // this task's block
    cbz     x17, 8f                         // a task that is not traced any more
    ldr     w12, [x17, #FGRAPH_TASK_NEWEST]
    ldr     x11, [x17, #FGRAPH_TASK_WORDS]  // a dead frame, if there is no stack
    add     x11, x11, x12, lsl #3
    ldp     x13, x30, [x11, #FGRAPH_FRAME_KEY] // and the control word
    adrp    x9, {engine} + {straight}
    ldr     x9, [x9, #:lo12:{engine} + {straight}]
    eor     x9, x9, x30
    cmp     x9, #FGRAPH_DISTANCES
    b.hs    8f                              // of another tracer than is registered now, or there is no straight path any more
    add     x30, sp, #48                    // S, the key
    cmp     x13, x30
    b.ne    8f                              // frames were left behind above
    ldr     x30, [x11, #FGRAPH_FRAME_RET]
    str     x30, [sp, #40]                  // the real address, before the frame goes
    ldr     x13, [x11, #FGRAPH_FRAME_TIME]
    sub     x13, x10, x13
    str     x9, [x11, #FGRAPH_FRAME_CONTROL] // dead
    ldr     x11, [x11, #FGRAPH_FRAME_FUNC]
    sub     w30, w12, w9                    // the one below: 0 if there is none, and so is this one
    orr     x9, x12, x30, lsl #32           // the frame's place is free now
    ldr     w12, [x17, #FGRAPH_TASK_DEPTH]
    sub     w12, w12, #1
    // An interrupt before this store counted up and down again, so w12 is still right.
    str     w12, [x17, #FGRAPH_TASK_DEPTH]
    str     x9, [x17, #FGRAPH_TASK_STATE]
    adrp    x9, {engine} + {straight_least}
    ldr     x9, [x9, #:lo12:{engine} + {straight_least}]
    cmp     x13, x9
    b.lo    7f                              // too short
    ldr     w9, [x17, #FGRAPH_TASK_USUAL_DEPTH]
    cmp     w12, w9
    b.hs    5f                              // deeper than ever, or too deep for a record in short
    ldp     w9, w30, [x11, #-FGRAPH_PREFIX]
    orr     x11, x9, x30, lsl #32           // the function's state word
    ldrb    w9, [x11]
    tbz     w9, #FGRAPH_KEPT_VALUE_BIT, 42f
    fgraph_straight_record 0
6:
    ldp     x13, x30, [sp, #32]
    ldp     x11, x12, [sp, #16]
    ldp     x9, x10, [sp], #48
    ret                                     // paired with the caller's call

7:
    ldr     w9, [x17, #FGRAPH_TASK_MAX_DEPTH]
    cmp     w12, w9
    b.hs    5f
    fgraph_straight_count
    b       6b
42: // Nothing is kept of what it returned; or more than one register, or the function is not the kernel's, or the platform has no words for us.
    tbz     w9, #FGRAPH_KEPT_NOTHING_BIT, 40f
    fgraph_straight_record 1
    b       6b
41: // This is not the task itself.
    fgraph_straight_release
    b       40f
5: // Rust does it all.
    ldp     w9, w30, [x11, #-FGRAPH_PREFIX]
    orr     x11, x9, x30, lsl #32
40:
    fgraph_straight_count
    mov     x12, #0
    b       49f
38: // On top of another writer.
    fgraph_straight_release
    mov     x12, #0
    b       49f
44: // The page is full.
    ubfx    x13, x11, #FGRAPH_DURATION_SHIFT, #FGRAPH_TIME_BITS
    b       49f
45: // The record is written, and interrupts left theirs behind it.
    add     x12, x12, #FGRAPH_WRITTEN
    b       49f
46: // There is no buffer to write to.
    fgraph_straight_release
    ldr     x9, [x16, #:lo12:fgraph_preempt_count]
    cbnz    x9, 6b
47: // All is done, but for a switch of tasks.
    mov     x12, #FGRAPH_SWITCH_DUE
43: // The buffer is busy for this record, which does not fit behind those that are there; or one of the above.
49:
    ldr     x30, [sp, #40]
    sub     sp, sp, #128 + FGRAPH_VECTORS
    stp     x1, x0, [sp]
    stp     x30, x18, [sp, #16]
    stp     x2, x3, [sp, #32]
    stp     x4, x5, [sp, #48]
    stp     x6, x7, [sp, #64]
    stp     x8, x15, [sp, #80]
    str     x14, [sp, #96]
    stp     x29, x30, [sp, #112]            // a frame record, since something is called
    fgraph_save_vectors 128
    add     x29, sp, #112
    .word   fgraph_current_read             // mrs x16, <the task's register>: written by the linker
    ldr     x0, [x16, #:lo12:fgraph_current_offset]
    mov     x1, x11
    mov     x2, x10
    sub     x3, x10, x13
    mov     x4, sp
    mov     x5, x12
    bl      {straight_record}               // (block of the task, function, end, start, results, how far this came)
    fgraph_restore_vectors 128
    ldp     x29, x30, [sp, #112]
    ldr     x14, [sp, #96]
    ldp     x8, x15, [sp, #80]
    ldp     x6, x7, [sp, #64]
    ldp     x4, x5, [sp, #48]
    ldp     x2, x3, [sp, #32]
    ldp     x30, x18, [sp, #16]
    ldp     x1, x0, [sp]
    add     sp, sp, #128 + FGRAPH_VECTORS
    b       6b
8:
    ldp     x13, x30, [sp, #32]
    ldp     x11, x12, [sp, #16]
    ldp     x9, x10, [sp], #48
    b       fgraph_balanced_hooker
    .size fgraph_straight_hooker, . - fgraph_straight_hooker

    .purgem fgraph_straight_record
    .purgem fgraph_straight_place
    .purgem fgraph_straight_count
    .purgem fgraph_straight_release
