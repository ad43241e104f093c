//! A network inside one process for simulated time: ports are channels, connections are pipes. The part that belongs
//! to one simulated process ([`Network::process`]) can be cut off as if that process was killed.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// Bytes in flight on one direction of a connection.
const PIPE: usize = 64 * 1024;

type Ports = HashMap<u16, mpsc::UnboundedSender<DuplexStream>>;
/// What look-ups of a name find, one after the other.
type FoundByName = HashMap<String, VecDeque<Vec<IpAddr>>>;

/// All ports, by number, as one process sees them.
#[derive(Clone, Debug, Default)]
pub struct Network {
    ports: Arc<Mutex<Ports>>,
    names: Arc<Mutex<FoundByName>>,
    life: CancellationToken,
}

/// A bound port.
#[derive(Debug)]
pub struct Port {
    addr: SocketAddr,
    incoming: mpsc::UnboundedReceiver<DuplexStream>,
    life: CancellationToken,
}

/// One end of a connection. It breaks when its process is killed; the other end then reads the end.
#[derive(Debug)]
pub struct Pipe {
    /// `None` once broken.
    stream: Option<DuplexStream>,
    killed: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl Network {
    /// A way into this network for a process of its own, which [`Network::kill`] cuts off.
    pub fn process(&self) -> Network {
        Network {
            ports: Arc::clone(&self.ports),
            names: Arc::clone(&self.names),
            life: CancellationToken::new(),
        }
    }

    /// Breaks the connections of this process, closes its ports, and lets it have no new ones.
    pub fn kill(&self) {
        self.life.cancel();
    }

    /// Takes `addr`'s port; 0 takes the first free one from 40000.
    pub fn bind(&self, mut addr: SocketAddr) -> io::Result<Port> {
        let mut ports = self.ports.lock();
        if addr.port() == 0 {
            let free = (40000..u16::MAX)
                .find(|p| !ports.contains_key(p))
                .ok_or(io::ErrorKind::AddrInUse)?;
            addr.set_port(free);
        } else if ports
            .get(&addr.port())
            .is_some_and(|sender| !sender.is_closed())
        {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        let (sender, incoming) = mpsc::unbounded_channel();
        ports.insert(addr.port(), sender);
        Ok(Port {
            addr,
            incoming,
            life: self.life.clone(),
        })
    }

    /// Has look-ups of `host` find these, one after the other, and then again from the first.
    pub fn name(&self, host: &str, found: impl IntoIterator<Item = Vec<IpAddr>>) {
        let found = found.into_iter().collect();
        self.names.lock().insert(host.to_owned(), found);
    }

    /// The addresses of `host`; what was given none is this host, as each port is.
    pub fn look_up(&self, host: &str, port: u16) -> Vec<SocketAddr> {
        let mut names = self.names.lock();
        let found = names.get_mut(host).and_then(|of| {
            of.rotate_left(1);
            of.back().cloned()
        });
        let literal = || vec![host.parse().unwrap_or(Ipv4Addr::LOCALHOST.into())];
        let found = found.unwrap_or_else(literal).into_iter();
        found
            .map(|address| SocketAddr::new(address, port))
            .collect()
    }

    /// Connects to a bound port.
    pub async fn connect(&self, port: u16) -> io::Result<Pipe> {
        let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
        if self.life.is_cancelled() {
            return Err(refused());
        }
        let sender = {
            let ports = self.ports.lock();
            ports.get(&port).cloned().ok_or_else(refused)?
        };
        let (ours, theirs) = tokio::io::duplex(PIPE);
        sender.send(theirs).map_err(|_| refused())?;
        Ok(Pipe::new(ours, &self.life))
    }
}

impl Port {
    /// The address it was bound to.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The next connection.
    pub async fn accept(&mut self) -> io::Result<(Pipe, SocketAddr)> {
        let stream = tokio::select! {
            stream = self.incoming.recv() => stream.ok_or(io::ErrorKind::ConnectionAborted)?,
            () = self.life.cancelled() => {
                self.incoming.close();
                while self.incoming.try_recv().is_ok() {}
                // A killed process does nothing any more.
                std::future::pending().await
            }
        };
        let peer = SocketAddr::from(([127, 0, 0, 1], 0));
        Ok((Pipe::new(stream, &self.life), peer))
    }
}

impl Pipe {
    fn new(stream: DuplexStream, life: &CancellationToken) -> Pipe {
        Pipe {
            stream: Some(stream),
            killed: Box::pin(life.clone().cancelled_owned()),
        }
    }

    /// The stream, unless it is broken; also sees to it that the task is woken when it breaks.
    fn alive(&mut self, cx: &mut Context<'_>) -> io::Result<Pin<&mut DuplexStream>> {
        if self.stream.is_some() && self.killed.as_mut().poll(cx).is_ready() {
            self.stream = None;
        }
        match &mut self.stream {
            Some(stream) => Ok(Pin::new(stream)),
            None => Err(io::ErrorKind::ConnectionReset.into()),
        }
    }
}

impl AsyncRead for Pipe {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.get_mut().alive(cx)?.poll_read(cx, buf)
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().alive(cx)?.poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().alive(cx)?.poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().alive(cx)?.poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    fn port(number: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], number))
    }

    #[tokio::test]
    async fn a_killed_process_is_cut_off_and_its_port_is_free_again() {
        let network = Network::default();
        let process = network.process();
        let mut bound = process.bind(port(80)).expect("a free port");
        let mut client = network.connect(80).await.expect("it listens");
        let (mut server, _) = bound.accept().await.expect("a connection");
        client.write_all(b"ab").await.expect("it is read");
        let mut text = [0; 2];
        server.read_exact(&mut text).await.expect("it was sent");
        process.kill();
        assert!(server.write_all(b"x").await.is_err(), "it cannot speak");
        assert_eq!(client.read(&mut text).await.expect("the end"), 0);
        assert!(process.connect(80).await.is_err());
        drop(bound);
        assert!(network.connect(80).await.is_err(), "nobody listens");
        assert!(network.bind(port(80)).is_ok(), "the next may have it");
    }
}
