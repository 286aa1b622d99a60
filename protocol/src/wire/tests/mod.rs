//! Tests of the wire format. The rule they hold: what is written is read back equal, and no bytes whatever make
//! a reader panic or allocate beyond them.

mod arbitrary;
mod framing;
mod round_trip;
