//! A relay before the backend that cuts a connection between a request and its reply, hides a member of replies, or
//! tells what was sent.

use super::prelude::*;

/// What a relay is told.
#[derive(Default)]
struct Orders {
    /// Cut at the reply to the next request with this in it.
    cut: Option<&'static str>,
    /// How long nobody is served after the cut.
    away: Duration,
    /// Until when nobody is served.
    until: Option<Instant>,
    /// Another answer than the backend's goes back to the next request with this in it.
    failing: Option<&'static str>,
    /// The member that replies show under another name.
    hidden: Option<&'static str>,
    /// What was sent to the backend, a letter for each byte.
    sent: String,
    /// How many connections there were.
    taken: usize,
}

/// Relays bytes to a backend.
pub struct Relay {
    pub addr: SocketAddr,
    orders: Arc<Mutex<Orders>>,
}

impl Relay {
    pub fn before(backend: SocketAddr) -> Relay {
        let orders = Arc::<Mutex<Orders>>::default();
        let given = Arc::clone(&orders);
        let addr = connections::each(move |client| {
            let until = {
                let mut given = given.lock().unwrap();
                given.taken += 1;
                given.until
            };
            if until.is_some_and(|until| Instant::now() < until) {
                return;
            }
            if let Ok(server) = TcpStream::connect(backend) {
                relay(client, server, Arc::clone(&given));
            }
        });
        Relay { addr, orders }
    }

    /// The reply to the next request with `word` in it is lost, and for this long nobody is served.
    pub fn cut(&self, word: &'static str, away: Duration) {
        let mut orders = self.orders.lock().unwrap();
        orders.cut = Some(word);
        orders.away = away;
    }

    /// The reply to the next request with `word` in it is lost, and 502 goes back in its place.
    pub fn fail(&self, word: &'static str) {
        self.orders.lock().unwrap().failing = Some(word);
    }

    /// From now on no reply shows a member of this name.
    pub fn hide(&self, name: &'static str) {
        self.orders.lock().unwrap().hidden = Some(name);
    }

    /// What was sent to the backend since it was last asked for, a letter for each byte.
    pub fn take_sent(&self) -> String {
        std::mem::take(&mut self.orders.lock().unwrap().sent)
    }

    /// How many connections there were.
    pub fn taken(&self) -> usize {
        self.orders.lock().unwrap().taken
    }

    /// Whether the cut was made.
    pub fn has_cut(&self) -> bool {
        self.orders.lock().unwrap().until.is_some()
    }
}

fn relay(mut client: TcpStream, mut server: TcpStream, orders: Arc<Mutex<Orders>>) {
    let given = Arc::clone(&orders);
    let (mut back, mut from) = (client.try_clone().unwrap(), server.try_clone().unwrap());
    let (cutting, failing) = (
        Arc::new(Mutex::new(false)),
        Arc::new(AtomicBool::new(false)),
    );
    let (cut, failed) = (Arc::clone(&cutting), Arc::clone(&failing));
    let replies = std::thread::spawn(move || {
        let mut bytes = [0; 16 * 1024];
        while let Ok(read @ 1..) = from.read(&mut bytes) {
            let bytes = &mut bytes[..read];
            if let Some(name) = given.lock().unwrap().hidden {
                rename(bytes, name);
            }
            let sent = match failed.swap(false, Ordering::Relaxed) {
                true => &b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n"[..],
                false => bytes,
            };
            if *cut.lock().unwrap() || back.write_all(sent).is_err() {
                break;
            }
        }
        // Either side may be gone already.
        drop(back.shutdown(Shutdown::Both));
        drop(from.shutdown(Shutdown::Both));
    });
    let mut bytes = [0; 16 * 1024];
    while let Ok(read @ 1..) = client.read(&mut bytes) {
        let mut orders = orders.lock().unwrap();
        orders
            .sent
            .extend(bytes[..read].iter().copied().map(char::from));
        let text = String::from_utf8_lossy(&bytes[..read]);
        if orders.cut.is_some_and(|word| text.contains(word)) {
            orders.cut = None;
            orders.until = Some(Instant::now() + orders.away);
            *cutting.lock().unwrap() = true;
        }
        if orders.failing.is_some_and(|word| text.contains(word)) {
            orders.failing = None;
            failing.store(true, Ordering::Relaxed);
        }
        drop(orders);
        if server.write_all(&bytes[..read]).is_err() {
            break;
        }
    }
    drop(server.shutdown(Shutdown::Write));
    drop(replies.join());
}

/// Gives members of this name another of the same length.
fn rename(bytes: &mut [u8], name: &str) {
    let quoted = format!("\"{name}\"");
    for at in 0..bytes.len() {
        if bytes[at..].starts_with(quoted.as_bytes()) {
            bytes[at + 1..=at + name.len()].fill(b'x');
        }
    }
}
