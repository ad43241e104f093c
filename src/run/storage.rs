//! The store that the settings name.

use std::sync::Arc;

use anyhow::Context;

use crate::config::{StoreSettings, StoreUrl};
use crate::store::guard::{Guard, OnStoreError};
use crate::store::memory::MemoryStore;
use crate::store::redis::{self, RedisStore};
use crate::store::{
    Clock, Inspection, Ledger, NAMES, Store, StoreConfig, StoreError, postgres, sqlite,
};
use crate::tls::ClientFiles;

/// The name of the sidecar with this seed: the worker id of its claims, and whose rows are its own.
pub(super) fn name(seed: u64) -> String {
    format!("{NAMES}{seed:016x}")
}

/// A store outside this process, and how to open it.
#[derive(Clone, Debug)]
enum Outside {
    Redis(Box<redis::RedisConfig>),
    Postgres(postgres::PostgresConfig),
    Sqlite(sqlite::SqliteConfig),
}

impl Outside {
    /// The one that the settings name for the sidecar with this seed; `None`: they name the memory.
    fn of(settings: &StoreSettings, seed: u64) -> anyhow::Result<Option<Outside>> {
        let files = || ClientFiles {
            ca: settings.ca_file.clone(),
            cert: settings.client_cert_file.clone(),
            key: settings.client_key_file.clone(),
        };
        let owner = name(seed);
        Ok(Some(match &settings.url {
            StoreUrl::Memory => return Ok(None),
            StoreUrl::Redis(url) => {
                let target = redis::RedisTarget::parse(url.expose()).context("store.url")?;
                let target = target.with_files(files()).context("store")?;
                Outside::Redis(Box::new(store_config(settings, owner, target)))
            }
            StoreUrl::Postgres(url) => {
                let target = postgres::PostgresTarget::parse(url.expose()).context("store.url")?;
                let target = target.with_files(files()).context("store")?;
                Outside::Postgres(store_config(settings, owner, target))
            }
            StoreUrl::Sqlite(path) => Outside::Sqlite(store_config(settings, owner, path.clone())),
        }))
    }

    /// Opens it.
    fn open(self, clock: Clock) -> Arc<dyn Ledger> {
        match self {
            Outside::Redis(config) => Arc::new(RedisStore::new(*config, clock)),
            Outside::Postgres(config) => Arc::new(postgres::open(config, clock)),
            Outside::Sqlite(config) => Arc::new(sqlite::open(config, clock)),
        }
    }

    /// Opens the same store, with what entries have used that are only tried (`mode = "shadow"`) under a name of its
    /// own. While it does not answer any more, each sidecar goes on with its share.
    fn beside(&self, clock: &Clock) -> impl Fn() -> Store + Send + Sync + 'static {
        let (mut outside, clock) = (self.clone(), clock.clone());
        let namespace = match &mut outside {
            Outside::Redis(config) => &mut config.namespace,
            Outside::Postgres(config) => &mut config.namespace,
            Outside::Sqlite(config) => {
                // A file is of one namespace.
                config.target.as_mut_os_string().push(".shadow");
                &mut config.namespace
            }
        };
        namespace.push_str(".shadow");
        move || {
            let ledger = outside.clone().open(clock.clone());
            Store::shared(Arc::new(Guard::new(ledger, OnStoreError::Share)))
        }
    }
}

/// What the store at `target` is told.
fn store_config<T>(settings: &StoreSettings, owner: String, target: T) -> StoreConfig<T> {
    StoreConfig {
        target,
        namespace: settings.namespace.clone(),
        owner,
        timeout: settings.timeout,
    }
}

/// Looks at a store outside this process with this many calls, and changes nothing there. `None`: the settings name the
/// memory.
///
/// # Errors
/// The settings name no store that can be used. Inside: the store cannot be used.
pub async fn inspect_store(
    settings: &StoreSettings,
    seed: u64,
    clock: &Clock,
    calls: usize,
) -> anyhow::Result<Option<Result<Inspection, StoreError>>> {
    Ok(match Outside::of(settings, seed)? {
        None => None,
        Some(Outside::Redis(config)) => {
            let store = RedisStore::new(*config, clock.clone());
            Some(store.inspect(calls).await)
        }
        Some(Outside::Postgres(config)) => Some(postgres::inspect(&config, clock, calls).await),
        Some(Outside::Sqlite(config)) => Some(sqlite::inspect(&config, clock, calls)),
    })
}

/// Opens the store for the sidecar with this seed. A shared one that does not answer is no reason not
/// to start, but to be unready: nothing that is limited starts until it does.
///
/// # Errors
/// It answers, and cannot be used as it is.
pub async fn open_store(
    settings: &StoreSettings,
    seed: u64,
    unix_micros: u64,
) -> anyhow::Result<Store> {
    let clock = Clock::new(unix_micros);
    let Some(outside) = Outside::of(settings, seed)? else {
        return Ok(Store::from(Arc::new(MemoryStore::on(clock))));
    };
    let beside = outside.beside(&clock);
    let ledger = outside.open(clock);
    let checked = ledger.check().await;
    let answered = checked.is_ok();
    match checked {
        Ok(()) => {}
        Err(error @ StoreError::Unusable(_)) => return Err(error).context("store.url"),
        Err(error) => tracing::warn!(
            id = %"store_absent",
            %error,
            "the store is not there yet (store.url); until it is nothing that is limited starts, and /readyz is 503"
        ),
    }
    let mut guard = Guard::new(ledger, settings.on_store_error);
    if answered {
        guard = guard.that_has_answered();
    }
    Ok(Store::shared(Arc::new(guard)).with_beside(beside))
}
