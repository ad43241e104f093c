//! The load generator: so many keep-alive connections, each with one request at a time.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;

use anyhow::{Context, Result, ensure};
use memchr::memmem;
use tokio::net::TcpStream;

use super::wire::Wire;

/// What comes before the twelve digits of a job's id.
const ID: &[u8] = b"\"id\":\"0195f3a0-7c1e-7b3a-9d2e-";

/// What is asked, again and again.
#[derive(Clone)]
pub enum Ask {
    /// The same bytes each time; so many jobs in each reply.
    Same(Rc<[u8]>, usize),
    /// An ACK of one of these jobs each time.
    Ack(Rc<RefCell<Vec<[u8; 12]>>>),
}

/// Connections to one proxy.
pub struct Load {
    wires: Vec<Wire>,
}

impl Load {
    /// Opens so many connections.
    pub async fn open(to: SocketAddr, connections: usize) -> Result<Load> {
        let mut wires = Vec::with_capacity(connections);
        for _ in 0..connections {
            wires.push(Wire::new(TcpStream::connect(to).await?)?);
        }
        Ok(Load { wires })
    }

    /// Makes `count` requests and gives the ids of the jobs that came.
    pub async fn run(&mut self, ask: &Ask, count: usize) -> Result<Vec<[u8; 12]>> {
        let left = Rc::new(Cell::new(count));
        let jobs = Rc::new(RefCell::new(Vec::new()));
        let mut tasks = Vec::new();
        for wire in self.wires.drain(..) {
            let (ask, left, jobs) = (ask.clone(), Rc::clone(&left), Rc::clone(&jobs));
            tasks.push(tokio::task::spawn_local(client(wire, ask, left, jobs)));
        }
        for task in tasks {
            self.wires.push(task.await??);
        }
        let jobs = jobs.take();
        if let Ask::Same(_, each) = ask {
            // On a machine that is too busy a start can miss its time by more than a throttle
            // allows, and goes out with a later FETCH.
            ensure!(
                jobs.len() * 2 >= count * each,
                "{} jobs came for {count} requests of {each}",
                jobs.len()
            );
        }
        Ok(jobs)
    }
}

async fn client(
    mut wire: Wire,
    ask: Ask,
    left: Rc<Cell<usize>>,
    jobs: Rc<RefCell<Vec<[u8; 12]>>>,
) -> Result<Wire> {
    while let Some(rest) = left.get().checked_sub(1) {
        left.set(rest);
        let expected = match &ask {
            Ask::Same(bytes, jobs) => {
                wire.send(bytes).await?;
                *jobs
            }
            Ask::Ack(ids) => {
                let id = ids.borrow_mut().pop().context("no job left to ACK")?;
                wire.send(&ack(id)).await?;
                0
            }
        };
        let reply = wire.reply().await?;
        let (_, body) = wire.bytes(reply);
        ensure!(
            matches!(reply.status, 200 | 201),
            "the proxy said {}: {}",
            reply.status,
            String::from_utf8_lossy(body)
        );
        ids(body, expected, &mut jobs.borrow_mut());
        wire.done(reply);
    }
    Ok(wire)
}

/// The ids of the first `most` jobs of a reply; behind them the first one may stand once more.
fn ids(body: &[u8], most: usize, to: &mut Vec<[u8; 12]>) {
    if most == 0 {
        return;
    }
    let found = memmem::find_iter(body, ID).filter_map(|at| {
        let digits = body.get(at + ID.len()..)?;
        digits.first_chunk::<12>().copied()
    });
    to.extend(found.take(most));
}

fn ack(id: [u8; 12]) -> Vec<u8> {
    let id = String::from_utf8_lossy(&id);
    post(
        "/ojs/v1/workers/ack",
        &format!(
            r#"{{"job_id":"0195f3a0-7c1e-7b3a-9d2e-{id}","worker_id":"worker-0195f3a0-7c1e","result":{{"sent":true}}}}"#
        ),
    )
}

/// A request with the headers that SDKs send.
pub fn post(path: &str, body: &str) -> Vec<u8> {
    format!(
        "POST {path} HTTP/1.1\r\nHost: ojs.internal\r\nUser-Agent: ojs-sdk/1.0\r\n\
         Accept: application/openjobspec+json, application/json\r\nOJS-Version: 1.0\r\n\
         Content-Type: application/openjobspec+json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// A request without a body.
pub fn get(path: &str) -> Vec<u8> {
    format!(
        "GET {path} HTTP/1.1\r\nHost: ojs.internal\r\nUser-Agent: ojs-sdk/1.0\r\n\
         Accept: application/openjobspec+json, application/json\r\nOJS-Version: 1.0\r\n\r\n"
    )
    .into_bytes()
}
