//! Calls that no limit of the file is for: what is set by hand for their key, and what the vendor says, holds them all the
//! same.

use super::prelude::*;
use super::signals::{head, pause_after};

const PAID: &str = "[[egress.budget]]\nname = 'tokens'\nrate = { limit = 9000, period = '1m' }\nonly = ['POST /chat']";
const TRIED: &str = "control_token = 's3cret'\n[[policy]]\nname = 'p'\nmatch = { queue = 'q' }\nkey = 'out'\n\
    concurrency = 9\nmode = 'shadow'\n";

#[tokio::test(start_paused = true)]
async fn a_key_without_limits_is_paused_limited_and_shut() {
    let control = "control_token = 's3cret'";
    for (policies, entry) in [(control, ""), (control, PAID), (TRIED, "")] {
        let world = World::start(policies, &format!("on_limit = 'reject'\n{entry}"), fine).await;
        let admin = world.pair.sidecar.admin().controlling("s3cret");
        let named = async |name: &str, set: serde_json::Value| {
            let path = format!("/throttle/v1/keys/{name}/override");
            let shown = admin.set(&path, set).await;
            assert_eq!(shown["hint"], json!(null), "{entry}: {shown}");
            let refused = world.statuses("/", 3).await;
            assert_eq!(admin.delete(&path).await.status, 200);
            assert_eq!(world.statuses("/", 1).await, [200]);
            refused
        };
        assert_eq!(world.statuses("/", 1).await, [200]);
        for name in ["out", "_policy:out"] {
            assert_eq!(named(name, json!({"concurrency": 0})).await, [429; 3]);
        }
        let one = json!({"rate": {"limit": 1, "period": "PT1H"}});
        assert_eq!(named("out", one).await, [200, 429, 429]);
        assert_eq!(world.vendor.calls().len(), 5);
        world.pair.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_vendor_shuts_a_key_without_limits() {
    for entry in ["", PAID] {
        let pause = pause_after(entry, "", head("429 | Retry-After: 20")).await;
        assert!((20_000..20_060).contains(&pause), "{entry}: {pause} ms");
    }
}
