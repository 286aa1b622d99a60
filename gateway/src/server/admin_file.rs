//! How the command line finds the running server: a file in the state directory with its address and admin
//! token. The rule: only the owner may read it, and it goes away with the server.

use serde::{Deserialize, Serialize};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Name of the file.
pub const FILE_NAME: &str = "admin.json";

#[derive(Serialize, Deserialize)]
struct Content {
    address: SocketAddr,
    token: String,
}

/// A written file, to be removed.
#[derive(Debug)]
pub struct AdminFile {
    path: PathBuf,
}

impl AdminFile {
    /// Writes the file. A listener on all addresses is reached through loopback.
    pub fn write(dir: &Path, address: SocketAddr, token: &str) -> Result<Self, (PathBuf, io::Error)> {
        let path = dir.join(FILE_NAME);
        write(&path, reachable(address), token).map_err(|error| (path.clone(), error))?;
        Ok(Self { path })
    }

    /// Address and token of the server that runs on this state directory, if one wrote them.
    pub fn read(dir: &Path) -> Option<(SocketAddr, String)> {
        let text = std::fs::read_to_string(dir.join(FILE_NAME)).ok()?;
        let content: Content = serde_json::from_str(&text).ok()?;
        Some((content.address, content.token))
    }

    pub(super) fn remove(&self) {
        // It may be gone already; a stale one only points at nobody.
        let _ = std::fs::remove_file(&self.path);
    }
}

fn reachable(address: SocketAddr) -> SocketAddr {
    if !address.ip().is_unspecified() {
        return address;
    }
    let loopback = match address {
        SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
        SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
    };
    SocketAddr::new(loopback, address.port())
}

/// Written beside and renamed, so that a reader never sees half of it.
fn write(path: &Path, address: SocketAddr, token: &str) -> io::Result<()> {
    let content = Content { address, token: token.to_owned() };
    let fresh = path.with_extension("json.new");
    let _ = std::fs::remove_file(&fresh);
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
    file.write_all(serde_json::json!(content).to_string().as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&fresh, path)
}
