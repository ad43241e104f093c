//! A client that reads an event stream.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, header};
use http_body_util::{BodyExt, Full};
use ojs_throttle::told::events::{Frames, frames};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::sidecar::client::{Client, Link};

/// The most that any frame may take to come.
const LONG: Duration = Duration::from_secs(60);

/// An open event stream.
pub struct Listener {
    /// The status of the reply.
    pub status: u16,
    /// Its headers.
    pub headers: HeaderMap,
    frames: mpsc::UnboundedReceiver<Bytes>,
}

/// One event.
#[derive(Clone, Debug)]
pub struct Heard {
    /// The `id:` line.
    pub id: Option<String>,
    /// The `event:` line.
    pub event: String,
    /// The data.
    pub data: Value,
}

impl Listener {
    /// Opens the stream at `path`.
    pub async fn open(client: &Client, path: &str, headers: &[(&str, &str)]) -> Listener {
        let mut request = Request::get(path).header(header::HOST, "127.0.0.1");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::default()).unwrap();
        let link = Link::open(&client.net, client.addr.port()).await;
        let mut link = link.unwrap();
        let (head, mut body) = link.send(request).await.unwrap().into_parts();
        let (give, frames) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            let mut cut = Frames::default();
            loop {
                let part = tokio::select! {
                    part = body.frame() => part,
                    () = give.closed() => break,
                };
                let Some(Ok(part)) = part else { break };
                cut.push(part.data_ref().unwrap());
                while let Some(frame) = cut.next().unwrap() {
                    let _ = give.send(frame);
                }
            }
            drop(link);
        });
        Listener {
            status: head.status.as_u16(),
            headers: head.headers,
            frames,
        }
    }

    /// The next frame as it came; `None`: the stream has ended.
    pub async fn frame(&mut self) -> Option<String> {
        let frame = timeout(LONG, self.frames.recv()).await.expect("no frame");
        frame.map(|frame| String::from_utf8(frame.to_vec()).unwrap())
    }

    /// The next event; comments and advice are passed over.
    pub async fn next(&mut self) -> Heard {
        loop {
            let frame = self.frame().await.expect("the stream has ended");
            if let Some(heard) = heard(&frame) {
                return heard;
            }
        }
    }

    /// The events that came so far, once nothing more happens for a while.
    pub async fn so_far(&mut self) -> Vec<Heard> {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let mut all = Vec::new();
        while let Ok(frame) = self.frames.try_recv() {
            all.extend(heard(std::str::from_utf8(&frame).unwrap()));
        }
        all
    }
}

fn heard(frame: &str) -> Option<Heard> {
    let bytes = frame.as_bytes();
    let text = |name| {
        let value = frames::field(bytes, name).last()?;
        Some(String::from_utf8(value.to_vec()).unwrap())
    };
    let data = frames::data(bytes)?;
    Some(Heard {
        id: text("id"),
        event: text("event").unwrap_or_default(),
        data: serde_json::from_slice(&data).unwrap_or_else(|e| panic!("{e}: {frame}")),
    })
}
