//! A client that blocks, with one connection that is kept.

use std::io;

use super::prelude::*;

/// The most that any one answer may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// An answer.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Reply {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The ids of a FETCH's jobs.
    pub fn jobs(&self) -> Vec<String> {
        assert_eq!(self.status, 200, "{self:?}");
        let whole = self.json();
        let jobs = whole["jobs"].as_array().unwrap().iter();
        jobs.map(|job| job["id"].as_str().unwrap().to_owned())
            .collect()
    }
}

/// One connection.
#[derive(Debug)]
pub struct Conn(BufReader<TcpStream>);

impl Conn {
    pub fn open(to: SocketAddr) -> Conn {
        let stream = TcpStream::connect(to).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Conn(BufReader::new(stream))
    }

    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.get_mut().write_all(bytes)
    }

    /// From now on it waits only so long for an answer.
    pub fn wait(&self, patience: Duration) {
        self.0.get_ref().set_read_timeout(Some(patience)).unwrap();
    }

    /// Reads one answer.
    pub fn reply(&mut self) -> io::Result<Reply> {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if self.0.read_line(&mut head)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        let lower = head.to_ascii_lowercase();
        let length = lower
            .split_once("\ncontent-length:")
            .map(|(_, rest)| rest.lines().next().unwrap().trim().parse().unwrap());
        let mut body = Vec::new();
        if let Some(length) = length {
            body.resize(length, 0);
            self.0.read_exact(&mut body)?;
        } else if lower.contains("transfer-encoding: chunked") {
            self.chunks(&mut body)?;
        }
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let body = String::from_utf8_lossy(&body).into_owned();
        Ok(Reply { status, head, body })
    }

    fn chunks(&mut self, body: &mut Vec<u8>) -> io::Result<()> {
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line)?;
            let length = usize::from_str_radix(line.trim(), 16).map_err(io::Error::other)?;
            let from = body.len();
            body.resize(from + length, 0);
            self.0.read_exact(&mut body[from..])?;
            self.0.read_line(&mut line)?;
            if length == 0 {
                return Ok(());
            }
        }
    }

    pub fn try_ask(&mut self, method: &str, path: &str, body: &str) -> io::Result<Reply> {
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Authorization: Bearer CANARY-credential\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        self.write(request.as_bytes())?;
        self.reply()
    }

    pub fn ask(&mut self, method: &str, path: &str, body: &str) -> Reply {
        self.try_ask(method, path, body)
            .unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }
}

/// One exchange on a connection of its own.
pub fn ask(to: SocketAddr, method: &str, path: &str, body: &str) -> Reply {
    Conn::open(to).ask(method, path, body)
}

pub fn get(to: SocketAddr, path: &str) -> Reply {
    ask(to, "GET", path, "")
}

/// Stores a job and says its id. `options` are merged with the queue.
pub fn enqueue(to: SocketAddr, queue: &str, options: Value) -> String {
    let mut all = json!({"queue": queue});
    all.as_object_mut()
        .unwrap()
        .extend(options.as_object().unwrap().clone());
    let job = json!({"type": "t", "args": ["CANARY-argument"], "options": all});
    let reply = ask(to, "POST", "/ojs/v1/jobs", &job.to_string());
    assert_eq!(reply.status, 201, "{reply:?}");
    let reply = reply.json();
    reply["job"]["id"].as_str().unwrap().to_owned()
}

pub fn fetch(to: SocketAddr, queue: &str, count: usize, worker: &str) -> Reply {
    let body = json!({"queues": [queue], "count": count, "worker_id": worker});
    ask(to, "POST", "/ojs/v1/workers/fetch", &body.to_string())
}

/// Stores a job, of which worker `w` starts work at once.
pub fn start_one(to: SocketAddr, queue: &str) -> String {
    let job = enqueue(to, queue, json!({}));
    assert_eq!(fetch(to, queue, 1, "w").jobs(), [&*job]);
    job
}

/// As a worker that runs jobs asks: where it gets none it rests for a moment, and leaves the processor to others.
pub fn poll(to: SocketAddr, queue: &str, count: usize, worker: &str) -> Vec<String> {
    let jobs = fetch(to, queue, count, worker).jobs();
    if jobs.is_empty() {
        std::thread::sleep(Duration::from_millis(5));
    }
    jobs
}

/// Has a worker sent away empty, and lets it sleep: from its next FETCH on it is known to poll, and waits longer.
pub fn polls(to: SocketAddr, queue: &str, worker: &str) {
    assert!(fetch(to, queue, 1, worker).jobs().is_empty());
    std::thread::sleep(Duration::from_millis(150));
}

pub fn ack(to: SocketAddr, job: &str, worker: &str) -> Reply {
    let body = json!({"job_id": job, "worker_id": worker, "result": {}});
    ask(to, "POST", "/ojs/v1/workers/ack", &body.to_string())
}

pub fn nack(to: SocketAddr, job: &str, worker: &str) -> Reply {
    let error = json!({"code": "handler_error", "message": "CANARY-error", "retryable": true});
    let body = json!({"job_id": job, "worker_id": worker, "error": error});
    ask(to, "POST", "/ojs/v1/workers/nack", &body.to_string())
}

pub fn heartbeat(to: SocketAddr, jobs: &[&str], worker: &str) -> Reply {
    let body = json!({"worker_id": worker, "active_jobs": jobs});
    ask(to, "POST", "/ojs/v1/workers/heartbeat", &body.to_string())
}
