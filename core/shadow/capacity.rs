//! How many calls fit: exactly as many as the words allow, whatever the size of stack and data.

use std::println;
use std::vec::Vec;

use super::model::stack;
use super::*;
use crate::testing::keep_all;

/// Pushes calls with `data` words each until one does not fit; how many did.
fn frames_in(shadow: &Shadow, data: usize) -> usize {
    for n in 0.. {
        let key = StackKey::new(0x7fff_0000 - 16 * n);
        let Ok(frame) = shadow.push(RetAddr::new(n), FuncAddr::new(n), key) else { return n };
        if data != 0 && shadow.reserve(frame, 0, data).is_none() {
            shadow.pop(frame);
            return n;
        }
        shadow.seal(frame, 1, 1);
    }
    unreachable!("the stack never got full")
}

/// Words of one call: four, and for data one more than the data.
fn words_per_frame(data: usize) -> usize {
    if data == 0 { 4 } else { 4 + 1 + data }
}

#[test]
fn full_comes_exactly_where_the_next_frame_would_not_fit() {
    let step = if cfg!(miri) { 13 } else { 1 };
    for data in 0..=MAX_DATA_WORDS {
        let frame = words_per_frame(data);
        for capacity in (4..=130).step_by(step).chain([511, 512, 513]) {
            let frames = frames_in(&stack(capacity), data);
            assert_eq!(frames, capacity / frame, "{data} data words a frame, {capacity} words");
        }
        // Around the limit itself.
        for frames in [1, 2, 7] {
            for (capacity, fit) in
                [(frames * frame - 1, frames - 1), (frames * frame, frames), (frames * frame + 1, frames)]
            {
                if capacity >= FRAME_WORDS {
                    assert_eq!(frames_in(&stack(capacity), data), fit, "{data} words, {capacity}");
                }
            }
        }
    }
}

#[test]
fn a_refused_push_or_reservation_changes_nothing() {
    let shadow = stack(4 + 6);
    let frame = shadow.push(RetAddr::new(1), FuncAddr::new(2), StackKey::new(0x100)).expect("room");
    shadow.seal(frame, 1, 1);
    let upper = shadow.push(RetAddr::new(3), FuncAddr::new(4), StackKey::new(0x80)).expect("room");
    let (position, views) = (shadow.position(), shadow.walk().collect::<Vec<_>>());
    assert!(shadow.reserve(upper, 0, 2).is_none());
    assert!(shadow.reserve(upper, 0, 0).is_none());
    assert!(shadow.push(RetAddr::new(5), FuncAddr::new(6), StackKey::new(0x60)).is_err());
    assert!(shadow.position() == position);
    assert_eq!(shadow.walk().collect::<Vec<_>>(), views);
    assert!(shadow.reserve(upper, 0, 1).is_some(), "what is left is one word of data");
}

/// Printed with `--nocapture`, for the documentation. The third column is what a page of Linux 6.x holds on this kind of
/// machine, 16 of its 512 words being variables of the task.
#[test]
fn a_page_holds_at_least_as_many_frames_as_linux_gets_out_of_it() {
    println!("{:>10} {:>15} {:>16} {:>6}", "data words", "words per frame", "frames per 4 KiB", "Linux");
    for (data, linux) in [(0, 122), (1, 81), (2, 70), (15, 24), (32, 13)] {
        let shadow = Shadow::new();
        shadow.give(keep_all(vec![0; 4096 / size_of::<usize>()])).expect("a page");
        let frames = frames_in(&shadow, data);
        let first_two: Vec<usize> = shadow.walk().take(2).map(|view| view.func.get()).collect();
        assert_eq!(first_two, [frames - 1, frames - 2], "the newest calls of {data} data words");
        println!("{data:>10} {:>15} {frames:>16} {linux:>6}", words_per_frame(data));
        assert!(frames >= linux, "{data} data words: {frames} frames, {linux} on Linux");
    }
}
