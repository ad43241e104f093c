//! The addresses of a name: one look-up at a time for each, shared by all who wait for it. A look-up has a thread of
//! its own for as long as it takes, whoever still waits; what it finds too late for them is for those who come next.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// So long somebody waits for a look-up: a little less than for a connection, so that it is said what was late.
const LONGEST: Duration = Duration::from_millis(1_900);

/// So long the addresses are kept that came too late: where each look-up takes as long, nobody would ever have any.
const KEPT: Duration = Duration::from_secs(30);

/// What was found, or why nothing was.
type Found = Result<Vec<IpAddr>, (io::ErrorKind, String)>;

thread_local! {
    /// The look-ups of this thread that are under way, or whose addresses are kept.
    static LOOK_UPS: RefCell<HashMap<String, watch::Receiver<Option<Found>>>> = RefCell::default();
}

/// All addresses of `host` with this port, in the order in which they are to be tried.
///
/// # Errors
/// There are none, or they were not found in time.
pub(super) async fn addresses(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let mut looked_up = join(host);
    let found = tokio::time::timeout(LONGEST, looked_up.wait_for(Option::is_some)).await;
    let late =
        |why: &str| io::Error::new(io::ErrorKind::TimedOut, format!("the name {host} {why}"));
    let found = found.map_err(|_| late(&format!("was not looked up within {LONGEST:?}")))?;
    let found = found
        .map_err(|_| late("is not looked up any more"))?
        .clone();
    match found.unwrap_or_else(|| Ok(Vec::new())) {
        Ok(addresses) => Ok(addresses
            .into_iter()
            .map(|address| SocketAddr::new(address, port))
            .collect()),
        Err((kind, why)) => Err(io::Error::new(kind, why)),
    }
}

/// The look-up of a name that is under way or kept, or a new one.
fn join(host: &str) -> watch::Receiver<Option<Found>> {
    let name = host.to_owned();
    join_or(host, async move {
        let found = tokio::net::lookup_host((name, 0)).await?;
        Ok(found.map(|address| address.ip()).collect())
    })
}

/// The same; `look_up` is a new one.
fn join_or(
    host: &str,
    look_up: impl Future<Output = io::Result<Vec<IpAddr>>> + Send + 'static,
) -> watch::Receiver<Option<Found>> {
    LOOK_UPS.with_borrow_mut(|all| {
        // Of one whose runtime is gone nothing comes any more.
        if let Some(known) = all.get(host).filter(|known| known.has_changed().is_ok()) {
            return known.clone();
        }
        let (give, looked_up) = watch::channel(None);
        all.insert(host.to_owned(), looked_up.clone());
        let (host, begun) = (host.to_owned(), Instant::now());
        tokio::spawn(async move {
            let found = look_up.await;
            let is_kept = found.is_ok() && begun.elapsed() > LONGEST;
            give.send_replace(Some(found.map_err(|why| (why.kind(), why.to_string()))));
            if is_kept {
                tokio::time::sleep(KEPT).await;
            }
            LOOK_UPS.with_borrow_mut(|all| all.remove(&host));
        });
        looked_up
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_asks_for_a_name_meanwhile_waits_for_the_same_look_up() {
        let asked = [join("localhost"), join("localhost")];
        assert!(asked[0].same_channel(&asked[1]));
        let found = addresses("localhost", 80).await.unwrap();
        assert!(found.iter().all(|address| address.ip().is_loopback()));
        assert!(!found.is_empty());
        LOOK_UPS.with_borrow(|all| assert!(all.is_empty()));
        let literal = addresses("::1", 80).await.unwrap();
        assert_eq!(literal, ["[::1]:80".parse().unwrap()]);
        LOOK_UPS.with_borrow(|all| assert!(all.is_empty()));
    }

    /// Time is paused, and the look-up has not begun.
    #[tokio::test(start_paused = true)]
    async fn a_look_up_that_takes_long_says_so_itself() {
        let (_give, looked_up) = watch::channel(None);
        LOOK_UPS.with_borrow_mut(|all| all.insert("slow.test".to_owned(), looked_up));
        let error = addresses("slow.test", 80).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(
            error.to_string(),
            "the name slow.test was not looked up within 1.9s"
        );
    }
    /// The look-up of a slow name server, unless its addresses are known.
    fn slowly(gives: io::Result<Vec<IpAddr>>) -> watch::Receiver<Option<Found>> {
        join_or("slow.test", async {
            tokio::time::sleep(2 * LONGEST).await;
            gives
        })
    }

    #[tokio::test(start_paused = true)]
    async fn addresses_that_came_too_late_are_kept_for_the_next() {
        let there = IpAddr::from([127, 0, 0, 1]);
        let slow = slowly(Ok(vec![there]));
        assert!(addresses("slow.test", 80).await.is_err());
        tokio::time::sleep(2 * LONGEST).await;
        let asked = Instant::now();
        let found = addresses("slow.test", 80).await.unwrap();
        assert_eq!(found, [SocketAddr::new(there, 80)]);
        assert_eq!(asked.elapsed(), Duration::ZERO);
        // But not for ever, and no failure is.
        tokio::time::sleep(KEPT).await;
        let failing = slowly(Err(io::ErrorKind::NotFound.into()));
        assert!(!failing.same_channel(&slow));
        tokio::time::sleep(3 * LONGEST).await;
        LOOK_UPS.with_borrow(|all| assert!(all.is_empty()));
    }
}
