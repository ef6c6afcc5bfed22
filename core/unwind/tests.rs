//! Tests of stack walks.

mod cfi;
mod model;
mod wild;

use super::*;

#[test]
fn signatures_are_stripped_and_plain_addresses_stay() {
    let auth = PtrAuth::arm64(48, false);
    assert_eq!(auth.mask, 0xff7f_0000_0000_0000);
    let (kernel, user) = (0xffff_8000_1234_5678, 0x0000_7fff_1234_5678);
    for plain in [kernel, user, 0, usize::MAX, 1 << 55 | 0xff7f << 48] {
        assert_eq!(auth.strip(plain), plain, "{plain:#x}");
    }
    for signature in [0xa5u8, 0x01, 0xfe] {
        let bits = usize::from(signature) << 48 & auth.mask | usize::from(signature) << 56 & auth.mask;
        assert_eq!(auth.strip(kernel ^ bits), kernel, "{signature:#x}");
        assert_eq!(auth.strip(user ^ bits), user, "{signature:#x}");
    }
    let tagged = PtrAuth::arm64(39, true);
    assert_eq!(tagged.mask, 0x007f_ff80_0000_0000);
    assert_eq!(tagged.strip(0xab2a_5580_0000_1000), 0xab00_0000_0000_1000);
    assert_eq!(PtrAuth::NONE.strip(0xdead_beef_dead_beef), 0xdead_beef_dead_beef);
}

#[test]
fn every_end_of_a_walk_says_what_it_found() {
    let ends = [
        (End::Bottom, "the end"),
        (End::BadFrame { fp: 0x1234 }, "0x1234"),
        (End::NotUp { fp: 0x1235 }, "0x1235"),
        (End::Unreadable { addr: 0x1236 }, "0x1236"),
        (End::NoShadowFrame { key: 0x1237 }, "0x1237"),
    ];
    for (end, word) in ends {
        assert!(format!("{end}").contains(word), "{end}");
    }
}
