//! A network inside one process, for simulated time: ports are channels, connections are pipes.
//! A port can be cut (nothing connects, what was connected breaks) and mended.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::DuplexStream;
use tokio::sync::mpsc;

/// Bytes in flight on one direction of a connection.
const PIPE: usize = 64 * 1024;

/// All ports, by number.
#[derive(Clone, Debug, Default)]
pub struct Network(Arc<Mutex<HashMap<u16, mpsc::UnboundedSender<DuplexStream>>>>);

/// A bound port.
#[derive(Debug)]
pub struct Port {
    addr: SocketAddr,
    incoming: mpsc::UnboundedReceiver<DuplexStream>,
}

impl Network {
    /// Takes `addr`'s port; 0 takes the first free one from 40000.
    pub fn bind(&self, mut addr: SocketAddr) -> io::Result<Port> {
        let mut ports = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if addr.port() == 0 {
            let free = (40000..u16::MAX).find(|p| !ports.contains_key(p)).ok_or(io::ErrorKind::AddrInUse)?;
            addr.set_port(free);
        } else if ports.get(&addr.port()).is_some_and(|sender| !sender.is_closed()) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        let (sender, incoming) = mpsc::unbounded_channel();
        ports.insert(addr.port(), sender);
        Ok(Port { addr, incoming })
    }

    /// Connects to a bound port.
    pub async fn connect(&self, port: u16) -> io::Result<DuplexStream> {
        let sender = {
            let ports = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            ports.get(&port).cloned().ok_or(io::ErrorKind::ConnectionRefused)?
        };
        let (ours, theirs) = tokio::io::duplex(PIPE);
        sender.send(theirs).map_err(|_| io::ErrorKind::ConnectionRefused)?;
        Ok(ours)
    }
}

impl Port {
    /// The address it was bound to.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The next connection.
    pub async fn accept(&mut self) -> io::Result<(DuplexStream, SocketAddr)> {
        let stream = self.incoming.recv().await.ok_or(io::ErrorKind::ConnectionAborted)?;
        Ok((stream, SocketAddr::from(([127, 0, 0, 1], 0))))
    }
}
