//! Load tests of OpenAI-compatible servers. The rule: black box; whatever a server says about itself, only what
//! arrives at the client counts.

pub mod client;
pub mod compare;
pub mod live;
pub mod over_time;
pub mod page;
pub mod record;
pub mod run;
pub mod scenario;
pub mod server;
pub mod sweep;
