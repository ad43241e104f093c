//! Looks up the addresses of names. All who wait for a name share one look-up, which has a thread of its own. If it
//! finishes too late for them, its addresses serve those who come next.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// How long a connection may take whose caller has no time of its own for that.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// How long addresses that came too late are kept before the next look-up. Where each look-up takes that long, nobody
/// would ever have an address otherwise.
const KEPT: Duration = Duration::from_secs(30);

/// The addresses, or why there are none.
type LookedUp = Result<Vec<IpAddr>, (io::ErrorKind, String)>;

thread_local! {
    /// The look-ups of this thread that run, and those whose addresses are kept.
    static LOOK_UPS: RefCell<HashMap<String, LookUp>> = RefCell::default();
}

/// A look-up that runs, or whose addresses are kept.
struct LookUp {
    found: watch::Receiver<Option<LookedUp>>,
    /// Whether somebody asked for the name since the last look-up.
    asked: bool,
}

/// All addresses of `host` with this port, in the order in which to try them, for a connection that opens `within` this
/// time.
///
/// # Errors
/// There are none, or they were not found in time.
pub(super) async fn addresses(
    host: &str,
    port: u16,
    within: Duration,
) -> io::Result<Vec<SocketAddr>> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    // A little less, so that the error names the look-up.
    let longest = within - within / 20;
    let mut looked_up = join(host, longest);
    let found = tokio::time::timeout(longest, looked_up.wait_for(Option::is_some)).await;
    let late =
        |why: &str| io::Error::new(io::ErrorKind::TimedOut, format!("the name {host} {why}"));
    let found = found.map_err(|_| late(&format!("was not looked up within {longest:?}")))?;
    let found = found
        .map_err(|_| late("is not looked up any more"))?
        .clone();
    let found = found.unwrap_or_else(|| Ok(Vec::new()));
    let addresses = found.map_err(|(kind, why)| io::Error::new(kind, why))?;
    let addresses = addresses.into_iter();
    Ok(addresses
        .map(|address| SocketAddr::new(address, port))
        .collect())
}

/// The running or kept look-up of a name, or a new one.
fn join(host: &str, longest: Duration) -> watch::Receiver<Option<LookedUp>> {
    let name = host.to_owned();
    join_or(host, longest, move || {
        let name = name.clone();
        async move {
            let found = tokio::net::lookup_host((name, 0)).await?;
            Ok(found.map(|address| address.ip()).collect())
        }
    })
}

/// Like [`join`], but starts a new one with `look_up`.
fn join_or<L>(
    host: &str,
    longest: Duration,
    look_up: impl Fn() -> L + Send + 'static,
) -> watch::Receiver<Option<LookedUp>>
where
    L: Future<Output = io::Result<Vec<IpAddr>>> + Send + 'static,
{
    LOOK_UPS.with_borrow_mut(|all| {
        // A look-up whose runtime is gone never answers.
        let known = all.get_mut(host);
        if let Some(known) = known.filter(|known| known.found.has_changed().is_ok()) {
            known.asked = true;
            return known.found.clone();
        }
        let (give, found) = watch::channel(None);
        let new = LookUp {
            found: found.clone(),
            asked: false,
        };
        all.insert(host.to_owned(), new);
        tokio::spawn(keep(host.to_owned(), longest, give, look_up));
        found
    })
}

/// Looks a name up. If that takes too long, the addresses are kept and looked up anew for as long as somebody asks for
/// them. The old addresses stand until then, so that nobody waits.
async fn keep<L>(
    host: String,
    longest: Duration,
    give: watch::Sender<Option<LookedUp>>,
    look_up: impl Fn() -> L,
) where
    L: Future<Output = io::Result<Vec<IpAddr>>>,
{
    loop {
        let begun = Instant::now();
        let found = look_up().await;
        let is_kept = found.is_ok() && begun.elapsed() > longest;
        give.send_replace(Some(found.map_err(|why| (why.kind(), why.to_string()))));
        if !is_kept {
            break;
        }
        tokio::time::sleep(KEPT).await;
        let asked = LOOK_UPS.with_borrow_mut(|all| {
            let known = all.get_mut(&host);
            known.is_some_and(|known| std::mem::take(&mut known.asked))
        });
        if !asked {
            break;
        }
    }
    LOOK_UPS.with_borrow_mut(|all| all.remove(&host));
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::*;

    const LONGEST: Duration = Duration::from_millis(1_900);

    #[tokio::test]
    async fn who_asks_for_a_name_meanwhile_waits_for_the_same_look_up() {
        let asked = [join("localhost", LONGEST), join("localhost", LONGEST)];
        assert!(asked[0].same_channel(&asked[1]));
        let found = addresses("localhost", 80, PATIENCE).await.unwrap();
        assert!(found.iter().all(|address| address.ip().is_loopback()));
        assert!(!found.is_empty());
        LOOK_UPS.with_borrow(|all| assert!(all.is_empty()));
        let literal = addresses("::1", 80, PATIENCE).await.unwrap();
        assert_eq!(literal, ["[::1]:80".parse().unwrap()]);
        LOOK_UPS.with_borrow(|all| assert!(all.is_empty()));
    }

    /// Time is paused, and the look-up has not begun.
    #[tokio::test(start_paused = true)]
    async fn a_look_up_that_takes_long_says_so_itself() {
        let (_give, found) = watch::channel(None);
        let asked = false;
        LOOK_UPS.with_borrow_mut(|all| all.insert("slow.test".to_owned(), LookUp { found, asked }));
        for (within, said) in [(2, "1.9s"), (20, "19s")] {
            let within = Duration::from_secs(within);
            let error = addresses("slow.test", 80, within).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            let said = format!("the name slow.test was not looked up within {said}");
            assert_eq!(error.to_string(), said);
        }
    }

    const THERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    /// The look-up at a slow name server, unless its addresses are known. `known`: how often it finds them.
    fn slowly(known: usize) -> watch::Receiver<Option<LookedUp>> {
        let left = AtomicUsize::new(known);
        join_or("slow.test", LONGEST, move || {
            let found = left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
            async move {
                tokio::time::sleep(2 * LONGEST).await;
                found.map_or(Err(io::ErrorKind::NotFound.into()), |_| Ok(vec![THERE]))
            }
        })
    }

    fn is_known() -> bool {
        LOOK_UPS.with_borrow(|all| !all.is_empty())
    }

    /// Each second would be a connection.
    #[tokio::test(start_paused = true)]
    async fn addresses_that_come_too_late_are_there_for_as_long_as_they_are_asked_for() {
        let _first = slowly(3);
        assert!(addresses("slow.test", 80, PATIENCE).await.is_err());
        tokio::time::sleep(2 * LONGEST).await;
        let begun = Instant::now();
        while begun.elapsed() < 3 * KEPT {
            let asked = Instant::now();
            let found = addresses("slow.test", 80, PATIENCE).await.unwrap();
            assert_eq!(found, [SocketAddr::new(THERE, 80)]);
            assert_eq!(asked.elapsed(), Duration::ZERO);
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        // It is not found any more, which is not kept.
        tokio::time::sleep(KEPT).await;
        assert!(!is_known());
    }

    #[tokio::test(start_paused = true)]
    async fn addresses_that_nobody_asks_for_any_more_are_forgotten() {
        let first = slowly(9);
        tokio::time::sleep(3 * LONGEST).await;
        assert!(first.same_channel(&slowly(9)));
        // Once more, because they were asked for.
        tokio::time::sleep(KEPT + LONGEST).await;
        assert!(is_known());
        tokio::time::sleep(KEPT + LONGEST).await;
        assert!(!is_known());
    }
}
