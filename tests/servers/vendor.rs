//! A vendor's API: it notes each call, and answers as a test says. Its record is the judge of what was sent to it.

use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use ojs_throttle::net::{Listener, Net, Stream};
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::BoxFuture;
use super::certs::Signed;

/// So much of a body is kept; of all of it there is a sum.
const KEPT: usize = 64 << 10;
/// Longer than any test takes, also on a slow machine.
pub const FOREVER: Duration = Duration::from_secs(24 * 3_600);

/// One call, as the vendor saw it.
#[derive(Clone, Debug)]
pub struct VendorCall {
    pub nth: usize,
    /// When its head was there.
    pub at: Instant,
    /// The head, byte for byte.
    pub head: String,
    /// The first bytes of its body.
    pub body: Vec<u8>,
    /// How long the body is, and a sum over all of it.
    pub length: u64,
    pub sum: u64,
    /// When the last bytes of the answer were about to be written, or the caller was seen to have gone.
    pub ended: Option<Instant>,
    /// The caller went before it had the answer.
    pub is_cut: bool,
}

impl VendorCall {
    pub fn method(&self) -> &str {
        self.head.split(' ').next().unwrap_or_default()
    }

    /// Path and query, as they came.
    pub fn target(&self) -> &str {
        self.head.split(' ').nth(1).unwrap_or_default()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(':'));
        let found = lines.find(|(found, _)| found.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.trim())
    }
}

/// How an answer stops short.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stops {
    /// The connection ends in order.
    Closes,
    /// It is reset.
    Resets,
    /// Nothing more comes.
    Hangs,
}

/// What the vendor does with a call.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Reads the body of the call first.
    reads: bool,
    /// Between two pieces of it.
    reads_every: Duration,
    /// Before the head.
    wait: Duration,
    /// So many answers 103 come first.
    hints: usize,
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    /// The bytes of one piece, and the time between two of them; with pieces the length is not told.
    pieces: Option<(usize, Duration)>,
    /// After so many bytes of the body; `None`: before the head.
    stops: Option<(Stops, Option<usize>)>,
    /// In the middle of the head.
    torn: bool,
}

impl Answer {
    pub fn new(status: u16, body: impl Into<Vec<u8>>) -> Answer {
        Answer {
            reads: true,
            reads_every: Duration::ZERO,
            wait: Duration::ZERO,
            hints: 0,
            status,
            headers: Vec::new(),
            body: body.into(),
            pieces: None,
            stops: None,
            torn: false,
        }
    }

    pub fn ok() -> Answer {
        Answer::json("{}")
    }

    pub fn json(body: impl Into<Vec<u8>>) -> Answer {
        Answer::new(200, body).header("Content-Type", "application/json")
    }

    /// As a backend says it.
    pub fn ojs(body: impl ToString) -> Answer {
        Answer::json(body.to_string()).header("OJS-Version", "1.0")
    }

    pub fn header(mut self, name: &str, value: &str) -> Answer {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// So long after the call was read: [`FOREVER`] where it must not end while the test runs.
    pub fn after(mut self, wait: Duration) -> Answer {
        self.wait = wait;
        self
    }

    pub fn with_hints(mut self, hints: usize) -> Answer {
        self.hints = hints;
        self
    }

    /// In pieces of so many bytes, so far apart.
    pub fn streamed(mut self, piece: usize, every: Duration) -> Answer {
        self.pieces = Some((piece, every));
        self
    }

    /// Takes the body of the call in slowly.
    pub fn reading_slowly(mut self, every: Duration) -> Answer {
        self.reads_every = every;
        self
    }

    /// Leaves the body of the call where it is.
    pub fn without_reading(mut self) -> Answer {
        self.reads = false;
        self
    }

    /// Stops before the head.
    pub fn never(mut self, stops: Stops) -> Answer {
        self.stops = Some((stops, None));
        self
    }

    /// Stops in the middle of the head.
    pub fn torn(mut self, stops: Stops) -> Answer {
        self.torn = true;
        self.cut(0, stops)
    }

    /// Stops after so many bytes of the body.
    pub fn cut(mut self, bytes: usize, stops: Stops) -> Answer {
        self.stops = Some((stops, Some(bytes)));
        self
    }
}

/// How a vendor answers.
pub type Answers = dyn Fn(&VendorCall) -> Answer + Send + Sync;

/// A running vendor; it ends with this.
pub struct Vendor {
    pub addr: SocketAddr,
    calls: Arc<Mutex<Vec<VendorCall>>>,
    ends: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl Vendor {
    /// Over real sockets, on a thread of its own. `answers` sees the head of each call.
    pub fn start(answers: impl Fn(&VendorCall) -> Answer + Send + Sync + 'static) -> Vendor {
        Vendor::on_thread(None, Arc::new(answers))
    }

    /// And over TLS, with this certificate.
    pub fn secured(
        with: &Signed,
        answers: impl Fn(&VendorCall) -> Answer + Send + Sync + 'static,
    ) -> Vendor {
        let chain = CertificateDer::from_pem_file(&with.cert).unwrap();
        let key = PrivateKeyDer::from_pem_file(&with.key).unwrap();
        let tls = ServerConfig::builder_with_provider(default_provider().into())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![chain], key)
            .unwrap();
        Vendor::on_thread(Some(Arc::new(tls)), Arc::new(answers))
    }

    /// In the runtime and the network of a test.
    pub fn within(
        net: &Net,
        addr: SocketAddr,
        answers: impl Fn(&VendorCall) -> Answer + Send + Sync + 'static,
    ) -> BoxFuture<'_, Vendor> {
        Box::pin(Vendor::in_runtime(net, addr, Arc::new(answers)))
    }

    /// The same of answers that were put behind a pointer.
    pub async fn in_runtime(net: &Net, addr: SocketAddr, answers: Arc<Answers>) -> Vendor {
        let listener = net.bind(addr).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let vendor = Vendor::at(addr);
        let desk = vendor.desk(None, answers);
        let ends = vendor.ends.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = desk.serve(listener) => {}
                () = ends.cancelled() => {}
            }
        });
        vendor
    }

    fn at(addr: SocketAddr) -> Vendor {
        Vendor {
            addr,
            calls: Arc::default(),
            ends: CancellationToken::new(),
            thread: None,
        }
    }

    fn desk(&self, tls: Option<Arc<ServerConfig>>, answers: Arc<Answers>) -> Desk {
        Desk {
            calls: Arc::clone(&self.calls),
            answers,
            tls,
        }
    }

    fn on_thread(tls: Option<Arc<ServerConfig>>, answers: Arc<Answers>) -> Vendor {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        let mut vendor = Vendor::at(socket.local_addr().unwrap());
        let (desk, ends) = (vendor.desk(tls, answers), vendor.ends.clone());
        vendor.thread = Some(std::thread::spawn(move || {
            let runtime = crate::servers::runtime();
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(socket).unwrap();
                // Not asked to stop but dropped, with all its connections.
                tokio::select! {
                    () = desk.serve(Listener::Tcp(listener)) => {}
                    () = ends.cancelled() => {}
                }
            });
        }));
        vendor
    }

    /// The calls so far, in the order in which their heads came.
    pub fn calls(&self) -> Vec<VendorCall> {
        self.calls.lock().unwrap().clone()
    }

    /// The most calls that came in any interval of this length.
    pub fn most_within(&self, period: Duration) -> usize {
        let calls = self.calls();
        let first = |nth: usize| calls.partition_point(|call| call.at + period <= calls[nth].at);
        let within = (0..calls.len()).map(|nth| nth + 1 - first(nth));
        within.max().unwrap_or(0)
    }

    /// The most calls that were there at once.
    pub fn most_at_once(&self) -> usize {
        let calls = self.calls();
        let at = |when: Instant| {
            let begun = calls.iter().filter(|call| call.at <= when);
            begun
                .filter(|call| call.ended.is_none_or(|ended| ended > when))
                .count()
        };
        calls.iter().map(|call| at(call.at)).max().unwrap_or(0)
    }
}

impl Drop for Vendor {
    fn drop(&mut self) {
        self.ends.cancel();
        if let Some(thread) = self.thread.take() {
            // A panic there has failed the test already.
            drop(thread.join());
        }
    }
}

/// What the connections share.
#[derive(Clone)]
struct Desk {
    calls: Arc<Mutex<Vec<VendorCall>>>,
    answers: Arc<Answers>,
    tls: Option<Arc<ServerConfig>>,
}

impl Desk {
    async fn serve(self, mut listener: Listener) {
        let mut connections = JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let desk = self.clone();
            connections.spawn(async move {
                let stream = match &desk.tls {
                    Some(tls) => stream.secured(Arc::clone(tls)).await,
                    None => Ok(stream),
                };
                if let Ok(stream) = stream {
                    // A connection that breaks has nobody left to tell.
                    let _broken = desk.connection(BufReader::new(stream)).await;
                }
            });
            while connections.try_join_next().is_some() {}
        }
    }

    /// Answers one call after the other, until one side ends the connection.
    async fn connection(&self, mut stream: BufReader<Stream>) -> io::Result<()> {
        while let Some(head) = head(&mut stream).await? {
            let (nth, call) = self.begin(head);
            let answer = (self.answers)(&call);
            let answered = self.answer(&mut stream, nth, &call, &answer).await;
            self.note(nth, |call| {
                call.is_cut |= answered.is_err();
                call.ended.get_or_insert_with(Instant::now);
            });
            answered?;
            match answer.stops {
                None => {}
                Some((Stops::Closes, _)) => return Ok(()),
                Some((Stops::Resets, _)) => return reset(stream.get_ref()),
                Some((Stops::Hangs, _)) => return pending().await,
            }
            if !answer.reads {
                return Ok(());
            }
        }
        Ok(())
    }

    fn begin(&self, head: String) -> (usize, VendorCall) {
        let mut calls = self.calls.lock().unwrap();
        let call = VendorCall {
            nth: calls.len(),
            at: Instant::now(),
            head,
            body: Vec::new(),
            length: 0,
            sum: 0,
            ended: None,
            is_cut: false,
        };
        calls.push(call.clone());
        (call.nth, call)
    }

    fn note(&self, nth: usize, change: impl FnOnce(&mut VendorCall)) {
        change(&mut self.calls.lock().unwrap()[nth]);
    }

    /// Reads the body of the call and writes the answer. An error: the caller has gone.
    async fn answer(
        &self,
        stream: &mut BufReader<Stream>,
        nth: usize,
        call: &VendorCall,
        answer: &Answer,
    ) -> io::Result<()> {
        if answer.reads {
            let mut read = BodyRead::default();
            let came = read.body(stream, call, answer.reads_every).await;
            self.note(nth, |call| {
                call.sum = first_eight(read.sum);
                (call.body, call.length) = (read.kept, read.length);
            });
            came?;
            stays(stream, sleep(answer.wait)).await?;
        } else {
            sleep(answer.wait).await;
        }
        for _ in 0..answer.hints {
            stream
                .write_all(b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>\r\n\r\n")
                .await?;
        }
        let most = match answer.stops {
            Some((Stops::Hangs, None)) => return stays(stream, pending()).await,
            Some((_, None)) => return Ok(()),
            Some((_, Some(bytes))) => bytes,
            None => usize::MAX,
        };
        let mut head = answer.head();
        if answer.torn {
            stream.write_all(&head[..head.len() / 2]).await?;
            return stream.flush().await;
        }
        let is_bare = call.method() == "HEAD" || matches!(answer.status, 204 | 304);
        let body = match is_bare {
            true => &[][..],
            false => &answer.body[..most.min(answer.body.len())],
        };
        let Some((piece, every)) = answer.pieces.filter(|_| !is_bare) else {
            self.note(nth, |call| call.ended = Some(Instant::now()));
            head.extend_from_slice(body);
            stream.write_all(&head).await?;
            return stream.flush().await;
        };
        stream.write_all(&head).await?;
        stream.flush().await?;
        for piece in body.chunks(piece) {
            stays(stream, sleep(every)).await?;
            let length = format!("{:x}\r\n", piece.len());
            stream.write_all(length.as_bytes()).await?;
            stream.write_all(piece).await?;
            stream.write_all(b"\r\n").await?;
            stream.flush().await?;
        }
        if answer.stops.is_none() {
            self.note(nth, |call| call.ended = Some(Instant::now()));
            stream.write_all(b"0\r\n\r\n").await?;
        } else if let Some((Stops::Hangs, _)) = answer.stops {
            return stays(stream, pending()).await;
        }
        stream.flush().await
    }
}

impl Answer {
    fn head(&self) -> Vec<u8> {
        let mut head = format!("HTTP/1.1 {} Said\r\n", self.status);
        for (name, value) in &self.headers {
            head += &format!("{name}: {value}\r\n");
        }
        head += &match self.pieces {
            Some(_) => "Transfer-Encoding: chunked\r\n\r\n".to_owned(),
            None => format!("Content-Length: {}\r\n\r\n", self.body.len()),
        };
        head.into_bytes()
    }
}

/// A body while it comes.
#[derive(Default)]
struct BodyRead {
    kept: Vec<u8>,
    length: u64,
    sum: Sha256,
}

impl BodyRead {
    async fn body(
        &mut self,
        stream: &mut BufReader<Stream>,
        call: &VendorCall,
        every: Duration,
    ) -> io::Result<()> {
        if let Some(length) = call.header("content-length") {
            return self.bytes(stream, length.parse().unwrap(), every).await;
        }
        if call.header("transfer-encoding").is_none() {
            return Ok(());
        }
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).await?;
            let length = u64::from_str_radix(line.trim_end(), 16);
            let length = length.map_err(|_| io::Error::from(io::ErrorKind::UnexpectedEof))?;
            self.bytes(stream, length, every).await?;
            line.clear();
            stream.read_line(&mut line).await?;
            assert_eq!(line, if line.is_empty() { "" } else { "\r\n" }, "a trailer");
            if length == 0 {
                return Ok(());
            }
        }
    }

    async fn bytes(
        &mut self,
        stream: &mut BufReader<Stream>,
        mut length: u64,
        every: Duration,
    ) -> io::Result<()> {
        while length > 0 {
            if !every.is_zero() {
                sleep(every).await;
            }
            let piece = stream.fill_buf().await?;
            if piece.is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let taken = piece.len().min(usize::try_from(length).unwrap());
            self.sum.update(&piece[..taken]);
            let room = KEPT.saturating_sub(self.kept.len());
            self.kept.extend_from_slice(&piece[..taken.min(room)]);
            stream.consume(taken);
            self.length += taken as u64;
            length -= taken as u64;
        }
        Ok(())
    }
}

/// The head of the next call; `None`: there is no more.
async fn head(stream: &mut BufReader<Stream>) -> io::Result<Option<String>> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if stream.read_until(b'\n', &mut head).await? == 0 {
            return Ok(None);
        }
    }
    Ok(Some(String::from_utf8_lossy(&head).into_owned()))
}

/// Waits, unless the caller goes: callers here send nothing before they have their answer.
async fn stays<T>(stream: &mut BufReader<Stream>, wait: impl Future<Output = T>) -> io::Result<T> {
    tokio::select! {
        waited = wait => Ok(waited),
        _ = stream.read_u8() => Err(io::ErrorKind::BrokenPipe.into()),
    }
}

fn reset(stream: &Stream) -> io::Result<()> {
    match stream {
        Stream::Tcp(socket) => socket.set_zero_linger(),
        _ => Ok(()),
    }
}

/// The sum of a body, to compare with [`VendorCall::sum`].
pub fn sum(body: &[u8]) -> u64 {
    first_eight(Sha256::new().chain_update(body))
}

fn first_eight(sum: Sha256) -> u64 {
    let bytes: [u8; 32] = sum.finalize().into();
    u64::from_be_bytes(*bytes.first_chunk().unwrap())
}
