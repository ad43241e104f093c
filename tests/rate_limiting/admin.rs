//! The admin port while the store is slow, or silent.

use super::prelude::*;
use crate::harness::assert_within;

/// A rig whose store can be made slow.
async fn slow() -> (Rig, Arc<Faulty>) {
    let store = Arc::new(Faulty::new(Arc::new(MemoryStore::new(NOON))));
    (Rig::over(store.clone(), "").await, store)
}

fn late(delay: Duration) -> Option<Fault> {
    Some(Fault {
        delay,
        ..Fault::NONE
    })
}

/// However many keys there are: they are one question.
#[tokio::test(start_paused = true)]
async fn a_page_comes_in_time_from_a_slow_store() {
    let (rig, store) = slow().await;
    for n in 0..60 {
        let limits = json!({"key": format!("k{n}"), "concurrency": 1});
        let job = json!({"type": "t", "args": [], "options": {"queue": "q", "rate_limit": limits}});
        rig.client.enqueue(job).await;
    }
    assert_eq!(rig.client.fetch("q", 60).await.len(), 60);
    store.standing(late(Duration::from_millis(100)));
    let begun = Instant::now();
    let page = rig.admin.get("/metrics").await;
    assert_eq!(page.status, 200);
    let text = page.text();
    assert!(text.contains("\nojs_throttle_store_up 1\n"), "{text}");
    for line in [
        "{key=\"_other\"} 10\n",
        "{key=\"k7\"} 1\n",
        "{key=\"k8\"} 1\n",
    ] {
        let line = format!("ojs_rate_limit_active{line}");
        assert!(text.contains(&line), "{line}: {text}");
    }
    assert_within(begun.elapsed(), Duration::from_secs(1), "");

    // And there is one when it says nothing at all.
    store.standing(late(Duration::from_secs(3_600)));
    let page = rig.admin.get("/metrics").await;
    assert_eq!(page.status, 200);
    assert!(page.text().contains("\nojs_throttle_store_up "));
}

/// Sixteen at once, and no more.
#[tokio::test(start_paused = true)]
async fn scrapes_of_a_silent_store_do_not_pile_up() {
    let (rig, store) = slow().await;
    store.standing(late(Duration::from_secs(3_600)));
    for _ in 0..16 {
        let admin = rig.admin.clone();
        tokio::spawn(async move { admin.get("/metrics").await });
    }
    sleep(Duration::from_millis(100)).await;
    let begun = Instant::now();
    let page = rig.admin.get("/metrics").await;
    assert_eq!(page.status, 503, "{}", page.text());
    assert!(begun.elapsed() < Duration::from_millis(100));
    assert_eq!(
        rig.admin.get("/livez").await.status,
        200,
        "a probe waits for nobody"
    );
    // Each ends by itself.
    sleep(Duration::from_secs(5)).await;
    assert_eq!(rig.admin.get("/metrics").await.status, 200);
}
