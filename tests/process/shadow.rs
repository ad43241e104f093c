//! Entries that are only tried, where sidecars share a store: they are tried as one, beside what decides.

use crate::process::on_redis::fleet::patient;
use crate::process::prelude::*;

const POLICY: &str = "[[policy]]\nname = 'e'\nkey = 'k'\nmatch.queue = 'q'\nconcurrency = 5\n\
    [[policy]]\nname = 'p'\nkey = 'k'\nmatch.queue = 'q'\nconcurrency = 1\nmode = 'shadow'\n";

/// Each of two sidecars starts a job at once, although one slot is tried. One of the two jobs would wait; it would start
/// when the other one ends, through the other sidecar.
pub fn two_try_as_one(url: &str) {
    let backend = Backend::start(Lax::redis());
    let sidecars = [(); 2].map(|()| patient(backend.addr, "2s", url, "timeout = \"2s\"\n", POLICY));
    for _ in 0..2 {
        enqueue(backend.addr, "q", json!({}));
    }
    let jobs = sidecars
        .each_ref()
        .map(|sidecar| fetch(sidecar.data, "q", 1, "w").jobs());
    assert_eq!(jobs.each_ref().map(Vec::len), [1, 1]);
    let waiting = |sidecar: &Sidecar| sidecar.metric("ojs_throttle_shadow_waiting{policy=\"p\"}");
    let verdicts = |word: &str| {
        let series = format!("ojs_throttle_shadow_jobs_total{{policy=\"p\",verdict=\"{word}\"}}");
        let all = sidecars.iter().map(|sidecar| sidecar.metric(&series));
        all.sum::<f64>()
    };
    let all = || sidecars.iter().map(waiting).sum::<f64>();
    wait("one would wait", || {
        all() == 1.0 && verdicts("started") == 1.0
    });
    let first = usize::from(waiting(&sidecars[0]) == 1.0);
    assert_eq!(ack(sidecars[first].data, &jobs[first][0], "w").status, 200);
    wait("it would start", || {
        all() == 0.0 && verdicts("waited") == 1.0
    });
    let out = |sidecar: &Sidecar| sidecar.metric("ojs_rate_limit_active{key=\"k\"}");
    wait("no virtual slot counts where limits decide", || {
        out(&sidecars[1 - first]) == 1.0
    });
}

#[test]
fn processes_on_one_file_try_as_one() {
    let dir = tempfile::tempdir().unwrap();
    two_try_as_one(&format!("sqlite:{}/throttle.db", dir.path().display()));
}
