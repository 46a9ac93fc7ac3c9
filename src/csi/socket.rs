//! The unix socket of an endpoint: parsed from its address, created with the right permissions, and
//! never by replacing a file of another program.

use std::{
    fmt, io,
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
    str::FromStr,
};

use nix::sys::stat::Mode;
use tokio::net::{UnixListener, UnixSocket};

const BACKLOG: u32 = 128;

/// The address of a CSI endpoint: a unix socket, as CSI wants it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint(PathBuf);

/// An endpoint that is not the absolute path of a unix socket.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not an endpoint: give the absolute path of a unix socket, as in unix:///csi/csi.sock")]
pub struct EndpointError(String);

impl Endpoint {
    /// The socket's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The directory of the socket.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.0.parent().unwrap_or(Path::new("/"))
    }

    /// Listens here with the permissions `mode`. The socket of a process that has ended is replaced;
    /// any other file at this path is an error.
    pub fn listen(&self, mode: u32) -> io::Result<UnixListener> {
        self.bind(mode).map_err(|error| {
            let path = self.0.display();
            io::Error::new(error.kind(), format!("cannot listen on {path}: {error}"))
        })
    }

    fn bind(&self, mode: u32) -> io::Result<UnixListener> {
        self.remove_stale()?;
        let socket = UnixSocket::new_stream()?;
        // Before bind, so that the file never exists with other permissions.
        nix::sys::stat::fchmod(&socket, Mode::from_bits_truncate(mode))?;
        socket.bind(&self.0)?;
        socket.listen(BACKLOG)
    }

    fn remove_stale(&self) -> io::Result<()> {
        match std::fs::symlink_metadata(&self.0) {
            Ok(found) if found.file_type().is_socket() => std::fs::remove_file(&self.0),
            Ok(_) => Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "a file that is no socket is in the way; move it or choose another endpoint",
            )),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let path = text
            .strip_prefix("unix://")
            .or_else(|| text.strip_prefix("unix:"))
            .unwrap_or(text);
        if path.len() > 1 && path.starts_with('/') && !path.ends_with('/') {
            Ok(Self(path.into()))
        } else {
            Err(EndpointError(text.to_owned()))
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unix://{}", self.0.display())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn at(path: &Path) -> Endpoint {
        path.display().to_string().parse().unwrap()
    }

    #[test]
    fn an_endpoint_is_an_absolute_path() {
        for text in ["unix:///csi/csi.sock", "unix:/csi/csi.sock", "/csi/csi.sock"] {
            assert_eq!(
                text.parse::<Endpoint>().unwrap().path(),
                Path::new("/csi/csi.sock")
            );
        }
        for text in [
            "",
            "unix://",
            "/",
            "csi.sock",
            "tcp://127.0.0.1:1",
            "unix:///csi/",
        ] {
            assert!(text.parse::<Endpoint>().is_err(), "{text}");
        }
    }

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_a_new_one_is_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("csi.sock");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let _listener = at(&path).listen(0o600).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[tokio::test]
    async fn a_file_in_the_way_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("csi.sock");
        std::fs::write(&path, "precious").unwrap();
        let error = at(&path).listen(0o600).unwrap_err().to_string();
        assert!(error.contains("in the way"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    }
}
