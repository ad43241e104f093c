//! The addresses of a name: one look-up at a time for each, shared by all who wait for it. A look-up has a thread of
//! its own for as long as it takes, whoever still waits.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::sync::watch;

/// So long somebody waits for a look-up: a little less than for a connection, so that it is said what was late.
const LONGEST: Duration = Duration::from_millis(1_900);

/// What was found, or why nothing was.
type Found = Result<Vec<IpAddr>, (io::ErrorKind, String)>;

thread_local! {
    /// The look-ups of this thread that are under way.
    static UNDER_WAY: RefCell<HashMap<String, watch::Receiver<Option<Found>>>> = RefCell::default();
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

/// The look-up of a name that is under way, or a new one.
fn join(host: &str) -> watch::Receiver<Option<Found>> {
    UNDER_WAY.with_borrow_mut(|all| {
        // Of one whose runtime is gone nothing comes any more.
        if let Some(known) = all.get(host).filter(|known| known.has_changed().is_ok()) {
            return known.clone();
        }
        let (give, looked_up) = watch::channel(None);
        all.insert(host.to_owned(), looked_up.clone());
        let host = host.to_owned();
        tokio::spawn(async move {
            let found = tokio::net::lookup_host((host.as_str(), 0)).await;
            UNDER_WAY.with_borrow_mut(|all| all.remove(&host));
            let found = found.map(|all| all.map(|address| address.ip()).collect());
            give.send_replace(Some(found.map_err(|why| (why.kind(), why.to_string()))));
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
        UNDER_WAY.with_borrow(|all| assert!(all.is_empty()));
        let literal = addresses("::1", 80).await.unwrap();
        assert_eq!(literal, ["[::1]:80".parse().unwrap()]);
        UNDER_WAY.with_borrow(|all| assert!(all.is_empty()));
    }

    /// Time is paused, and the look-up has not begun.
    #[tokio::test(start_paused = true)]
    async fn a_look_up_that_takes_long_says_so_itself() {
        let (_give, looked_up) = watch::channel(None);
        UNDER_WAY.with_borrow_mut(|all| all.insert("slow.test".to_owned(), looked_up));
        let error = addresses("slow.test", 80).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(
            error.to_string(),
            "the name slow.test was not looked up within 1.9s"
        );
    }
}
