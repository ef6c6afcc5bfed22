// arm64 entry trampolines of sites that are hooked the balanced way: fgraph_balanced_args_entry, by way of fgraph_straight_entry (straight.s),
// and fgraph_balanced_regs_entry. Their text and their contract are in entry.s, in the column `balanced`.

    .globl fgraph_jumped_start
fgraph_jumped_start:
    fgraph_entry fgraph_balanced_args_entry, FGRAPH_SAVED_ARGS, 0, 1, x30, x11
    fgraph_entry fgraph_balanced_regs_entry, FGRAPH_SAVED_REGS, 1, 1, x30, x11

    .purgem fgraph_entry
