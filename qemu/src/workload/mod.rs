//! What the demo kernel is kept busy with: it unpacks its initrd. One task inflates the archive and walks it; two others get each
//! file as it comes, one to compare its checksum, one to count its words. Everything they find is compared with what the build
//! counted.

mod archive;

use alloc::{collections::VecDeque, format, string::String, sync::Arc};
use core::fmt;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use archive::{File, Words};

use crate::{
    lock::IrqLock,
    sched::{self, Task},
};

/// What the build says of a file.
pub struct Expected {
    name: &'static str,
    bytes: usize,
    crc: u32,
    words: usize,
}

include!(concat!(env!("OUT_DIR"), "/manifest.rs"));

static INITRD: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/initrd.z"));

/// Files on their way to a task; `None` is the end. Holds two, so that the tasks have to wait for each other.
struct Queue(IrqLock<VecDeque<Option<Arc<File>>>>);

const ROOM: usize = 2;

impl Queue {
    const fn new() -> Self {
        Self(IrqLock::new(VecDeque::new()))
    }

    #[inline(never)]
    fn send(&self, file: Option<Arc<File>>) {
        let mut file = Some(file);
        while let Some(waiting) = file.take() {
            let mut queue = self.0.lock();
            if queue.len() < ROOM {
                queue.push_back(waiting);
            } else {
                file = Some(waiting);
                drop(queue);
                sched::sleep_ms(1);
            }
        }
    }

    #[inline(never)]
    fn receive(&self) -> Option<Arc<File>> {
        loop {
            let file = self.0.lock().pop_front();
            match file {
                Some(file) => return file,
                None => sched::sleep_ms(1),
            }
        }
    }
}

static TO_VERIFY: Queue = Queue::new();
static TO_COUNT: Queue = Queue::new();

/// What went wrong first, if anything did.
static TROUBLE: IrqLock<Option<String>> = IrqLock::new(None);

static VERIFIED: AtomicUsize = AtomicUsize::new(0);
static COUNTED: IrqLock<String> = IrqLock::new(String::new());

fn trouble(what: String) {
    TROUBLE.lock().get_or_insert(what);
}

fn unpack() {
    if let Err(error) = unpack_initrd(INITRD) {
        trouble(format!("{error}"));
    }
    TO_VERIFY.send(None);
    TO_COUNT.send(None);
}

#[inline(never)]
fn unpack_initrd(compressed: &[u8]) -> Result<(), archive::ArchiveError> {
    let tar = archive::inflate_all(compressed)?;
    for file in archive::files(&tar)? {
        let file = Arc::new(file);
        TO_VERIFY.send(Some(file.clone()));
        TO_COUNT.send(Some(file));
    }
    Ok(())
}

fn verify() {
    VERIFIED.store(0, Relaxed);
    while let Some(file) = TO_VERIFY.receive() {
        verify_file(&file);
    }
}

#[inline(never)]
fn verify_file(file: &File) {
    let expected = MANIFEST.iter().find(|expected| expected.name == file.name);
    let crc = archive::checksum(&file.bytes);
    match expected {
        Some(expected) if expected.crc == crc && expected.bytes == file.bytes.len() => {
            VERIFIED.fetch_add(1, Relaxed);
        }
        _ => trouble(format!("{}: {} bytes with checksum {crc:#010x}", file.name, file.bytes.len())),
    }
}

fn count() {
    let mut words = Words::default();
    while let Some(file) = TO_COUNT.receive() {
        words.count(&file.bytes);
    }
    let expected: usize = MANIFEST.iter().map(|expected| expected.words).sum();
    if words.total() != expected {
        trouble(format!("{} words instead of {expected}", words.total()));
    }
    let (commonest, times) = words.commonest().unwrap_or_default();
    let commonest = String::from_utf8_lossy(commonest);
    *COUNTED.lock() = format!(
        "{} words, {} different, most often `{commonest}` ({times})",
        words.total(),
        words.different()
    );
}

/// What the tasks came to.
pub struct Report {
    /// What went wrong first.
    pub trouble: Option<String>,
    verified: usize,
    counted: String,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "unpack: {} bytes of initrd", INITRD.len())?;
        writeln!(f, "verify: {} of {} files have the checksum the build saw", self.verified, MANIFEST.len())?;
        write!(f, "count:  {}", self.counted)
    }
}

/// The same work in the calling task alone, without a sleep: what went wrong, if anything did.
#[inline(never)]
pub fn at_once() -> Option<String> {
    let mut words = Words::default();
    let mut work = || -> Result<(), archive::ArchiveError> {
        for file in archive::files(&archive::inflate_all(INITRD)?)? {
            verify_file(&file);
            words.count(&file.bytes);
        }
        Ok(())
    };
    if let Err(error) = work() {
        trouble(format!("{error}"));
    }
    TROUBLE.lock().take()
}

/// Unpacks the initrd; returns when it is done.
pub fn run() -> Report {
    let tasks: [&'static Task; 3] =
        [sched::spawn("verify", verify), sched::spawn("count", count), sched::spawn("unpack", unpack)];
    tasks.into_iter().for_each(sched::join);
    let verified = VERIFIED.load(Relaxed);
    let mut trouble = TROUBLE.lock().take();
    if trouble.is_none() && verified != MANIFEST.len() {
        trouble = Some(format!("{verified} files of {}", MANIFEST.len()));
    }
    Report { trouble, verified, counted: core::mem::take(&mut *COUNTED.lock()) }
}
