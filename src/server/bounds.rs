//! How long clients may take, and how much may be open at once.

use std::time::Duration;

/// Timeouts and caps of a listener. Each thread has a listener of its own.
#[derive(Clone, Copy, Debug)]
pub struct ListenerBounds {
    /// How long a client may take to send a whole head, counted from its first byte. For the first head it counts from
    /// the beginning of the connection. Default 5 s.
    pub header: Duration,
    /// How long a connection may be idle between requests. Default 125 s: longer than the client pools seen and than
    /// the 120 s of the backends, so that we do not close under a request.
    pub idle: Duration,
    /// How long the client may take no byte of its reply. Default 60 s.
    pub write: Duration,
    /// The most connections at once, WebSockets included. More wait in the listener's backlog. Default 10,000.
    pub connections: usize,
    /// The most requests without a reply; more are answered 503. Urgent requests have as many places of their own.
    /// Requests whose clients hung up count too, and those of all threads count in each. Default 1,024.
    pub in_flight: usize,
    /// Whether requests go on with `X-Forwarded-*` that say who sent them. Default: no.
    pub adds_forwarded: bool,
}

impl Default for ListenerBounds {
    fn default() -> ListenerBounds {
        ListenerBounds {
            header: Duration::from_secs(5),
            idle: Duration::from_secs(125),
            write: Duration::from_secs(60),
            connections: 10_000,
            in_flight: 1_024,
            adds_forwarded: false,
        }
    }
}
