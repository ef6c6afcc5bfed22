//! Types from the debug information of real compilers, read back by the reader of the kernel and by other programs.

mod c;
mod damage;
mod declare;
mod embed;
mod make;
mod others;
mod rust;
#[expect(
    dead_code,
    unreachable_pub,
    clippy::too_many_arguments,
    clippy::empty_loop,
    reason = "as it would stand in a kernel"
)]
mod shapes;
