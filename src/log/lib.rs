//! Writes the log's lines in a thread of its own, so that a slow reader of the log stops nothing else.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tracing_subscriber::fmt::MakeWriter;

/// The most bytes that may wait to be written. Lines beyond them are lost, and counted.
const MOST: usize = 1 << 20;

/// The most bytes of a foreign text in a line.
const SHOWN: usize = 200;

/// Shortens a foreign text, such as a name or an answer, to 200 bytes and the count of all. Log it as a plain field
/// (`job = &*cut(job)`): with `%` a line break in it would make lines of its own.
pub fn cut(text: &str) -> Cow<'_, str> {
    let whole = text.len();
    if whole <= SHOWN {
        return text.into();
    }
    let ends = text.char_indices().map(|(at, _)| at);
    let shown = ends.take_while(|end| *end <= SHOWN).last();
    let shown = text.get(..shown.unwrap_or(0)).unwrap_or_default();
    format!("{shown}… ({whole} bytes)").into()
}

/// A log that lines are written to.
#[derive(Clone, Debug, Default)]
pub struct Lines(Arc<LineBuffer>);

#[derive(Debug, Default)]
struct LineBuffer {
    queue: Mutex<WaitingLines>,
    /// Signals that there is something to write, or that all is written.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct WaitingLines {
    lines: VecDeque<Vec<u8>>,
    /// The size of all lines.
    bytes: usize,
    lost: u64,
    /// Whether a line is being written.
    writing: bool,
}

impl Lines {
    /// Starts a log that writes to `to`. When all waiting lines are written, `say` gets the count of lost ones; it may
    /// log a line about it.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(
        to: impl Write + Send + 'static,
        say: impl Fn(u64) + Send + 'static,
    ) -> io::Result<Lines> {
        let lines = Lines::default();
        let thread = std::thread::Builder::new().name("log".to_owned());
        let queue = lines.clone();
        thread.spawn(move || queue.work(to, say))?;
        Ok(lines)
    }

    /// Waits until all is written, or until `within` has passed. Returns whether all is written.
    pub fn flush(&self, within: Duration) -> bool {
        let waits =
            |queue: &mut WaitingLines| queue.writing || queue.lost > 0 || !queue.lines.is_empty();
        let mut queue = self.0.queue.lock();
        let waited = (self.0.changed).wait_while_for(&mut queue, waits, within);
        !waited.timed_out()
    }

    fn push(&self, line: &[u8]) {
        let mut queue = self.0.queue.lock();
        if queue.bytes + line.len() > MOST {
            queue.lost += 1;
            return;
        }
        queue.bytes += line.len();
        queue.lines.push_back(line.to_vec());
        drop(queue);
        self.0.changed.notify_all();
    }

    fn work(&self, mut to: impl Write, say: impl Fn(u64)) {
        let mut failed = 0;
        loop {
            match self.next() {
                Ok(line) if to.write_all(&line).is_ok() => {
                    self.0.queue.lock().lost += std::mem::take(&mut failed);
                }
                // As on a full disk. It is said once a line can be written.
                Ok(_) => failed += 1,
                Err(lost) => say(lost),
            }
        }
    }

    /// Waits for the next line. Once all lines are written it returns the count of lost ones instead.
    fn next(&self) -> Result<Vec<u8>, u64> {
        let mut queue = self.0.queue.lock();
        queue.writing = false;
        self.0.changed.notify_all();
        let idle = |queue: &mut WaitingLines| queue.lines.is_empty() && queue.lost == 0;
        self.0.changed.wait_while(&mut queue, idle);
        queue.writing = true;
        match queue.lines.pop_front() {
            Some(line) => {
                queue.bytes -= line.len();
                Ok(line)
            }
            None => Err(std::mem::take(&mut queue.lost)),
        }
    }
}

impl Write for &Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = &'a Lines;

    fn make_writer(&'a self) -> &'a Lines {
        self
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// Takes a line when it may.
    struct Slow {
        may: Receiver<()>,
        seen: Sender<Vec<u8>>,
    }

    impl Write for Slow {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            let _over = self.may.recv();
            self.seen.send(line.to_vec()).unwrap();
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn of_what_is_long_the_beginning_is_shown() {
        let short = "a".repeat(SHOWN);
        assert_eq!(cut(&short), short);
        assert_eq!(cut(&format!("{short}b")), format!("{short}… (201 bytes)"));
        // No character is torn.
        let wide = format!("a{}", "é".repeat(SHOWN));
        let shown = format!("a{}… (401 bytes)", "é".repeat(99));
        assert_eq!(cut(&wide), shown);
    }

    /// A disk that is full for its first three lines.
    #[derive(Clone, Default)]
    struct FullDisk(Arc<Mutex<Vec<Vec<u8>>>>);

    impl Write for FullDisk {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            let mut lines = self.0.lock();
            lines.push(line.to_vec());
            match lines.len() {
                ..=3 => Err(io::ErrorKind::StorageFull.into()),
                _ => Ok(line.len()),
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_a_full_disk_did_not_take_is_counted() {
        let (tell, told) = channel();
        let say = move |lost| tell.send(lost).unwrap();
        let log = Lines::start(FullDisk::default(), say).unwrap();
        for _ in 0..5 {
            (&log).write_all(b"line").unwrap();
        }
        assert!(log.flush(Duration::from_secs(60)));
        assert_eq!(told.try_iter().collect::<Vec<_>>(), [3]);
    }

    #[test]
    fn a_reader_that_stops_stops_nothing_and_hears_what_it_missed() {
        let (let_go, may) = channel();
        let (seen, lines) = channel();
        let (tell, told) = channel();
        let say = move |lost| tell.send(lost).unwrap();
        let log = Lines::start(Slow { may, seen }, say).unwrap();
        let line = vec![b'x'; 1000];
        let all = 2 * MOST / line.len();
        for _ in 0..all {
            (&log).write_all(&line).unwrap();
        }
        assert!(!log.flush(Duration::ZERO), "it is not written");
        drop(let_go);
        assert!(log.flush(Duration::from_secs(60)));
        let lost = usize::try_from(told.try_recv().unwrap()).unwrap();
        assert!(lost > all / 3, "{lost}");
        assert_eq!(lines.try_iter().count(), all - lost);
        (&log).write_all(b"last").unwrap();
        assert!(log.flush(Duration::from_secs(60)));
        assert_eq!(lines.try_recv().unwrap(), b"last");
        assert!(told.try_recv().is_err(), "it is said once");
    }
}
