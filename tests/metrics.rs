//! What is counted costs no memory for long. Alone in its process, because it looks at what that takes.

use std::time::Duration;

use ojs_throttle::told::metrics::Metrics;

/// Bytes of this process that are in memory.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

#[tokio::test(start_paused = true)]
async fn histograms_that_nobody_scrapes_do_not_grow() {
    const ROUNDS: usize = 40;
    const SAMPLES: usize = 200_000;
    let metrics = Metrics::new(1);
    let keeping = tokio::spawn(metrics.clone().keep_up());
    let before = resident();
    for _ in 0..ROUNDS {
        for _ in 0..SAMPLES {
            metrics.waited(Duration::from_millis(3));
        }
        tokio::time::sleep(Duration::from_secs(6)).await;
    }
    let grown = resident().saturating_sub(before);
    keeping.abort();
    // A sample that is kept takes sixteen bytes.
    assert!(grown < ROUNDS * SAMPLES * 4, "grown by {grown} bytes");
    let all = format!("ojs_throttle_fetch_wait_seconds_count {}", ROUNDS * SAMPLES);
    assert!(metrics.render().contains(&all));
}
