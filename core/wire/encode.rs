//! Records to words. On the traced path: nothing here allocates or panics.

use super::{
    Call, Chain, DELTA_SHIFT, DEPTH_BITS, DURATION_SHIFT, Entry, FUNC_BITS, FUNC_SHIFT, Has, Hit, KIND_CALL,
    KIND_ENTRY, KIND_HIT, KIND_MARK, KIND_TIME, KIND_WHO, MAX_ARGS, MAX_DATA, MAX_DEPTH, MAX_WORDS, Mark,
    NO_FUNC, Record, TAG_LONG, TAG_SMALL, TAG_VALUE, TAG_VOID, TIME_BITS, Who,
};

/// The first word of a call in short, and how many words it has. `None` if it does not fit: then [`encode`].
///
/// `delta` is the time from the base to the call's end; both it and `duration` may have wrapped, and do not fit then.
#[inline(always)]
pub(crate) fn short(
    func: u32,
    depth: u32,
    delta: u64,
    duration: u64,
    retval: Option<u64>,
) -> Option<(u64, usize)> {
    if (delta | duration) >> TIME_BITS != 0 || depth >> DEPTH_BITS != 0 || func >> FUNC_BITS != 0 {
        return None;
    }
    let tag = match retval {
        None => TAG_VOID,
        Some(value) if value < 2 => TAG_SMALL + value,
        Some(_) => TAG_VALUE,
    };
    let word = delta << DELTA_SHIFT
        | duration << DURATION_SHIFT
        | u64::from(func) << FUNC_SHIFT
        | u64::from(depth) << 3
        | tag;
    Some((word, 1 + usize::from(tag == TAG_VALUE)))
}

/// The words of one record.
struct Out<'o> {
    words: &'o mut [u64; MAX_WORDS],
    len: usize,
}

impl Out<'_> {
    fn put(&mut self, word: u64) {
        // There is always room: a record has at most 12 words and its arguments or data.
        if let Some(place) = self.words.get_mut(self.len) {
            *place = word;
            self.len += 1;
        }
    }

    fn put_all(&mut self, words: &[u64], most: usize) {
        for &word in words.iter().take(most) {
            self.put(word);
        }
    }

    /// Begins a record, whose length [`end`](Self::end) fills in.
    fn begin(&mut self, kind: u8, has: Has, number: u32, depth: u32) -> usize {
        let at = self.len;
        let number = u64::from(number.min(NO_FUNC)) << 16;
        let depth = u64::from(depth.min(MAX_DEPTH)) << 42;
        self.put(u64::from(has.bits()) << 56 | depth | number | u64::from(kind) << 3 | TAG_LONG);
        at
    }

    fn end(&mut self, at: usize) {
        let len = (self.len - at) as u64;
        if let Some(head) = self.words.get_mut(at) {
            *head |= len << 8;
        }
    }

    fn who(&mut self, who: Who) {
        self.put(who.word() << 16 | 1 << 8 | u64::from(KIND_WHO) << 3 | TAG_LONG);
    }

    fn time(&mut self, time: u64) {
        self.put(2 << 8 | u64::from(KIND_TIME) << 3 | TAG_LONG);
        self.put(time);
    }

    fn call(&mut self, call: &Call<'_>, chain: Option<&mut Chain>) {
        let end = call.end.max(call.start);
        let duration = end - call.start;
        let narrow = u32::try_from(duration).ok();
        let mut has = Has::empty();
        has.set(Has::SOLO, chain.is_none() || narrow.is_none());
        has.set(Has::RETVAL, call.retval.is_some());
        has.set(Has::RETVAL2, call.retval2.is_some());
        has.set(Has::OVERRUN, call.overrun != 0);
        has.set(Has::FROM_CPU, call.from_cpu.is_some());
        has.set(Has::RET_ADDR, call.ret_addr.is_some());
        has.set(Has::CUT, call.cut || call.args.len() > MAX_ARGS);

        let at;
        if let (Some(chain), Some(duration)) = (chain, narrow) {
            let delta = end.wrapping_sub(chain.base) as i64;
            let delta = i32::try_from(delta).unwrap_or_else(|_| {
                self.time(end);
                0
            });
            chain.base = end;
            let plain = has.difference(Has::RETVAL).is_empty() && call.args.is_empty();
            if plain
                && let Ok(delta) = u64::try_from(delta)
                && let Some((word, len)) = short(call.func, call.depth, delta, duration.into(), call.retval)
            {
                self.put(word);
                if let (2, Some(value)) = (len, call.retval) {
                    self.put(value);
                }
                return;
            }
            at = self.begin(KIND_CALL, has, call.func, call.depth);
            self.put(u64::from(delta as u32) << 32 | u64::from(duration));
        } else {
            at = self.begin(KIND_CALL, has, call.func, call.depth);
            self.put(call.who.word());
            self.put(end);
            self.put(duration);
        }
        let overrun = (call.overrun != 0).then_some(call.overrun.into());
        let extras = [call.retval, call.retval2, overrun, call.from_cpu.map(u64::from), call.ret_addr];
        for word in extras.into_iter().flatten() {
            self.put(word);
        }
        self.put_all(call.args, MAX_ARGS);
        self.end(at);
    }

    fn entry(&mut self, entry: &Entry<'_>, solo: bool) {
        let mut has = Has::empty();
        has.set(Has::SOLO, solo);
        has.set(Has::RET_ADDR, entry.ret_addr.is_some());
        has.set(Has::CUT, entry.cut || entry.args.len() > MAX_ARGS);
        let at = self.begin(KIND_ENTRY, has, entry.func, entry.depth);
        self.put(entry.time);
        for word in [solo.then_some(entry.who.word()), entry.ret_addr].into_iter().flatten() {
            self.put(word);
        }
        self.put_all(entry.args, MAX_ARGS);
        self.end(at);
    }

    fn hit(&mut self, hit: &Hit, solo: bool) {
        let mut has = Has::empty();
        has.set(Has::SOLO, solo);
        let at = self.begin(KIND_HIT, has, hit.func, 0);
        self.put(hit.time);
        if solo {
            self.put(hit.who.word());
        }
        self.put(hit.parent_ip);
        self.end(at);
    }

    fn mark(&mut self, mark: &Mark<'_>, solo: bool) {
        let mut has = Has::empty();
        has.set(Has::SOLO, solo);
        has.set(Has::CUT, mark.cut || mark.data.len() > MAX_DATA);
        let at = self.begin(KIND_MARK, has, mark.id, 0);
        self.put(mark.time);
        if solo {
            self.put(mark.who.word());
        }
        self.put_all(mark.data, MAX_DATA);
        self.end(at);
    }
}

/// Writes a record's words to the front of `words`; how many. With a chain, the record continues it (and what must stand
/// before it is written too); without, it is a solo one. Zero words for [`Record::Unknown`].
pub(crate) fn encode(record: &Record<'_>, chain: Option<&mut Chain>, words: &mut [u64; MAX_WORDS]) -> usize {
    let mut out = Out { words, len: 0 };
    let who = match record {
        Record::Call(call) => call.who,
        Record::Entry(entry) => entry.who,
        Record::Mark(mark) => mark.who,
        Record::Hit(hit) => hit.who,
        Record::Unknown(_) => return 0,
    };
    let mut chain = chain;
    if let Some(chain) = &mut chain
        && chain.who != who
    {
        out.who(who);
        chain.who = who;
    }
    let solo = chain.is_none();
    match record {
        Record::Call(call) => out.call(call, chain),
        Record::Entry(entry) => {
            out.entry(entry, solo);
            if let Some(chain) = chain {
                chain.base = entry.time;
            }
        }
        Record::Mark(mark) => {
            out.mark(mark, solo);
            if let Some(chain) = chain {
                chain.base = mark.time;
            }
        }
        Record::Hit(hit) => {
            out.hit(hit, solo);
            if let Some(chain) = chain {
                chain.base = hit.time;
            }
        }
        Record::Unknown(_) => {}
    }
    out.len
}
