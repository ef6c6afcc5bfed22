//! The format: every record comes back as it was, and any words whatever give an end.

use std::vec::Vec;

use super::*;
use crate::testing::{Random, storm};

const START: Chain = Chain { base: 1 << 40, who: Who::NOBODY };

/// A random record over lent words.
fn record<'a>(random: &mut Random, words: &'a [u64; MAX_DATA]) -> Record<'a> {
    let number = [random.below(300), random.below(1 << 26), random.below(1 << 20)][random.below(3)] as u32;
    let contexts = [Context::Task, Context::SoftIrq, Context::Irq, Context::Nmi];
    let who = Who { task: random.word() as u32 >> random.below(32), context: *random.pick(&contexts) };
    let bits = random.between(1, 14);
    let depth = random.below(1 << bits) as u32;
    let time = START.base.wrapping_add_signed((random.word() as i64) >> random.between(1, 63));
    match random.below(7) {
        0 => Record::Mark(Mark {
            id: number,
            who,
            time,
            data: &words[..random.below(17)],
            cut: random.one_in(2),
        }),
        1 => Record::Entry(Entry {
            func: number,
            depth,
            who,
            time,
            ret_addr: random.one_in(2).then(|| random.word()),
            args: &words[..random.below(9)],
            cut: random.one_in(2),
        }),
        kind => {
            let start = time.saturating_sub(random.word() >> random.between(1, 63));
            let mut call = Call::new(number, depth, who, start, time);
            call.retval = random.one_in(2).then(|| random.word() >> random.below(64));
            if kind == 2 {
                call.retval2 = random.one_in(2).then(|| random.word());
                call.overrun = random.word() as u32 >> random.below(32);
                call.from_cpu = random.one_in(2).then_some(63);
                call.ret_addr = random.one_in(2).then(|| random.word());
                call.args = &words[..random.below(9)];
                call.cut = random.one_in(2);
            }
            if kind >= 4 {
                let len = random.below(MAX_MEMORY + 1);
                (call.memory_len, call.memory) = (len as u8, &words[..len.div_ceil(8)]);
                call.args = if random.one_in(2) { &[] } else { &words[..random.below(9)] };
            }
            Record::Call(call)
        }
    }
}

fn random_words(random: &mut Random) -> [u64; MAX_DATA] {
    core::array::from_fn(|_| random.word())
}

fn all(words: &[u64]) -> Vec<Result<Record<'_>, WireError>> {
    Decoder::new(words, START).collect()
}

#[test]
fn records_come_back_as_they_were() {
    storm(500, 5, |random| {
        let lent = random_words(random);
        let records: Vec<_> = (0..random.below(40)).map(|_| record(random, &lent)).collect();
        let (mut stream, mut chain) = (Vec::new(), START);
        for record in &records {
            let mut words = [0; MAX_WORDS];
            // Some of a writer's, some of an interrupt's, which changes nothing for the others.
            let solo = random.one_in(3);
            let len = encode(record, if solo { None } else { Some(&mut chain) }, &mut words);
            stream.extend_from_slice(&words[..len]);
            stream.extend(core::iter::repeat_n(0, random.below(3)));

            let mut passed = (0, 0);
            while passed.0 < len {
                assert_ne!(words_of(words[passed.0]), 0);
                passed.1 += usize::from(counts(words[passed.0]));
                passed.0 += words_of(words[passed.0]);
            }
            assert_eq!(passed, (len, 1), "{record:?}");
        }
        let back: Vec<_> = Decoder::new(&stream, START).map(Result::unwrap).collect();
        assert_eq!(back, records);

        // Whatever is missing at the end takes only what it was part of.
        for cut in 0..stream.len() {
            let (good, bad): (Vec<_>, Vec<_>) = all(&stream[..cut]).into_iter().partition(Result::is_ok);
            assert!(bad.len() <= 1);
            let good: Vec<_> = good.into_iter().map(Result::unwrap).collect();
            assert!(records.starts_with(&good));
        }
    });
}

#[test]
fn the_length_of_common_calls() {
    let who = Who { task: 0, context: Context::Task };
    let len = |call: Call<'_>| {
        let mut words = [0; MAX_WORDS];
        encode(&Record::Call(call), Some(&mut START.clone()), &mut words)
    };
    let call = Call::new(0xf_ffff, 31, who, START.base, START.base + 0x3_ffff);
    let cases = [
        ("void", call, 1),
        ("zero", Call { retval: Some(0), ..call }, 1),
        ("one", Call { retval: Some(1), ..call }, 1),
        ("two", Call { retval: Some(2), ..call }, 2),
        ("pointer", Call { retval: Some(u64::MAX), ..call }, 2),
        ("one function too many", Call { func: 0x10_0000, ..call }, 2),
        ("too deep", Call { depth: 32, ..call }, 2),
        ("too long", Call { start: START.base - 1, ..call }, 2),
        ("too late", Call { start: START.base + 1, end: START.base + 0x4_0000, ..call }, 2),
        ("before the last", Call { start: 5, end: START.base - 1, ..call }, 4),
        ("overtaken", Call { start: START.base - 9, end: START.base - 1, ..call }, 2),
        ("much later", Call { start: 1 << 50, end: 1 << 50, ..call }, 3),
        ("hours", Call { end: START.base + (1 << 42), ..call }, 4),
        ("another task", Call { who: Who { task: 1, ..who }, ..call }, 2),
        ("an argument", Call { args: &[7], ..call }, 3),
        ("three words of memory", Call { retval: Some(0), memory: &[1, 2, 3], memory_len: 24, ..call }, 8),
        ("a byte of memory", Call { memory: &[1], memory_len: 1, ..call }, 5),
        ("more memory than is kept", Call { memory: &[1; 9], memory_len: 65, ..call }, 1),
        ("memory that is not there", Call { memory: &[1], memory_len: 9, ..call }, 1),
    ];
    for (name, call, want) in cases {
        assert_eq!(len(call), want, "{name}");
    }
}

#[test]
fn what_is_too_large_is_bounded() {
    let who = Who { task: u32::MAX, context: Context::Nmi };
    let (args, data) = ([3; MAX_ARGS + 1], [4; MAX_DATA + 1]);
    let mut call = Call::new(u32::MAX, u32::MAX, who, 9, 8);
    call.args = &args;
    (call.retval, call.retval2, call.overrun) = (Some(2), Some(3), 4);
    (call.from_cpu, call.ret_addr) = (Some(5), Some(6));
    (call.memory, call.memory_len) = (&[7; MAX_MEMORY / 8], MAX_MEMORY as u8);
    let entry = Entry {
        func: u32::MAX,
        depth: u32::MAX,
        who,
        time: u64::MAX,
        ret_addr: Some(7),
        args: &args,
        cut: false,
    };
    let mark = Mark { id: u32::MAX, who, time: 0, data: &data, cut: false };
    for chain in [None, Some(START)] {
        let back = |record, f: &dyn Fn(Record<'_>)| {
            let mut words = [0; MAX_WORDS];
            let len = encode(&record, chain.clone().as_mut(), &mut words);
            f(Decoder::new(&words[..len], START).next().unwrap().unwrap());
        };
        back(Record::Call(call), &|back| {
            let (func, depth, args) = (NO_FUNC, MAX_DEPTH, &args[..MAX_ARGS]);
            assert_eq!(back, Record::Call(Call { func, depth, end: 9, args, cut: true, ..call }));
        });
        back(Record::Entry(entry), &|back| {
            let (func, depth, args) = (NO_FUNC, MAX_DEPTH, &args[..MAX_ARGS]);
            assert_eq!(back, Record::Entry(Entry { func, depth, args, cut: true, ..entry }));
        });
        back(Record::Mark(mark), &|back| {
            assert_eq!(back, Record::Mark(Mark { id: NO_FUNC, data: &data[..MAX_DATA], cut: true, ..mark }));
        });
        assert_eq!(encode(&Record::Unknown(&[1]), chain.clone().as_mut(), &mut [0; MAX_WORDS]), 0);
    }
}

#[test]
fn any_words_give_records_or_an_error_and_an_end() {
    storm(3000, 20, |random| {
        let lent = random_words(random);
        let mut words: Vec<u64> = Vec::new();
        for _ in 0..random.below(20) {
            match random.below(4) {
                0 => words.push(random.word()),
                // Long records of all kinds, with lengths that may not be theirs.
                1 => words.push(
                    random.word() & !0xfff8
                        | (random.below(12) as u64) << 8
                        | (random.below(8) as u64) << 3
                        | 7,
                ),
                _ => {
                    let mut one = [0; MAX_WORDS];
                    let len = encode(&record(random, &lent), Some(&mut START.clone()), &mut one);
                    words.extend_from_slice(&one[..len]);
                }
            }
        }
        // Bits that fell over.
        for _ in 0..random.below(3) {
            let len = words.len().max(1);
            if let Some(word) = words.get_mut(random.below(len)) {
                *word ^= 1 << random.below(64);
            }
        }
        // One item for each word at most, so it ends.
        let items = all(&words);
        assert!(items.len() <= words.len());
        let _ = page(&words);

        // The same as bytes, cut anywhere.
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut back = vec![0; words.len()];
        for cut in 0..bytes.len() {
            match words_from_bytes(&bytes[..cut], &mut back) {
                Ok(len) => assert_eq!((len * 8, &back[..len]), (cut, &words[..len])),
                Err(error) => assert_eq!((error, cut % 8 == 0), (WireError::Bytes(cut), false)),
            }
        }
        assert_eq!(words_from_bytes(&bytes, &mut back), Ok(words.len()));
    });
}

#[test]
fn unknown_kinds_are_passed_over_by_their_length() {
    let mut words = [0; MAX_WORDS];
    let call = Record::Call(Call::new(5, 1, Who::NOBODY, START.base + 1, START.base + 2));
    let len = encode(&call, Some(&mut START.clone()), &mut words);
    for unknown in [&[3 << 8 | 9 << 3 | 7, 7, 7][..], &[1 << 8 | 31 << 3 | 7], &[5], &[8], &[6, 0]] {
        let stream = [unknown, &words[..len]].concat();
        assert_eq!(all(&stream), [Ok(Record::Unknown(unknown)), Ok(call)]);
    }
}

#[test]
fn a_record_that_is_too_short_for_what_it_has_is_an_error_and_the_next_is_read() {
    let mut words = [0; MAX_WORDS];
    let mut call = Call::new(5, 1, Who::NOBODY, 0, 1);
    call.retval = Some(9);
    let len = encode(&Record::Call(call), None, &mut words);
    assert_eq!(len, 5);
    for short in 1..len {
        words[0] = words[0] & !0xff00 | (short as u64) << 8;
        let mut stream = words[..short].to_vec();
        stream.push(1);
        let items = all(&stream);
        assert_eq!(items.len(), 2);
        assert_eq!(items[0], Err(WireError::Short { needed: short + 1, words: short }));
        assert!(matches!(items[1], Ok(Record::Call(Call { end, .. })) if end == START.base));
    }
    words[0] &= !0xff00;
    assert_eq!(all(&words[..len]), [Err(WireError::Empty(words[0]))]);
}

/// As a reader has it that knows kinds 1 to 6 only.
fn known_before(words: &[u64]) -> Vec<Record<'_>> {
    let unknown = |first: u64| first & 0xff == u64::from(KIND_MEMORY) << 3 | TAG_LONG;
    let mut all = Vec::new();
    let (mut at, mut chain) = (0, START);
    while let Some(rest) = words.get(at..).filter(|rest| !rest.is_empty()) {
        let len = words_of(rest[0]);
        if unknown(rest[0]) {
            all.push(Record::Unknown(&rest[..len]));
        } else {
            all.extend(Decoder::new(&rest[..len], chain).map(Result::unwrap));
            chain.pass(rest[0], rest.get(1).copied().unwrap_or(0));
        }
        at += len;
    }
    all
}

#[test]
fn readers_that_know_nothing_of_memory_read_all_other_records() {
    storm(200, 5, |random| {
        let lent = random_words(random);
        let records: Vec<_> = (0..random.below(30)).map(|_| record(random, &lent)).collect();
        let (mut stream, mut chain) = (Vec::new(), START);
        for record in &records {
            let mut words = [0; MAX_WORDS];
            let len = encode(record, Some(&mut chain), &mut words);
            stream.extend_from_slice(&words[..len]);
        }
        let before = known_before(&stream);
        assert_eq!(before.len(), records.len());
        for (before, record) in before.iter().zip(&records) {
            let has_memory = matches!(record, Record::Call(call) if call.memory_len != 0);
            assert_eq!(matches!(before, Record::Unknown(_)), has_memory, "{record:?}");
            assert!(has_memory || before == record, "{before:?} instead of {record:?}");
        }
    });
}

/// Later versions may keep more.
#[test]
fn of_memory_that_is_longer_the_beginning_is_taken() {
    let mut words = vec![0, 100 << MEMORY_SHIFT, 5, 1];
    words.extend(0..13);
    words.push(0xdead);
    let len = words.len();
    words[0] = (len as u64) << 8 | u64::from(KIND_MEMORY) << 3 | TAG_LONG;
    let memory: Vec<u64> = (0..8).collect();
    let call = Call {
        memory: &memory,
        memory_len: MAX_MEMORY as u8,
        args: &[0xdead],
        ..Call::new(0, 0, Who::NOBODY, 4, 5)
    };
    assert_eq!(all(&words), [Ok(Record::Call(call))]);
    words[1] = 255 << MEMORY_SHIFT;
    assert_eq!(all(&words), [Err(WireError::Short { needed: 4 + 32, words: len })]);
}

#[test]
fn pages_of_another_version_and_other_words_are_refused() {
    let header = PageHeader {
        cpu: 300,
        words_log2: 9,
        sequence: 5,
        base: 77,
        who: Who { task: 8, context: Context::Irq },
        records: 11,
        refused: 13,
    };
    let words = header.encode();
    assert_eq!(PageHeader::decode(&words), Ok((header, HEADER_WORDS)));
    for len in 0..HEADER_WORDS {
        assert!(
            matches!(PageHeader::decode(&words[..len]), Err(WireError::Short { words, .. }) if words == len)
        );
    }
    let with = |first| page(&[&[first][..], &words[1..]].concat()).map(|_| ()).unwrap_err();
    let other = words[0] & !(0xff << 16) | 9 << 16;
    assert_eq!(with(other), WireError::Version(9));
    assert_eq!(with(0), WireError::NoPage(0));
    assert_eq!(with(words[0] & !(0xff << 24)), WireError::Header(0));
    assert_eq!(with(words[0] | 0xff << 24), WireError::Short { needed: 0xff, words: HEADER_WORDS });
    assert_eq!(
        std::format!("{}", WireError::Version(9)),
        "the trace has version 9, and this reader knows version 1"
    );
    // A longer header of this version: what is more in it is passed over.
    let longer = [&[words[0] + (1 << 24)][..], &words[1..], &[0xdead], &[1]].concat();
    let (back, records) = page(&longer).unwrap();
    assert_eq!((back, records.count()), (header, 1));
    // Words behind the page's end are not of the page.
    let small = [&[words[0] & !(0xff << 48) | 3 << 48][..], &words[1..], &[1; 5]].concat();
    assert_eq!(page(&small).unwrap().1.count(), 2);
}
