//! What a service manager is told (sd_notify): where it set no socket for that, nothing.

use std::time::Duration;

use sd_notify::NotifyState;

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
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!(%error, "the service manager cannot be told");
    }
}
