//! What is logged on this thread.

use std::io::Write;
use std::sync::{Arc, LazyLock, Mutex};

use tracing::Dispatch;
use tracing::subscriber::DefaultGuard;

/// While one thread alone listens, tracing takes a line that another thread logs first for one that nobody wants, for
/// good. A second listener, to whom all lines are the same, keeps it from that.
static SECOND: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(tracing_subscriber::registry()));

/// Lets no line be taken for one that nobody wants.
pub fn hear_all() {
    LazyLock::force(&SECOND);
}

/// The lines of the log since [`Lines::listen`].
#[derive(Clone, Debug, Default)]
pub struct Lines(pub Arc<Mutex<Vec<u8>>>);

impl Lines {
    /// From here on, until the guard is dropped.
    pub fn listen() -> (Lines, DefaultGuard) {
        hear_all();
        let lines = Lines::default();
        let to = lines.clone();
        let log = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(move || to.clone());
        (lines, tracing::subscriber::set_default(log.finish()))
    }

    /// Those with this in them, from their level on.
    pub fn with(&self, words: &str) -> Vec<String> {
        let text = self.text();
        let lines = text.lines().filter(|line| line.contains(words));
        let levels = lines.map(|line| line.split_once("Z ").map_or(line, |(_, rest)| rest));
        levels.map(|rest| rest.trim_start().to_owned()).collect()
    }

    /// All of them.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().expect("no panic")).into_owned()
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
