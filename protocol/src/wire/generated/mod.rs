//! Output of `flatc`, committed. The rule: nobody edits it and nobody outside `wire` names it; see
//! `schema/README.md` for the command that makes it.

#[rustfmt::skip]
#[allow(
    unsafe_code,
    missing_docs,
    unused,
    deprecated,
    unreachable_pub,
    rust_2018_idioms,
    mismatched_lifetime_syntaxes,
    non_camel_case_types,
    clippy::all,
    clippy::missing_safety_doc,
    clippy::too_many_lines,
    clippy::undocumented_unsafe_blocks,
    clippy::unwrap_used
)]
mod envelope_generated;

pub(super) use envelope_generated::*;
