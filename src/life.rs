//! What a service manager is told (sd_notify): where it set no socket for that, nothing.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use sd_notify::NotifyState;

/// How long a manager may take to read.
const PATIENCE: Duration = Duration::from_secs(1);

/// The sidecar serves, or does so again after [`reloading`].
pub fn ready() {
    tell(&[NotifyState::Ready]);
}

/// The config is looked at, because somebody asked for it.
pub fn reloading() {
    if let Ok(now) = NotifyState::monotonic_usec_now() {
        tell(&[NotifyState::Reloading, now]);
    }
}

/// It drains.
pub fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// Gives signs of life, twice as often as they are wanted, for as long as this thread gets on. Returns at once where
/// none are wanted.
pub async fn show() {
    let Some(patience) = sd_notify::watchdog_enabled() else {
        return;
    };
    loop {
        tell(&[NotifyState::Watchdog]);
        tokio::time::sleep((patience / 2).max(Duration::from_millis(1))).await;
    }
}

/// A manager that does not listen is no reason to stop.
fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = send(state) {
        tracing::debug!(%error, "the service manager cannot be told");
    }
}

/// Whoever does not read is not waited for: requests are served on this thread.
fn send(state: &[NotifyState<'_>]) -> io::Result<()> {
    let name = std::env::var_os("NOTIFY_SOCKET").unwrap_or_default();
    if name.is_empty() {
        return Ok(());
    }
    let said: String = state.iter().map(|one| format!("{one}\n")).collect();
    let socket = UnixDatagram::unbound()?;
    // A sign of life that is not read is no loss, and the first word must not be lost.
    match state {
        [NotifyState::Watchdog] => socket.set_nonblocking(true)?,
        _ => socket.set_write_timeout(Some(PATIENCE))?,
    }
    match name.as_bytes().strip_prefix(b"@") {
        #[cfg(target_os = "linux")]
        Some(name) => {
            use std::os::linux::net::SocketAddrExt;
            let address = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
            socket.send_to_addr(said.as_bytes(), &address)?;
        }
        _ => {
            socket.send_to(said.as_bytes(), name)?;
        }
    }
    Ok(())
}
