//! How many bytes a call takes, page headers, switches and padding included, over calls like those of a kernel.

use core::sync::atomic::Ordering;

use super::model::buffer;
use super::{Brief, Buffer, Mode};
use crate::platform::Context;
use crate::testing::Random;
use crate::wire::Who;

/// What functions return.
#[derive(Clone, Copy, Debug)]
enum Values {
    /// Half nothing; of the others half zero, one, an error or a small number, half a pointer.
    Mixed,
    Nothing,
    Pointers,
}

struct Load {
    buffer: &'static Buffer,
    random: Random,
    values: Values,
    now: u64,
    calls: u64,
    who: Who,
    until: u64,
    /// Leaves may take a millisecond, not only roots.
    long: bool,
}

impl Load {
    fn retval(&mut self) -> Option<u64> {
        let pointer = 0xffff_8880_0000_0000 | self.random.word() >> 28;
        let small = [0, 0, 0, 1, 1, u64::from(u32::MAX) - 21, 7, 4096][self.random.below(8)];
        match self.values {
            Values::Nothing => None,
            Values::Pointers => Some(pointer),
            Values::Mixed => [None, None, Some(small), Some(pointer)][self.random.below(4)],
        }
    }

    /// A time from 100 ns on, each power of two as often as the others.
    fn duration(&mut self, most: u64) -> u64 {
        let power = self.random.between(7, most.max(128).ilog2() as usize);
        (self.random.between(1 << power, 2 << power) as u64 - 28).min(most)
    }

    /// A call with others in it: they fit into `duration`, or they take what they take and this one as long as they do.
    fn call(&mut self, depth: u32, duration: u64) {
        let start = self.now;
        let func = self.random.below(50_000) as u32;
        while depth < 20 && !self.random.one_in(4) {
            let left = if self.long { 1_000_200 } else { (start + duration).saturating_sub(self.now) };
            if left < 300 || (self.long && self.random.one_in(2)) {
                break;
            }
            self.now += self.random.between(20, 150) as u64;
            let inner = self.duration(left - 200);
            self.call(depth + 1, inner);
        }
        self.now = self.now.max(start + duration);
        self.interrupt_or_switch(depth);
        let (end, retval) = (self.now, self.retval());
        assert!(self.buffer.call(&Brief { func, depth, who: self.who, start, end, retval }));
        self.calls += 1;
    }

    /// A tick each 4 ms, and another task every millisecond or so.
    fn interrupt_or_switch(&mut self, depth: u32) {
        if self.now < self.until || depth >= 20 {
            return;
        }
        self.until = self.now + self.random.between(500_000, 1_500_000) as u64;
        let task = self.who.task;
        if self.random.one_in(4) && self.who.context == Context::Task {
            self.who.context = Context::Irq;
            self.call(depth + 1, 20_000);
            self.who.context = Context::Task;
        } else {
            self.who.task = 1 + (task + 1) % 5;
        }
    }
}

/// Bytes of a call.
fn measure(values: Values, long: bool) -> f64 {
    let random = Random::new(1);
    let who = Who { task: 1, context: Context::Task };
    let mut load = Load {
        buffer: buffer(8, 512, Mode::Overwrite),
        random,
        values,
        now: 1 << 40,
        calls: 0,
        who,
        until: 0,
        long,
    };
    let enough = if cfg!(miri) { 2000 } else { 200_000 };
    while load.calls < enough {
        load.now += load.random.between(100, 2000) as u64;
        let duration = load.duration(1_000_000);
        load.call(0, duration);
    }
    assert_eq!(load.buffer.counts().records, load.calls);
    let bytes = load.buffer.writer.commit.load(Ordering::Relaxed) * 8;
    let each = bytes as f64 / load.calls as f64;
    std::println!("{values:?}, long {long}: {} calls, {bytes} bytes, {each:.2} bytes a call", load.calls);
    each
}

#[test]
fn a_call_takes_16_bytes_or_less() {
    assert!(measure(Values::Mixed, false) <= 16.0);
    assert!(measure(Values::Nothing, false) <= 16.0);
    assert!(measure(Values::Pointers, false) <= 24.0);
    // As if the kernel mostly waited.
    assert!(measure(Values::Mixed, true) <= 16.0);
}
