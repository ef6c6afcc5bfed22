//! The PL011 UART, polled.

use core::{hint, ptr};

const UART: usize = 0x0900_0000;
const DATA: usize = 0x00;
const FLAGS: usize = 0x18;
const FLAGS_RX_EMPTY: u32 = 1 << 4;
const FLAGS_TX_FULL: u32 = 1 << 5;
const LINE_CONTROL: usize = 0x2c;
const LINE_CONTROL_8N1_FIFO: u32 = 0b11 << 5 | 1 << 4;
const CONTROL: usize = 0x30;
const CONTROL_ENABLE: u32 = 1 | 1 << 8 | 1 << 9;

#[inline(always)]
fn read(register: usize) -> u32 {
    // SAFETY: a register of the UART, mapped as device memory; reading one has no effect but that `DATA`
    //         takes a byte that came in.
    unsafe { ptr::with_exposed_provenance::<u32>(UART + register).read_volatile() }
}

#[inline(always)]
fn write(register: usize, value: u32) {
    // SAFETY: as for `read`; writing sends a byte or configures the line, and touches no memory.
    unsafe { ptr::with_exposed_provenance_mut::<u32>(UART + register).write_volatile(value) }
}

/// Enables sending and receiving. Called by the boot code.
pub(super) fn init() {
    write(LINE_CONTROL, LINE_CONTROL_8N1_FIFO);
    write(CONTROL, CONTROL_ENABLE);
}

/// Sends bytes, waiting for the line. From any context; who interrupts the sending mixes its bytes in.
#[unsafe(link_section = ".text.notrace")]
pub fn console_write(bytes: &[u8]) {
    for &byte in bytes {
        while read(FLAGS) & FLAGS_TX_FULL != 0 {
            hint::spin_loop();
        }
        write(DATA, u32::from(byte));
    }
}

/// The next byte that came in, if there is one.
#[unsafe(link_section = ".text.notrace")]
pub fn console_read() -> Option<u8> {
    (read(FLAGS) & FLAGS_RX_EMPTY == 0).then(|| read(DATA) as u8)
}
