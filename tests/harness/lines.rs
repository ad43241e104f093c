//! What is logged on this thread.

use std::io::Write;
use std::sync::{Arc, Mutex};

use tracing::subscriber::DefaultGuard;

/// The lines of the log since [`Lines::listen`].
#[derive(Clone, Default)]
pub struct Lines(Arc<Mutex<Vec<u8>>>);

impl Lines {
    /// From here on, until the guard is dropped.
    pub fn listen() -> (Lines, DefaultGuard) {
        let lines = Lines::default();
        let to = lines.clone();
        let log = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(move || to.clone());
        (lines, tracing::subscriber::set_default(log.finish()))
    }

    /// Those with this in them.
    pub fn with(&self, words: &str) -> Vec<String> {
        let text = self.0.lock().expect("no panic");
        let text = String::from_utf8_lossy(&text);
        let lines = text.lines().filter(|line| line.contains(words));
        lines.map(str::to_owned).collect()
    }
}

impl Write for Lines {
    fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no panic").extend_from_slice(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
