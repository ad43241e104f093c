//! The store that the settings name.

use std::sync::Arc;

use anyhow::Context;

use crate::config::{StoreSettings, StoreUrl};
use crate::store::guard::Guard;
use crate::store::memory::MemoryStore;
use crate::store::redis::{self, RedisStore};
use crate::store::{Clock, Ledger, Store, StoreConfig, StoreError, postgres, sqlite};

/// The name of the sidecar with this seed: the worker id of its claims, and whose rows are its own.
pub(super) fn name(seed: u64) -> String {
    format!("ojs-throttle-{seed:016x}")
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
    let roots = settings.ca_file.as_ref().map(std::fs::read).transpose();
    let roots = roots.context("store.ca_file cannot be read")?;
    let owner = name(seed);
    let (ledger, checked): (Arc<dyn Ledger>, _) = match &settings.url {
        StoreUrl::Memory => return Ok(Store::from(Arc::new(MemoryStore::on(clock)))),
        StoreUrl::Redis(url) => {
            let target = redis::Target::parse(url.expose(), roots).context("store.url")?;
            let store = RedisStore::new(store_config(settings, owner, target), clock);
            let checked = store.check().await;
            (Arc::new(store), checked)
        }
        StoreUrl::Postgres(url) => {
            let target = postgres::Target::parse(url.expose(), roots).context("store.url")?;
            let store = postgres::open(store_config(settings, owner, target), clock);
            let checked = store.check().await;
            (Arc::new(store), checked)
        }
        StoreUrl::Sqlite(path) => {
            let store = sqlite::open(store_config(settings, owner, path.clone()), clock);
            let checked = store.check().await;
            (Arc::new(store), checked)
        }
    };
    let answered = checked.is_ok();
    match checked {
        Ok(()) => {}
        Err(error @ StoreError::Unusable(_)) => return Err(error).context("store.url"),
        Err(error) => tracing::warn!(
            %error,
            "the store is not there yet (store.url); until it is nothing that is limited starts, and /readyz is 503"
        ),
    }
    let mut guard = Guard::new(ledger, settings.on_store_error);
    if answered {
        guard = guard.that_has_answered();
    }
    Ok(Store::shared(Arc::new(guard)))
}

/// What the store at `target` is told.
pub(crate) fn store_config<T>(
    settings: &StoreSettings,
    owner: String,
    target: T,
) -> StoreConfig<T> {
    StoreConfig {
        target,
        namespace: settings.namespace.clone(),
        owner,
        timeout: settings.timeout,
    }
}
