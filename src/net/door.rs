//! Where connections are made and accepted.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpSocket;

use super::dial::{self, Probes};
use super::socket::Socket;
use super::stream::Stream;
use super::{names, sim};

/// Where connections come from and go to.
#[derive(Clone, Debug, Default)]
pub enum Net {
    /// The operating system's sockets.
    #[default]
    Tcp,
    /// Streams inside this process.
    Sim(sim::Network),
}

/// A bound port.
#[derive(Debug)]
pub enum Listener {
    /// A socket.
    Tcp(tokio::net::TcpListener),
    /// A port of a network in memory.
    Sim(sim::Port),
}

impl Net {
    /// Binds `addr`; port 0 takes a free one. It refuses a port that somebody has, also one that another process
    /// shares among its threads: two sidecars must not split the traffic of one port unnoticed.
    pub async fn bind(&self, addr: SocketAddr) -> io::Result<Listener> {
        match self {
            Net::Tcp => listen(socket(addr)?, addr),
            Net::Sim(network) => network.bind(addr).map(Listener::Sim),
        }
    }

    /// Binds `addr` beside other listeners that were bound like this: each thread of a process has one.
    pub async fn bind_shared(&self, addr: SocketAddr) -> io::Result<Listener> {
        match self {
            Net::Tcp => {
                let socket = socket(addr)?;
                socket.set_reuseport(true)?;
                listen(socket, addr)
            }
            Net::Sim(network) => network.bind(addr).map(Listener::Sim),
        }
    }

    /// Opens a connection to the first address of `host` that answers.
    pub async fn connect(&self, host: &str, port: u16) -> io::Result<Stream> {
        let found = self.look_up(host, port, names::PATIENCE).await?;
        self.open(found, &Probes::OF_BACKEND).await
    }

    /// All addresses of `host`, in the order in which to try them, for a connection that opens within this time.
    pub async fn look_up(
        &self,
        host: &str,
        port: u16,
        within: Duration,
    ) -> io::Result<Vec<SocketAddr>> {
        match self {
            Net::Tcp => names::addresses(host, port, within).await,
            Net::Sim(network) => Ok(network.look_up(host, port)),
        }
    }

    /// Opens a connection to the first of these that answers, and to no other address.
    pub async fn open(&self, addresses: Vec<SocketAddr>, probes: &Probes) -> io::Result<Stream> {
        match self {
            Net::Tcp => {
                let opened = dial::open(addresses.into_iter(), probes).await;
                opened.map(Stream::Tcp)
            }
            Net::Sim(network) => {
                let port = addresses.first().map_or(0, SocketAddr::port);
                network.connect(port).await.map(Stream::Sim)
            }
        }
    }
}

/// The most unsent bytes of a reply that the system buffers. By itself it buffers megabytes for a client that does not
/// read, above all on an event stream, and they count as our memory. It is large enough that a fast reader never
/// waits. Accepted connections inherit it.
#[cfg(target_os = "linux")]
const UNSENT: u32 = 64 * 1024;

/// A socket for a listener at `addr`.
fn socket(addr: SocketAddr) -> io::Result<TcpSocket> {
    let socket = match addr {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    socket.set_reuseaddr(true)?;
    dial::probe_when_silent((&socket).into(), &dial::OF_CLIENTS)?;
    #[cfg(target_os = "linux")]
    // Older kernels do not know this option, and work without it.
    let _known = socket2::SockRef::from(&socket).set_tcp_notsent_lowat(UNSENT);
    Ok(socket)
}

fn listen(socket: TcpSocket, addr: SocketAddr) -> io::Result<Listener> {
    socket.bind(addr)?;
    Ok(Listener::Tcp(socket.listen(1024)?))
}

impl Listener {
    /// The address it is bound to.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Listener::Tcp(listener) => listener.local_addr(),
            Listener::Sim(port) => Ok(port.addr()),
        }
    }

    /// The next connection.
    pub async fn accept(&mut self) -> io::Result<(Stream, SocketAddr)> {
        match self {
            Listener::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Ok((Stream::Tcp(Socket::accepted(stream)), peer))
            }
            Listener::Sim(port) => port
                .accept()
                .await
                .map(|(stream, peer)| (Stream::Sim(stream), peer)),
        }
    }
}
