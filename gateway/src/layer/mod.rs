//! The steps of the request path, one a file. The rule: each looks at one thing and knows nothing of the others.

pub mod arrival;
pub mod authenticate;
pub mod body;
pub mod cors;
pub mod finish;
pub mod slow_reader;
pub mod unread;
