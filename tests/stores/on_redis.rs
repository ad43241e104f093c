//! The store on Redis: against a server of the test's own.

use ojs_throttle::store::redis::{Config, Target};

use super::prelude::*;

pub fn config(server: &RedisServer, owner: &str) -> Config {
    Config {
        target: Target::parse(&server.url(), None).unwrap(),
        namespace: "ojs-throttle".to_owned(),
        owner: owner.to_owned(),
        timeout: Duration::from_secs(5),
    }
}

pub struct Redis {
    pub server: RedisServer,
    micros: Arc<AtomicU64>,
    clock: Clock,
}

impl Redis {
    pub fn new() -> Redis {
        let (micros, clock) = clock();
        Redis {
            server: RedisServer::start(),
            micros,
            clock,
        }
    }
}

impl Rig for Redis {
    fn open<'a>(&'a self, owner: &'a str) -> Opened<'a> {
        Box::pin(async move {
            let store = RedisStore::new(config(&self.server, owner), self.clock.clone());
            store.check().await.unwrap();
            Arc::new(store) as Arc<dyn Ledger>
        })
    }

    fn clock(&self) -> &Arc<AtomicU64> {
        &self.micros
    }
}

crate::stamp!(
    set_back,
    async { Redis::new() },
    [limits_go_on, a_jump_that_is_taken_back_freezes_nothing]
);
crate::stamp_contract!(async { Redis::new() });
crate::stamp_fleet!(async { Redis::new() });
