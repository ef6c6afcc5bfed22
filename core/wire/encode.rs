//! Records to words. On the traced path: nothing here allocates or panics.

use super::{
    Call, Chain, DELTA_SHIFT, DEPTH_BITS, DEPTH_SHIFT, DURATION_SHIFT, Entry, FUNC_BITS, FUNC_SHIFT, Has,
    Hit, KIND_CALL, KIND_ENTRY, KIND_HIT, KIND_MARK, KIND_MEMORY, KIND_TIME, KIND_WHO, MAX_ARGS, MAX_DATA,
    MAX_DEPTH, MAX_MEMORY, MEMORY_SHIFT, Mark, NO_FUNC, Record, SMALL_VALUES, TAG_LONG, TAG_SMALL, TAG_VALUE,
    TAG_VOID, TIME_BITS, Who,
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
        Some(value) if value < SMALL_VALUES => TAG_SMALL + value,
        Some(_) => TAG_VALUE,
    };
    let word = delta << DELTA_SHIFT
        | duration << DURATION_SHIFT
        | u64::from(func) << FUNC_SHIFT
        | u64::from(depth) << DEPTH_SHIFT
        | tag;
    Some((word, 1 + usize::from(tag == TAG_VALUE)))
}

/// The first word of a long record of `len` words.
#[inline(always)]
const fn head(kind: u8, has: Has, number: u32, depth: u32, len: usize) -> u64 {
    let number = if number < NO_FUNC { number } else { NO_FUNC };
    let depth = if depth < MAX_DEPTH { depth } else { MAX_DEPTH };
    (has.bits() as u64) << 56
        | (depth as u64) << 42
        | (number as u64) << 16
        | (len as u64) << 8
        | (kind as u64) << 3
        | TAG_LONG
}

/// A hit that continues a chain of the same task.
#[inline(always)]
pub(crate) fn hit_words(hit: &Hit) -> [u64; 3] {
    [head(KIND_HIT, Has::empty(), hit.func, 0, 3), hit.time, hit.parent_ip]
}

/// The most words of [`call_words`].
const CALL_WORDS: usize = 7;

/// Whether a call has no arguments, but what a short record has no room for.
#[inline]
pub(crate) fn is_long(call: &Call<'_>) -> bool {
    let more =
        call.retval2.is_some() || call.ret_addr.is_some() || call.overrun != 0 || call.from_cpu.is_some();
    more && call.args.is_empty() && !call.cut && call.memory_len == 0
}

/// The words of a long call without arguments that continues a chain of the same task, and how many there are; `None` if its times need
/// more than that.
#[inline(always)]
pub(crate) fn call_words(call: &Call<'_>, base: u64) -> Option<([u64; CALL_WORDS], usize)> {
    let (delta, duration) = (call.end.wrapping_sub(base), call.end.wrapping_sub(call.start));
    // Backwards goes the other way.
    if (delta | duration) >> 31 != 0 {
        return None;
    }
    let overrun = (call.overrun != 0).then_some(u64::from(call.overrun));
    let extras = [
        (Has::RETVAL, call.retval),
        (Has::RETVAL2, call.retval2),
        (Has::OVERRUN, overrun),
        (Has::FROM_CPU, call.from_cpu.map(u64::from)),
        (Has::RET_ADDR, call.ret_addr),
    ];
    let mut words = [0, delta << 32 | duration, 0, 0, 0, 0, 0];
    let (mut has, mut len) = (Has::empty(), 2);
    for (which, extra) in extras {
        if let (Some(extra), Some(word)) = (extra, words.get_mut(len)) {
            *word = extra;
            has |= which;
            len += 1;
        }
    }
    words[0] = head(KIND_CALL, has, call.func, call.depth, len);
    Some((words, len))
}

/// The words of one record.
struct Out<'o> {
    words: &'o mut [u64],
    len: usize,
}

impl Out<'_> {
    fn put(&mut self, word: u64) {
        // There is always room: see `MAX_WORDS` and `FEW_WORDS`.
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
        self.put(head(kind, has, number, depth, 0));
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
        let memory = call.memory.get(..memory_words(call)).unwrap_or(&[]);
        let chain = chain.filter(|_| memory.is_empty());
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
            let kind = if memory.is_empty() { KIND_CALL } else { KIND_MEMORY };
            let len = if memory.is_empty() { 0 } else { u64::from(call.memory_len) };
            at = self.begin(kind, has, call.func, call.depth);
            self.put(call.who.word() | len << MEMORY_SHIFT);
            self.put(end);
            self.put(duration);
        }
        let overrun = (call.overrun != 0).then_some(call.overrun.into());
        let extras = [call.retval, call.retval2, overrun, call.from_cpu.map(u64::from), call.ret_addr];
        for word in extras.into_iter().flatten() {
            self.put(word);
        }
        self.put_all(memory, memory.len());
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

/// How many words have what a call returned in memory; none if it is more than is kept.
fn memory_words(call: &Call<'_>) -> usize {
    let len = usize::from(call.memory_len);
    if len > MAX_MEMORY { 0 } else { len.div_ceil(8) }
}

/// Whether a record has no arguments, no data, and nothing that was in memory.
pub(crate) fn has_few(record: &Record<'_>) -> bool {
    match record {
        Record::Call(call) => call.args.is_empty() && call.memory_len == 0,
        Record::Entry(entry) => entry.args.is_empty(),
        Record::Mark(mark) => mark.data.is_empty(),
        Record::Hit(_) | Record::Unknown(_) => true,
    }
}

/// Writes a record's words to the front of `words`; how many. With a chain, the record continues it (and what must stand
/// before it is written too); without, it is a solo one. Zero words for [`Record::Unknown`]. There must be [`MAX_WORDS`], or
/// [`FEW_WORDS`] if the record [has few](has_few).
pub(crate) fn encode(record: &Record<'_>, chain: Option<&mut Chain>, words: &mut [u64]) -> usize {
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
