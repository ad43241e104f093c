//! Servers that tests start for themselves, and their ports.

pub mod certs;
pub mod connections;
mod missing;
pub mod pgbouncer;
pub mod port;
pub mod postgres;
pub mod prometheus;
pub mod redis;
pub mod redises;
pub mod vendor;

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::thread::{self, Scope, ScopedJoinHandle};

use tokio::runtime::{self, Runtime};

/// A future whose type is the same whatever it does. What takes a closure of a test gives one of these: else all that it
/// awaits would be compiled once more for each such closure.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// What a thread of its own needs to wait for the network.
pub fn runtime() -> Runtime {
    let mut runtime = runtime::Builder::new_current_thread();
    runtime.enable_all().build().unwrap()
}

/// Fails a test that uses this service while `tests/run.sh --without` it would run the test: `on_` and the service must
/// stand in its path, which is what its thread is called. Benches run on the main thread.
pub fn only_on(service: &str) {
    let thread = thread::current();
    let test = thread.name().unwrap_or("a thread without a name");
    let is_left_out = test == "main" || test.contains(&format!("on_{service}"));
    assert!(
        is_left_out,
        "{test} uses {service}: move it to on_{service}"
    );
}

/// What OJS publishes and tests read: its conformance cases, and its texts.
pub fn official(what: &str) -> PathBuf {
    only_on("official");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("official");
    let missing = "OJS's own cases and texts are missing: bash tests/run.sh fetches them, or --without official";
    assert!(folder.join(what).exists(), "{missing}");
    folder.join(what)
}

/// A thread that is called as the test that starts it, so that it may use what the test may.
pub fn named_as_test<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> ScopedJoinHandle<'scope, T> {
    let name = thread::current().name().map(str::to_owned);
    let thread = thread::Builder::new().name(name.expect("libtest names threads"));
    thread.spawn_scoped(scope, work).unwrap()
}

#[test]
fn who_uses_a_service_elsewhere_fails_at_once() {
    assert!(include_str!("../run.sh").contains("skip+=(--skip \"on_$service\")"));
    assert!(std::panic::catch_unwind(|| only_on("redis")).is_err());
}

#[tokio::test]
async fn who_is_left_out_on_redis_may_use_it() {
    only_on("redis");
    thread::scope(|scope| named_as_test(scope, || only_on("redis")).join().unwrap());
}
