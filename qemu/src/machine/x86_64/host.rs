//! What QEMU does for the kernel: ending with an exit code, the command line, the number of CPUs, and a file of the host.

use core::{
    mem, ptr,
    sync::atomic::{AtomicUsize, Ordering},
};

use super::{super::Exit, cpu, memory, port::Port};

// SAFETY: QEMU's `isa-debug-exit`, which ends QEMU and does nothing else.
const EXIT: Port = unsafe { Port::new(0xf4) };

// SAFETY: QEMU's `isa-debugcon`, which gives what is written to a file of the host.
const DEBUGCON: Port = unsafe { Port::new(0xe9) };
/// What is read there if the device is there.
const DEBUGCON_IS_THERE: u8 = 0xe9;

// SAFETY: of these two: QEMU's `fw_cfg`, of which only the access by DMA, at another port, touches memory.
const CONFIG_SELECT: Port = unsafe { Port::new(0x510) };
// SAFETY: as above.
const CONFIG_DATA: Port = unsafe { Port::new(0x511) };
/// Items of `fw_cfg`: what it is, and how many CPUs the machine has.
const CONFIG_SIGNATURE: u16 = 0;
const CONFIG_CPUS: u16 = 5;

/// What the PVH loader left, as far as it is used here; Xen's public `arch-x86/hvm/start_info.h` has it all.
#[repr(C)]
struct StartInfo {
    magic: u32,
    version: u32,
    flags: u32,
    modules: u32,
    modules_address: u64,
    /// The command line, which ends with a 0; or 0.
    command_line_address: u64,
}

const START_INFO_MAGIC: u32 = 0x336e_c578;

/// Where the start info is.
static START_INFO: AtomicUsize = AtomicUsize::new(0);

/// Keeps the address that the loader gave. Called by the boot code.
pub(super) fn init(start_info: usize) {
    START_INFO.store(start_info, Ordering::Relaxed);
}

/// Leaves QEMU with the exit code of `exit`, which is twice what the device is told, plus 1.
#[unsafe(link_section = ".text.notrace")]
pub fn exit(exit: Exit) -> ! {
    EXIT.write(match exit {
        Exit::Success => 0x10,
        Exit::Failed => 0x11,
        Exit::Crashed => 0x12,
    });
    // Without the device, this is all that is left.
    cpu::stop()
}

/// How many CPUs the machine has; 1 if nobody says.
pub fn cpus_present() -> usize {
    let read = |item| {
        CONFIG_SELECT.write_u16(item);
        [(); 4].map(|()| CONFIG_DATA.read())
    };
    if read(CONFIG_SIGNATURE) != *b"QEMU" {
        return 1;
    }
    let [low, high, ..] = read(CONFIG_CPUS);
    usize::from(u16::from_le_bytes([low, high])).max(1)
}

/// Copies the kernel command line to `buffer` and returns its length; 0 if there is none, or one that does
/// not fit.
pub fn command_line(buffer: &mut [u8]) -> usize {
    let address = START_INFO.load(Ordering::Relaxed);
    if !address.is_multiple_of(mem::align_of::<StartInfo>())
        || !memory::readable(address, mem::size_of::<StartInfo>())
    {
        return 0;
    }
    // SAFETY: aligned and readable, as just tested, and any bytes are a `StartInfo`.
    let info = unsafe { ptr::with_exposed_provenance::<StartInfo>(address).read() };
    if info.magic != START_INFO_MAGIC || info.command_line_address == 0 {
        return 0;
    }
    for (length, place) in buffer.iter_mut().enumerate() {
        let address = (info.command_line_address as usize).wrapping_add(length);
        if !memory::readable(address, 1) {
            return 0;
        }
        // SAFETY: readable, as just tested.
        *place = unsafe { ptr::with_exposed_provenance::<u8>(address).read() };
        if *place == 0 {
            return length;
        }
    }
    0
}

/// A file of the host that is being written.
pub struct HostFile(());

impl HostFile {
    /// The file that QEMU was told to write, whatever `path` says; `None` if there is none.
    pub fn create(_path: &str) -> Option<Self> {
        (DEBUGCON.read() == DEBUGCON_IS_THERE).then_some(Self(()))
    }

    /// Writes bytes; whether all were.
    pub fn write(&mut self, bytes: &[u8]) -> bool {
        bytes.iter().for_each(|byte| DEBUGCON.write(*byte));
        true
    }
}
