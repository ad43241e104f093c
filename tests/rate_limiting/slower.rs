//! A throttle that becomes slower binds the very next start, however it became so.

use super::prelude::*;
use crate::sidecar::settings;
use crate::sidecar::simulated::Pair;

const POLICY: &str = "[[policy]]\nname = 'p'\nmatch = { queue = 'q' }\n";
const FAST: &str = "throttle = { limit = 10, period = '1s' }\n";
const SLOW: &str = "throttle = { limit = 1, period = '5s' }\n";

/// When the next job starts, by asking so often.
async fn next(client: &Client, often: Duration) -> Instant {
    loop {
        if !client.fetch("q", 1).await.is_empty() {
            return Instant::now();
        }
        sleep(often).await;
    }
}

/// Some start at the fast distance; then this is done, and the next is at least `apart` from the last.
async fn binds(store: MemoryStore, apart: Duration, slow: impl AsyncFn(&Sidecar, &str)) {
    let pair = Pair::over(Arc::new(store), &[POLICY, FAST].concat()).await;
    let client = pair.sidecar.client();
    client.enqueue_all(9, &plain("q")).await;
    let often = Duration::from_millis(10);
    let mut last = next(&client, often).await;
    for _ in 0..3 {
        let at = next(&client, often).await;
        assert!(at - last < Duration::from_millis(200), "{:?}", at - last);
        last = at;
    }
    slow(&pair.sidecar, &pair.behind.base()).await;
    for _ in 0..2 {
        let at = next(&client, apart / 10).await;
        let gap = at - last;
        assert!(gap + crate::harness::EARLY >= apart, "{gap:?}");
        assert!(gap < apart + apart / 5, "{gap:?}");
        last = at;
    }
}

#[tokio::test(start_paused = true)]
async fn a_reload_binds_the_next_start() {
    binds(
        MemoryStore::new(NOON),
        Duration::from_secs(5),
        async |running, upstream| {
            let settings = settings(upstream, &[POLICY, SLOW].concat());
            running.reload.apply(settings);
        },
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_number_set_over_http_binds_the_next_start() {
    binds(
        MemoryStore::new(NOON),
        Duration::from_secs(3_600),
        async |running, _| {
            let set = json!({"throttle": {"limit": 1, "period": "PT1H"}});
            running.client().limit("p", set).await;
        },
    )
    .await;
}
