//! Words to records. Total: any words whatever give records, or an error, and an end.

use super::{
    Call, DELTA_SHIFT, DEPTH_BITS, DURATION_SHIFT, Entry, FUNC_BITS, FUNC_SHIFT, Has, Hit, KIND_CALL,
    KIND_ENTRY, KIND_HIT, KIND_MARK, KIND_MEMORY, KIND_TIME, KIND_WHO, MAX_MEMORY, MEMORY_SHIFT, Mark,
    PageHeader, Record, TAG_LONG, TAG_SMALL, TAG_TWO_WORDS, TAG_VALUE, TAG_VOID, TIME_BITS, Who, WireError,
};

/// What a record is decoded with: the base time and who runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chain {
    pub(crate) base: u64,
    pub(crate) who: Who,
}

/// The fields of a long record's first word.
#[derive(Clone, Copy)]
struct Head {
    kind: u8,
    len: usize,
    number: u32,
    depth: u32,
    has: Has,
}

impl Head {
    fn of(word: u64) -> Self {
        Self {
            kind: (word >> 3) as u8 & 31,
            len: usize::from((word >> 8) as u8),
            number: (word >> 16) as u32 & super::NO_FUNC,
            depth: (word >> 42) as u32 & super::MAX_DEPTH,
            has: Has::from_bits_retain((word >> 56) as u8),
        }
    }
}

/// Words of the record whose first word this is; zero if it says so, which no record may.
pub(crate) fn words_of(first: u64) -> usize {
    match first & 7 {
        TAG_VALUE | TAG_TWO_WORDS => 2,
        TAG_LONG => Head::of(first).len,
        _ => 1,
    }
}

/// If the record whose first word this is counts as one: padding, who and time do not.
pub(crate) fn counts(first: u64) -> bool {
    match first & 7 {
        0 => first != 0,
        TAG_LONG => !matches!(Head::of(first).kind, KIND_WHO | KIND_TIME),
        _ => true,
    }
}

impl Chain {
    /// Goes past the record that begins with these two words (the second is not looked at if the record has only one).
    pub(crate) fn pass(&mut self, first: u64, second: u64) {
        match first & 7 {
            TAG_VOID..=4 => self.base = self.base.wrapping_add(first >> DELTA_SHIFT),
            TAG_LONG => {
                let head = Head::of(first);
                match head.kind {
                    KIND_WHO => self.who = Who::from_word(first >> 16),
                    _ if head.len < 2 || head.has.contains(Has::SOLO) => {}
                    KIND_CALL => {
                        let delta = (second >> 32) as u32 as i32;
                        self.base = self.base.wrapping_add_signed(delta.into());
                    }
                    KIND_TIME | KIND_ENTRY | KIND_MARK | KIND_HIT => self.base = second,
                    _ => {}
                }
            }
            _ => {}
        }
    }
}

/// The records in some words, one after another. Ends after an error that leaves no way to find the next record.
#[derive(Clone, Debug)]
pub struct Decoder<'a> {
    words: &'a [u64],
    at: usize,
    chain: Chain,
}

impl<'a> Decoder<'a> {
    pub(crate) fn new(words: &'a [u64], chain: Chain) -> Self {
        Self { words, at: 0, chain }
    }

    fn long(&self, words: &'a [u64]) -> Result<Record<'a>, WireError> {
        let mut fields = Fields { words, at: 1 };
        let head = Head::of(words.first().copied().unwrap_or(0));
        let solo = head.has.contains(Has::SOLO) || head.kind == KIND_MEMORY;
        let cut = head.has.contains(Has::CUT);
        // For all but solo records, `chain` has passed this one already.
        match head.kind {
            KIND_CALL | KIND_MEMORY => {
                let (first, end, duration) = if solo {
                    (fields.one()?, fields.one()?, fields.one()?)
                } else {
                    (0, self.chain.base, fields.one()? & u64::from(u32::MAX))
                };
                let who = if solo { Who::from_word(first) } else { self.chain.who };
                let memory_len = if head.kind == KIND_MEMORY { (first >> MEMORY_SHIFT) as u8 } else { 0 };
                Ok(Record::Call(Call {
                    func: head.number,
                    depth: head.depth,
                    who,
                    start: end.wrapping_sub(duration),
                    end,
                    retval: fields.if_has(head.has, Has::RETVAL)?,
                    retval2: fields.if_has(head.has, Has::RETVAL2)?,
                    overrun: fields.if_has(head.has, Has::OVERRUN)?.unwrap_or(0) as u32,
                    from_cpu: fields.if_has(head.has, Has::FROM_CPU)?.map(|cpu| cpu as u32),
                    ret_addr: fields.if_has(head.has, Has::RET_ADDR)?,
                    memory: fields.memory(memory_len)?,
                    memory_len: memory_len.min(MAX_MEMORY as u8),
                    args: fields.rest(),
                    cut,
                }))
            }
            KIND_ENTRY => {
                let time = fields.one()?;
                let who = if solo { Who::from_word(fields.one()?) } else { self.chain.who };
                let ret_addr = fields.if_has(head.has, Has::RET_ADDR)?;
                let args = fields.rest();
                Ok(Record::Entry(Entry {
                    func: head.number,
                    depth: head.depth,
                    who,
                    time,
                    ret_addr,
                    args,
                    cut,
                }))
            }
            KIND_MARK => {
                let time = fields.one()?;
                let who = if solo { Who::from_word(fields.one()?) } else { self.chain.who };
                Ok(Record::Mark(Mark { id: head.number, who, time, data: fields.rest(), cut }))
            }
            KIND_HIT => {
                let time = fields.one()?;
                let who = if solo { Who::from_word(fields.one()?) } else { self.chain.who };
                Ok(Record::Hit(Hit { func: head.number, who, time, parent_ip: fields.one()? }))
            }
            _ => Ok(Record::Unknown(words)),
        }
    }

    fn short(&self, words: &'a [u64]) -> Record<'a> {
        let word = words.first().copied().unwrap_or(0);
        let field = |shift: u32, bits: u32| word >> shift & ((1 << bits) - 1);
        let end = self.chain.base;
        let start = end.wrapping_sub(field(DURATION_SHIFT, TIME_BITS));
        let func = field(FUNC_SHIFT, FUNC_BITS) as u32;
        let mut call = Call::new(func, field(3, DEPTH_BITS) as u32, self.chain.who, start, end);
        call.retval = match word & 7 {
            TAG_VALUE => words.get(1).copied(),
            TAG_VOID => None,
            tag => Some(tag - TAG_SMALL),
        };
        Record::Call(call)
    }

    fn end(&mut self, error: WireError) -> Option<Result<Record<'a>, WireError>> {
        self.at = self.words.len();
        Some(Err(error))
    }
}

impl<'a> Iterator for Decoder<'a> {
    type Item = Result<Record<'a>, WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let rest = self.words.get(self.at..)?;
            let &first = rest.first()?;
            let len = words_of(first);
            if len == 0 {
                return self.end(WireError::Empty(first));
            }
            let Some(words) = rest.get(..len) else {
                return self.end(WireError::Short { needed: len, words: rest.len() });
            };
            self.at += len;
            self.chain.pass(first, words.get(1).copied().unwrap_or(0));
            if !counts(first) {
                continue;
            }
            return Some(match first & 7 {
                TAG_VOID..=4 => Ok(self.short(words)),
                TAG_LONG => self.long(words),
                _ => Ok(Record::Unknown(words)),
            });
        }
    }
}

/// The words of a long record, taken one by one.
struct Fields<'a> {
    words: &'a [u64],
    at: usize,
}

impl<'a> Fields<'a> {
    fn one(&mut self) -> Result<u64, WireError> {
        let short = WireError::Short { needed: self.at + 1, words: self.words.len() };
        let word = self.words.get(self.at).copied().ok_or(short)?;
        self.at += 1;
        Ok(word)
    }

    fn if_has(&mut self, has: Has, what: Has) -> Result<Option<u64>, WireError> {
        has.contains(what).then(|| self.one()).transpose()
    }

    /// The words that have so many bytes, as far as anybody wants to have them.
    fn memory(&mut self, bytes: u8) -> Result<&'a [u64], WireError> {
        let words = usize::from(bytes).div_ceil(8);
        let end = self.at + words;
        let short = WireError::Short { needed: end, words: self.words.len() };
        let memory = self.words.get(self.at..end).ok_or(short)?;
        self.at = end;
        Ok(memory.get(..MAX_MEMORY / 8).unwrap_or(memory))
    }

    fn rest(&self) -> &'a [u64] {
        self.words.get(self.at..).unwrap_or(&[])
    }
}

/// A page by itself: its header and its records. `words` may end before the page does.
pub fn page(words: &[u64]) -> Result<(PageHeader, Decoder<'_>), WireError> {
    let (header, len) = PageHeader::decode(words)?;
    let records = words.get(len..).unwrap_or(&[]);
    // A shift of 64 or more means that the page is longer than anything: then what is there is in it.
    let page = 1usize.checked_shl(header.words_log2.into()).unwrap_or(usize::MAX);
    let records = records.get(..page.saturating_sub(len)).unwrap_or(records);
    Ok((header, Decoder::new(records, Chain { base: header.base, who: header.who })))
}

/// The words of a recorded trace's bytes, into `words`; how many. For a trace on disk.
pub fn words_from_bytes(bytes: &[u8], words: &mut [u64]) -> Result<usize, WireError> {
    let (chunks, rest) = bytes.as_chunks::<8>();
    if !rest.is_empty() || chunks.len() > words.len() {
        return Err(WireError::Bytes(bytes.len()));
    }
    for (word, chunk) in words.iter_mut().zip(chunks) {
        *word = u64::from_le_bytes(*chunk);
    }
    Ok(chunks.len())
}
