//! The store on SQLite: on a file in a folder of the test's own.

use ojs_throttle::store::sqlite::{SqliteConfig, open};

use super::prelude::*;

fn rig() -> Rig {
    let dir = tempfile::tempdir().unwrap();
    Rig::of(|clock| {
        move |owner| {
            let config = SqliteConfig {
                target: dir.path().join("limits.db"),
                namespace: "ojs-throttle".to_owned(),
                owner: owner.to_owned(),
                // A disk that many tests share may stand still for longer than ten seconds.
                timeout: Duration::from_secs(30),
            };
            let store = open(config, clock.clone());
            async {
                store.check().await.unwrap();
                Arc::new(store) as _
            }
        }
    })
}

crate::stamp_contract!(rig());
crate::stamp_fleet!(rig());
