//! The store on Redis: against a server of the test's own.

pub mod failover;
mod faults;

use ojs_throttle::store::redis::{RedisConfig, RedisTarget};

use super::prelude::*;

pub fn config(server: &RedisServer, owner: &str) -> RedisConfig {
    RedisConfig {
        target: RedisTarget::parse(&server.url()).unwrap(),
        namespace: "ojs-throttle".to_owned(),
        owner: owner.to_owned(),
        timeout: Duration::from_secs(5),
    }
}

fn rig() -> Rig {
    rig_of(RedisServer::start())
}

pub fn rig_of(server: RedisServer) -> Rig {
    Rig::of(|clock| {
        move |owner| {
            let store = RedisStore::new(config(&server, owner), clock.clone());
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
crate::stamp!(
    fleet,
    rig(),
    [jobs_of_a_lane_are_found_behind_a_whole_reading]
);
