//! Tests of stack walks.

mod cfi;
