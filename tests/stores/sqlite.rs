//! The store on SQLite: on a file in a folder of the test's own.

use std::path::PathBuf;

use ojs_throttle::store::sqlite::{Config, open};

use super::prelude::*;

pub struct Sqlite {
    pub dir: tempfile::TempDir,
    micros: Arc<AtomicU64>,
    clock: Clock,
}

impl Sqlite {
    pub fn new() -> Sqlite {
        let (micros, clock) = clock();
        Sqlite {
            dir: tempfile::tempdir().unwrap(),
            micros,
            clock,
        }
    }

    pub fn path(&self) -> PathBuf {
        self.dir.path().join("limits.db")
    }

    pub fn config(&self, owner: &str) -> Config {
        Config {
            target: self.path(),
            namespace: "ojs-throttle".to_owned(),
            owner: owner.to_owned(),
            timeout: Duration::from_secs(10),
        }
    }
}

impl Rig for Sqlite {
    fn open<'a>(&'a self, owner: &'a str) -> Opened<'a> {
        Box::pin(async move {
            let store = open(self.config(owner), self.clock.clone());
            store.check().await.unwrap();
            Arc::new(store) as Arc<dyn Ledger>
        })
    }

    fn clock(&self) -> &Arc<AtomicU64> {
        &self.micros
    }
}

crate::stamp_contract!(async { Sqlite::new() });
crate::stamp_fleet!(async { Sqlite::new() });
