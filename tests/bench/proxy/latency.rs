//! Latency at a fixed rate: a handful of threads that take turns, each with one connection and
//! blocking calls, so that nothing of the generator stands in the way.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

const THREADS: u32 = 8;

/// The middle and the 99th of 100, in microseconds.
#[derive(Clone, Copy)]
pub struct Latency {
    pub p50: f64,
    pub p99: f64,
}

/// Asks `per_second` times a second for `time`, measured from when each request was due.
pub fn measure(to: SocketAddr, request: &[u8], per_second: u32, time: Duration) -> Result<Latency> {
    let begin = Instant::now() + Duration::from_millis(50);
    let every = Duration::from_secs(1) * THREADS / per_second;
    let mut all: Vec<Duration> = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|nth| {
                let first = begin + every * nth / THREADS;
                scope.spawn(move || turns(to, request, first, every, begin + time))
            })
            .collect();
        let mut all = Vec::new();
        for thread in threads {
            all.extend(
                thread
                    .join()
                    .ok()
                    .context("a thread of the load panicked")??,
            );
        }
        anyhow::Ok(all)
    })?;
    all.sort_unstable();
    let at = |share: f64| {
        let index = (all.len() as f64 * share) as usize;
        all.get(index)
            .map_or(0.0, |time| time.as_nanos() as f64 / 1e3)
    };
    Ok(Latency {
        p50: at(0.5),
        p99: at(0.99),
    })
}

fn turns(
    to: SocketAddr,
    request: &[u8],
    first: Instant,
    every: Duration,
    end: Instant,
) -> Result<Vec<Duration>> {
    let mut stream = TcpStream::connect(to)?;
    stream.set_nodelay(true)?;
    let mut buffer = vec![0; 32 * 1024];
    let mut took = Vec::new();
    let mut due = first;
    while due < end {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        stream.write_all(request)?;
        // Replies are small and written at once, so one read brings one whole.
        let read = stream.read(&mut buffer)?;
        anyhow::ensure!(read > 0, "the connection ended");
        took.push(due.elapsed());
        due += every;
    }
    Ok(took)
}
