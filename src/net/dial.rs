//! Opens connections: chooses among the addresses of a name, and has the system notice a peer that vanished. A host
//! that vanished sends no word of it, so without this a request on such a connection would wait for its whole time.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::socket::Socket;

/// How long an address is tried alone. One that lets packets vanish must not take the time of those after it.
const AHEAD: Duration = Duration::from_millis(250);

/// How the system asks whether a silent peer is still there.
#[derive(Clone, Copy, Debug)]
pub struct Probes {
    /// The silence before the first probe.
    silence: Duration,
    /// The time between two probes.
    each: Duration,
    /// The unanswered probes after which the connection has ended.
    missed: u32,
}

/// For clients: event streams and WebSockets have no timeout of their own.
pub(super) const OF_CLIENTS: Probes = Probes {
    silence: Duration::from_secs(15),
    each: Duration::from_secs(5),
    missed: 3,
};

impl Probes {
    /// For the backend: an ACK must not wait long for an answer on a dead connection. That shows within 5 s.
    pub const OF_BACKEND: Probes = Probes {
        silence: Duration::from_secs(2),
        each: Duration::from_secs(1),
        missed: 3,
    };

    /// For services that are called once: some think for minutes, and a path that is broken for some seconds must not
    /// lose their answer. A dead connection shows within 60 s.
    pub const OF_SERVICES: Probes = Probes {
        silence: Duration::from_secs(15),
        each: Duration::from_secs(15),
        missed: 3,
    };

    /// After how long a connection has ended whose peer is gone.
    fn noticed(&self) -> Duration {
        self.silence + self.each * self.missed
    }
}

/// Opens a connection to the first of a name's addresses that answers. If it dies without a word, that shows
/// when all probes are missed, unless a large body is under way.
#[expect(clippy::disallowed_methods, reason = "this is the door")]
pub(super) async fn open(
    addresses: impl Iterator<Item = SocketAddr>,
    probes: &Probes,
) -> io::Result<Socket> {
    let stream = first_of(addresses, TcpStream::connect).await?;
    stream.set_nodelay(true)?;
    probe_when_silent(SockRef::from(&stream), probes)?;
    Socket::opened(stream, probes.noticed())
}

/// Has the system end the connection when its peer is gone. Connections that a listener accepts inherit this.
pub(super) fn probe_when_silent(socket: SockRef<'_>, probes: &Probes) -> io::Result<()> {
    let keepalive = TcpKeepalive::new()
        .with_time(probes.silence)
        .with_interval(probes.each)
        .with_retries(probes.missed);
    socket.set_tcp_keepalive(&keepalive)
}

/// Connects to the first address that answers. The next one is tried when one has failed, and beside those that
/// have not answered within [`AHEAD`].
async fn first_of<T, A>(
    mut addresses: impl Iterator<Item = SocketAddr>,
    connect: impl Fn(SocketAddr) -> A,
) -> io::Result<T>
where
    T: Send + 'static,
    A: Future<Output = io::Result<T>> + Send + 'static,
{
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    let mut attempts = JoinSet::new();
    let mut next = addresses.next();
    loop {
        if let Some(address) = next.take() {
            attempts.spawn(connect(address));
            next = addresses.next();
        }
        tokio::select! {
            ended = attempts.join_next() => match ended {
                Some(Ok(Ok(stream))) => return Ok(stream),
                Some(Ok(Err(error))) => failed = error,
                Some(Err(error)) => failed = io::Error::other(error),
                None => return Err(failed),
            },
            () = tokio::time::sleep(AHEAD), if next.is_some() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::{Net, Stream};

    /// How an address answers: after so many milliseconds, and whether well.
    async fn tried(ports: &'static [(u64, bool)]) -> (Result<u16, io::ErrorKind>, u128) {
        let begun = Instant::now();
        let addresses = (0..ports.len()).map(|nth| ([127, 0, 0, 1], nth as u16).into());
        let connected = first_of(addresses, |address: SocketAddr| async move {
            let (millis, well) = ports[usize::from(address.port())];
            tokio::time::sleep(Duration::from_millis(millis)).await;
            match well {
                true => Ok(address.port()),
                false => Err(io::ErrorKind::ConnectionRefused.into()),
            }
        });
        let connected = connected.await.map_err(|error| error.kind());
        (connected, begun.elapsed().as_millis())
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_is_silent_keeps_nobody_from_the_next() {
        let refused = Err(io::ErrorKind::ConnectionRefused);
        assert_eq!(tried(&[(5, true), (0, true)]).await, (Ok(0), 5));
        // The first is silent, or slow.
        assert_eq!(tried(&[(u64::MAX, true), (5, true)]).await, (Ok(1), 255));
        assert_eq!(tried(&[(260, true), (90, true)]).await, (Ok(0), 260));
        let two = &[(u64::MAX, true), (u64::MAX, true), (5, true)];
        assert_eq!(tried(two).await, (Ok(2), 505));
        // One that refuses is passed over at once.
        assert_eq!(tried(&[(5, false), (5, true)]).await, (Ok(1), 10));
        assert_eq!(tried(&[(900, false), (5, false)]).await, (refused, 900));
        assert_eq!(tried(&[]).await, (Err(io::ErrorKind::NotFound), 0));
    }

    #[tokio::test]
    async fn a_host_that_vanished_is_noticed() {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        for (probes, seconds) in [(Probes::OF_BACKEND, 5), (Probes::OF_SERVICES, 60)] {
            let mut there = Net::Tcp.bind(any).await.unwrap();
            let address = there.local_addr().unwrap();
            let Ok(Stream::Tcp(opened)) = Net::Tcp.open(vec![address], &probes).await else {
                panic!("nothing was opened")
            };
            let Ok((Stream::Tcp(accepted), _)) = there.accept().await else {
                panic!("nothing came")
            };
            let noticed = Duration::from_secs(seconds);
            assert_eq!(probes.noticed(), noticed);
            #[cfg(target_os = "linux")]
            assert_eq!(
                SockRef::from(&*opened).tcp_user_timeout().unwrap(),
                Some(noticed)
            );
            for (stream, probes) in [(opened, probes), (accepted, OF_CLIENTS)] {
                let socket = SockRef::from(&*stream);
                assert!(socket.keepalive().unwrap());
                assert_eq!(socket.tcp_keepalive_time().unwrap(), probes.silence);
                assert_eq!(socket.tcp_keepalive_interval().unwrap(), probes.each);
                assert_eq!(socket.tcp_keepalive_retries().unwrap(), probes.missed);
            }
        }
    }

    /// A program that pauses with a full buffer is there: Linux itself does not tell it from a host that vanished.
    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn who_does_not_read_a_large_body_is_not_taken_for_gone() {
        use std::sync::Arc;
        use std::sync::atomic::{AtomicBool, Ordering};
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut there = Net::Tcp.bind(any).await.unwrap();
        let address = there.local_addr().unwrap();
        let mut opened = open(std::iter::once(address), &Probes::OF_BACKEND)
            .await
            .unwrap();
        let (mut accepted, _) = there.accept().await.unwrap();
        let bound = |opened: &Socket| SockRef::from(&**opened).tcp_user_timeout().unwrap();
        let small = Some(Duration::from_secs(5));
        let mut part = vec![7; 12 * 1024];
        for _ in 0..2 {
            for left in [small, small, None, None] {
                opened.write_all(&part).await.unwrap();
                assert_eq!(bound(&opened), left);
            }
            for _ in 0..4 {
                accepted.read_exact(&mut part).await.unwrap();
            }
            accepted.write_all(b"x").await.unwrap();
            assert_eq!(bound(&opened), None);
            opened.read_exact(&mut [0]).await.unwrap();
            assert_eq!(bound(&opened), small);
        }
        // Of HTTP an answer may come before its request was read. The next exchange sets it.
        let begins = Arc::new(AtomicBool::new(false));
        opened.heeds(Arc::downgrade(&begins));
        for _ in 0..4 {
            opened.write_all(&part).await.unwrap();
        }
        accepted.write_all(b"x").await.unwrap();
        opened.read_exact(&mut [0]).await.unwrap();
        assert_eq!(bound(&opened), None);
        begins.store(true, Ordering::Relaxed);
        opened.write_all(&part).await.unwrap();
        assert_eq!(bound(&opened), small);
    }
}
