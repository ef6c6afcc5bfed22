//! Types from the debug information of real compilers, read back by the reader of the kernel and by other programs.

mod c;
mod damage;
mod declare;
mod embed;
mod make;
mod others;
mod rust;
#[allow(dead_code, missing_docs, unreachable_pub, clippy::all, reason = "as it would stand in a kernel")]
mod shapes;
