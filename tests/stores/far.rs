//! A server that is far away: what goes there, and what comes back, takes its time.

use std::path::PathBuf;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::time::Instant;

use super::prelude::*;

/// Where the server is.
#[derive(Clone)]
pub enum Place {
    Port(u16),
    Socket(PathBuf),
}

/// The port of a way to that server which takes so long in each direction.
pub async fn far(place: Place, way: Duration) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let place = place.clone();
            tokio::spawn(async move {
                let (from_client, to_client) = client.into_split();
                match place {
                    Place::Port(port) => {
                        let server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                        let (from, to) = server.into_split();
                        tokio::join!(carry(from_client, to, way), carry(from, to_client, way));
                    }
                    Place::Socket(path) => {
                        let server = UnixStream::connect(path).await.unwrap();
                        let (from, to) = server.into_split();
                        tokio::join!(carry(from_client, to, way), carry(from, to_client, way));
                    }
                }
            });
        }
    });
    port
}

async fn carry(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, way: Duration) {
    let (send, mut on_the_way) = tokio::sync::mpsc::unbounded_channel();
    let leave = async move {
        let mut bytes = vec![0; 64 * 1024];
        while let Ok(count @ 1..) = from.read(&mut bytes).await {
            send.send((Instant::now() + way, bytes[..count].to_vec()))
                .ok();
        }
    };
    let arrive = async move {
        while let Some((at, bytes)) = on_the_way.recv().await {
            tokio::time::sleep_until(at).await;
            if to.write_all(&bytes).await.is_err() {
                return;
            }
        }
        // The other side may be gone already.
        to.shutdown().await.ok();
    };
    tokio::join!(leave, arrive);
}
