//! Every operation against its oracle, and the bit-for-bit promises that sampling rests on.

mod amx;
mod attention;
mod bits;
mod elementwise;
mod matmul;
mod numbers;
mod rounds;
