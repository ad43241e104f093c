//! The store on Postgres: each check in a schema of its own, on a server of the test's own.

mod faults;

use std::sync::{LazyLock, Mutex, Weak};

use ojs_throttle::store::postgres::{PostgresConfig, PostgresTarget, open};

use super::prelude::*;
use crate::servers::only_on;
use crate::servers::postgres::UNSYNCED;

/// The one server of all checks that need none of their own.
pub fn shared_postgres() -> Arc<PostgresServer> {
    only_on("postgres");
    static SHARED: LazyLock<Mutex<Weak<PostgresServer>>> = LazyLock::new(Mutex::default);
    let mut shared = SHARED.lock().unwrap();
    if let Some(server) = shared.upgrade() {
        return server;
    }
    let with = [UNSYNCED, &["-c", "max_connections=200"]].concat();
    let server = Arc::new(PostgresServer::start(&with));
    *shared = Arc::downgrade(&server);
    server
}

pub fn config(server: &PostgresServer, namespace: &str, owner: &str) -> PostgresConfig {
    PostgresConfig {
        target: PostgresTarget::parse(&server.url()).unwrap(),
        namespace: namespace.to_owned(),
        owner: owner.to_owned(),
        // Many tests share the server, and its disk may stand for a while.
        timeout: Duration::from_secs(30),
    }
}

fn rig() -> Rig {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let namespace = format!("limits \"{}\"", COUNT.fetch_add(1, Ordering::Relaxed));
    let server = shared_postgres();
    Rig::of(|clock| {
        move |owner| {
            let store = open(config(&server, &namespace, owner), clock.clone());
            async {
                store.check().await.unwrap();
                Arc::new(store) as _
            }
        }
    })
}

crate::stamp!(
    set_back,
    rig(),
    [limits_go_on, a_jump_that_is_taken_back_freezes_nothing]
);
crate::stamp_contract!(rig());
crate::stamp_fleet!(rig());
