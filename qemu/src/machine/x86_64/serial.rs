//! The first 16550 UART, polled.

use core::hint;

use super::port::Port;

// SAFETY: of all these: the UART's registers, and it has no access to memory.
const DATA: Port = unsafe { Port::new(0x3f8) };
// SAFETY: as above.
const INTERRUPT_ENABLE: Port = unsafe { Port::new(0x3f9) };
// SAFETY: as above.
const FIFO_CONTROL: Port = unsafe { Port::new(0x3fa) };
// SAFETY: as above.
const LINE_CONTROL: Port = unsafe { Port::new(0x3fb) };
// SAFETY: as above.
const MODEM_CONTROL: Port = unsafe { Port::new(0x3fc) };
// SAFETY: as above.
const LINE_STATUS: Port = unsafe { Port::new(0x3fd) };

const FIFO_ON: u8 = 0b111;
const LINE_8N1: u8 = 0b11;
/// The first two registers are the divisor of the line's rate.
const LINE_DIVISOR: u8 = 1 << 7;
const MODEM_READY: u8 = 0b11;
const STATUS_RX_READY: u8 = 1;
const STATUS_TX_EMPTY: u8 = 1 << 5;

/// 115200 baud, no interrupts. Called by the boot code.
pub(super) fn init() {
    INTERRUPT_ENABLE.write(0);
    LINE_CONTROL.write(LINE_DIVISOR);
    DATA.write(1);
    INTERRUPT_ENABLE.write(0);
    LINE_CONTROL.write(LINE_8N1);
    FIFO_CONTROL.write(FIFO_ON);
    MODEM_CONTROL.write(MODEM_READY);
}

/// Sends bytes, waiting for the line. From any context; who interrupts the sending mixes its bytes in.
#[unsafe(link_section = ".text.notrace")]
pub fn console_write(bytes: &[u8]) {
    for &byte in bytes {
        while LINE_STATUS.read() & STATUS_TX_EMPTY == 0 {
            hint::spin_loop();
        }
        DATA.write(byte);
    }
}

/// The next byte that came in, if there is one.
#[unsafe(link_section = ".text.notrace")]
pub fn console_read() -> Option<u8> {
    (LINE_STATUS.read() & STATUS_RX_READY != 0).then(|| DATA.read())
}
