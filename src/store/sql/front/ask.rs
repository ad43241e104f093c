//! How whoever has the database is asked: on the data that are known here, or on those that are met, and for how
//! long.

use std::sync::Arc;

use parking_lot::MutexGuard;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::super::{Job, Op, Reply, Told};
use super::{AT_ONCE, SqlStore};
use crate::store::StoreError;

impl SqlStore {
    pub(super) fn epoch(&self) -> MutexGuard<'_, Option<Arc<str>>> {
        self.epoch.lock()
    }

    /// An operation and its answer. The first one joins.
    pub(super) async fn ask(&self, op: Op) -> Result<Told, StoreError> {
        let known = self.epoch().clone();
        let epoch = match known {
            Some(epoch) => epoch,
            None => self.join(None).await?,
        };
        self.send(op, Some(epoch)).await
    }

    async fn send(&self, op: Op, epoch: Option<Arc<str>>) -> Result<Told, StoreError> {
        let (answer, answered) = oneshot::channel();
        let sent = Instant::now();
        self.post.send(Job { op, epoch, answer })?;
        let told = match tokio::time::timeout(self.timeout, answered).await {
            Ok(Ok(told)) => told?,
            Ok(Err(_)) => return Err(StoreError::Unavailable("it was closed".to_owned())),
            Err(_) => return Err(StoreError::Timeout),
        };
        self.remote.clock.told(told.now, sent);
        Ok(told)
    }

    /// Learns the epoch of the store's data, or begins one; `knew` is the one before.
    pub(super) async fn join(&self, knew: Option<Arc<str>>) -> Result<Arc<str>, StoreError> {
        let _one_at_a_time = self.joining.lock().await;
        let join = Op::Join { knew: knew.clone() };
        let Reply::Joined(epoch) = self.send(join, None).await?.reply else {
            return Err(strange());
        };
        if knew.is_some_and(|knew| knew != epoch) {
            // Until this is done we go by the data that are gone, so that it is begun again if it fails.
            self.begin_anew(&epoch).await?;
        } else if self.remote.edition().is_none() {
            self.reload(epoch.clone()).await?;
        }
        *self.epoch() = Some(epoch.clone());
        Ok(epoch)
    }

    /// Puts back what we know beside our rows of data that are gone, and reads what is there now.
    async fn begin_anew(&self, epoch: &Arc<str>) -> Result<(), StoreError> {
        let now = self.remote.clock.now();
        let known = self.remote.overrides.standing(now);
        let (mut put_back, mut shut) = (0, self.remote.anew.shut_again(now));
        // Asked with none too: whether it is too late concerns the shut keys as well.
        let none = known.is_empty().then_some(&known[..]);
        for some in known.chunks(AT_ONCE).chain(none) {
            let op = Op::PutBack(some.to_vec());
            match self.send(op, Some(epoch.clone())).await?.reply {
                Reply::PutBack(Some(count)) => put_back += count,
                // What has been opened or taken away since is not known here.
                Reply::PutBack(None) => shut.clear(),
                _ => return Err(strange()),
            }
        }
        for some in shut.chunks(AT_ONCE) {
            self.send(Op::SetAll(some.to_vec()), Some(epoch.clone()))
                .await?;
        }
        self.reload(epoch.clone()).await?;
        self.remote.anew.tell(
            &known,
            put_back,
            &self.remote.overrides,
            self.remote.clock.now(),
        );
        Ok(())
    }

    /// Reads the overrides.
    pub(super) async fn reload(&self, epoch: Arc<str>) -> Result<(), StoreError> {
        match self.send(Op::Overrides, Some(epoch)).await?.reply {
            Reply::Overrides(edition, all) => {
                self.remote
                    .replace(edition, all.into_iter(), self.remote.clock.now());
                Ok(())
            }
            _ => Err(strange()),
        }
    }
}

/// No answer but its own belongs to an operation.
pub(super) fn strange() -> StoreError {
    StoreError::Unavailable("it answers something else".to_owned())
}
