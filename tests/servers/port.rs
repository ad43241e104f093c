//! Ports that a server may leave and come back to.

use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

/// A free address that stays free while its server is away: the system gives out ports from 32768 on by
/// itself, and these are below. Test programs side by side begin at different ones.
pub fn own() -> SocketAddr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    for _ in 0..12_000 {
        let nth = NEXT.fetch_add(1, Ordering::Relaxed);
        // Programs that start one after the other begin thousands apart.
        let first = u64::from(std::process::id()) * 7_417;
        let offset = ((first + u64::from(nth)) % 12_000) as u16;
        let addr = SocketAddr::from(([127, 0, 0, 1], 20_000 + offset));
        if TcpListener::bind(addr).is_ok() {
            return addr;
        }
    }
    panic!("no port is free between 20000 and 32000")
}
