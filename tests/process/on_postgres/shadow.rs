//! Entries that are only tried by a fleet.

use crate::process::prelude::*;
use crate::process::shadow::two_try_as_one;

#[test]
fn a_fleet_tries_as_one() {
    let store = PostgresServer::start(UNSYNCED);
    two_try_as_one(&store.url());
}
