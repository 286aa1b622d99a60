//! Where a brain listens. The rule: an address is parsed once, with an error that says what would be right.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use tokio::io::{AsyncRead, AsyncWrite};

/// Address of a brain process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BrainAddress {
    /// `unix:PATH`, on this machine.
    Unix(PathBuf),
    /// `tcp:HOST:PORT`, for a brain on another host.
    Tcp(String),
}

/// One open connection, whatever its kind.
pub(super) trait Connection: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Connection for T {}

impl BrainAddress {
    /// Opens a connection. Nagle's algorithm is off: a frame is written whole and must leave at once.
    pub(super) async fn connect(&self) -> std::io::Result<Box<dyn Connection>> {
        match self {
            BrainAddress::Unix(path) => Ok(Box::new(tokio::net::UnixStream::connect(path).await?)),
            BrainAddress::Tcp(address) => {
                let stream = tokio::net::TcpStream::connect(address.as_str()).await?;
                stream.set_nodelay(true)?;
                Ok(Box::new(stream))
            }
        }
    }
}

impl fmt::Display for BrainAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BrainAddress::Unix(path) => write!(f, "unix:{}", path.display()),
            BrainAddress::Tcp(address) => write!(f, "tcp:{address}"),
        }
    }
}

impl FromStr for BrainAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("unix", path)) if !path.is_empty() => Ok(BrainAddress::Unix(PathBuf::from(path))),
            Some(("tcp", address)) => match address.rsplit_once(':') {
                Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok_and(|p| p != 0) => {
                    Ok(BrainAddress::Tcp(address.to_owned()))
                }
                _ => Err(format!(
                    "brain address {text:?} needs a host and a port from 1 to 65535, like tcp:10.0.0.5:7070"
                )),
            },
            _ => Err(format!("brain address {text:?} is neither unix:PATH nor tcp:HOST:PORT")),
        }
    }
}
