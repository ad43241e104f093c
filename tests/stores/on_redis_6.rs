//! The store on the oldest Redis that will do. Its errors look otherwise, and its clusters answer otherwise.

use super::on_redis::failover::leaves_a_demoted_master;
use super::on_redis::{config, rig_of};
use super::prelude::*;
use crate::servers::redis::OldRedis;
use crate::servers::redises::cli;

crate::stamp_contract!(rig_of(OldRedis::start()));
crate::stamp_fleet!(rig_of(OldRedis::start()));

#[tokio::test]
async fn a_master_that_became_a_replica_is_left() {
    leaves_a_demoted_master(OldRedis::start(), OldRedis::start()).await;
}

#[tokio::test]
async fn what_is_somebody_elses_is_named() {
    let server = OldRedis::start();
    cli(server.port, &["SET", "{ojs-throttle}:live", "1"]);
    let store = RedisStore::new(config(&server, "a"), Clock::new(T));
    let why = store.check().await.unwrap_err();
    assert!(matches!(why, StoreError::Unusable(_)), "{why}");
}
