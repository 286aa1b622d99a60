//! Benchmarks of Pons. The rule: the answer is asserted before it is timed, the floor or a rival runs in the
//! same rounds, and the record says on which machine.

pub mod floor;
pub mod gateway_process;
pub mod instant_brain;
pub mod limits;
pub mod load;
pub mod machine;
pub mod numbers;
pub mod plan;
pub mod reply;
pub mod report;
pub mod roofline;
pub mod suite;
