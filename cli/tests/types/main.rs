//! Types from the debug information of real compilers, read back by the reader of the kernel and by other programs.
//!
//! Bugs that other makers of types have had, by their numbers in the list of known bugs, and the tests that would see them here:
//!
//! * BT-04: nothing was not told from a number: `c::every_shape_is_read_back` (`nothing`), `rust::every_shape_is_read_back` (`unit`,
//!   `never`)
//! * BT-05: structures of any size are returned: `rust::pairs_are_what_the_compiler_has_for_pairs`
//! * BT-06: whether `char` has a sign was guessed: `c::the_sign_of_char_is_the_compilers`
//! * BT-07: enumerations of 64 bits were unknown: `c::every_shape_is_read_back` (`wide`)
//! * BT-10, BT-11: functions of one name were mixed, and a structure that another unit only declares was another type:
//!   `c::equal_names_are_never_mixed`, `embed::code_of_several_functions_has_types_only_if_they_agree`
//! * BT-14, BT-15, BT-17: bitfields at the wrong bit, and structures that had any could not be used:
//!   `c::every_shape_is_read_back` (`flags`, `iphdr`), `others::pahole_finds_the_structs_of_the_debug_information`
//!
//! The rest of BT is about reading and showing.

mod c;
mod damage;
mod declare;
mod embed;
mod linux;
mod make;
mod others;
mod rust;
#[expect(
    dead_code,
    unreachable_pub,
    clippy::too_many_arguments,
    clippy::empty_loop,
    reason = "as it would stand in a kernel"
)]
mod shapes;
mod split;
