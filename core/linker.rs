//! The linker-script fragments an embedder includes, and where what they place ends up.
//!
//! Write them from a build script into its output folder, let the linker search there (`-L`), and say in the script
//!
//! ```text
//! .text : { INCLUDE fgraph-text.ld  *(.text .text.*) }
//! .data : { INCLUDE fgraph-data.ld  *(.data .data.*) }
//! .bss  : { ... }
//! INCLUDE fgraph-bss.ld
//! ```
//!
//! GNU ld and LLD understand them alike.

/// Goes first into the output section of the text: this crate's functions and what must not be traced, between two
/// symbols.
pub const TEXT: &str = include_str!("../link/fgraph-text.ld");

/// Goes into a writable output section that is loaded: the compiler's site table, between two symbols.
pub const DATA: &str = include_str!("../link/fgraph-data.ld");

/// Stands as a command among the output sections, behind the one with [`DATA`]: room for one word of state for each site.
pub const BSS: &str = include_str!("../link/fgraph-bss.ld");

/// The file names that the fragments include each other and are included by.
pub const FILES: [(&str, &str); 3] =
    [("fgraph-text.ld", TEXT), ("fgraph-data.ld", DATA), ("fgraph-bss.ld", BSS)];

/// The site table and the notrace range as the fragments placed them; `text` is the embedder's to say, and
/// so are `layouts` and `hooking` if the defaults do not fit. Usable once.
///
/// # Safety
/// 1. The image was linked with all three fragments.
/// 2. This is called once: the source has the only reference to the table.
#[cfg(feature = "trampolines")]
pub unsafe fn site_source(text: core::ops::Range<usize>) -> crate::SiteSource {
    unsafe extern "C" {
        static mut __fgraph_sites_start: usize;
        static mut __fgraph_sites_stop: usize;
        static mut __fgraph_states_start: u64;
        static mut __fgraph_states_stop: u64;
        static __fgraph_text_start: u8;
        static __fgraph_text_stop: u8;
    }
    let sites = &raw mut __fgraph_sites_start;
    let states = &raw mut __fgraph_states_start;
    let site_bytes = (&raw const __fgraph_sites_stop).addr().saturating_sub(sites.addr());
    let state_bytes = (&raw const __fgraph_states_stop).addr().saturating_sub(states.addr());
    // SAFETY: the linker placed both tables, aligned to 8, writable and loaded or zeroed, between their symbols, and nothing
    // else refers to them (conditions 1 and 2).
    let entries = unsafe { core::slice::from_raw_parts_mut(sites, site_bytes / size_of::<usize>()) };
    // SAFETY: as above.
    let states = unsafe { core::slice::from_raw_parts_mut(states, state_bytes / size_of::<u64>()) };
    let notrace = (&raw const __fgraph_text_start).addr()..(&raw const __fgraph_text_stop).addr();
    crate::SiteSource {
        entries,
        states,
        text,
        notrace,
        layouts: crate::Layouts::default(),
        hooking: crate::Hooking::default(),
    }
}
