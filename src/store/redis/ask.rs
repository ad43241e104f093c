//! How the server is asked: a script runs on the data that are known here, or on those that are met. And what its
//! errors mean.

use std::sync::atomic::Ordering;

use parking_lot::MutexGuard;
use redis::{Cmd, Value};
use tokio::time::Instant;

use super::link::Failed;
use super::script::{Script, with_text};
use super::{AT_ONCE, RedisStore, wire};
use crate::limit::Timestamp;
use crate::log::cut;
use crate::store::fleet::SETTLING;
use crate::store::{Row, StoreError, record};

impl RedisStore {
    pub(super) fn failed(&self, why: &str) -> StoreError {
        StoreError::Unavailable(format!("{}: {why}", self.link.place()))
    }

    pub(super) fn epoch(&self) -> MutexGuard<'_, Option<String>> {
        self.epoch.lock()
    }

    /// A call on data that are known by this epoch, into which was last written at `wrote`, as far as is known.
    pub(super) fn command(&self, script: &Script, epoch: &str, wrote: u64) -> Cmd {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&script.hash).arg(1).arg(&self.prefix);
        match &self.remote.clock.given {
            Some(given) => command.arg(given.now().0),
            None => command.arg(""),
        };
        command.arg(&*self.owner).arg(epoch).arg(wire::time(wrote));
        command
    }

    /// Runs a script with what `write` adds to its arguments; the answer begins with the server's time.
    pub(super) async fn run(
        &self,
        script: &Script,
        write: impl FnOnce(&mut Cmd),
    ) -> Result<Vec<Value>, StoreError> {
        let known = self.epoch().clone();
        let epoch = match known {
            Some(epoch) => epoch,
            None => self.join(None).await?,
        };
        let wrote = self.wrote.load(Ordering::Acquire);
        let mut command = self.command(script, &epoch, wrote);
        write(&mut command);
        self.send(script, &command).await
    }

    pub(super) async fn send(
        &self,
        script: &Script,
        command: &Cmd,
    ) -> Result<Vec<Value>, StoreError> {
        let mut sent = Instant::now();
        let mut answer = self.link.send(command).await;
        if matches!(&answer, Err(Failed::Said(code, _)) if code == "NOSCRIPT") {
            sent = Instant::now();
            answer = self.link.send(&with_text(command, script)).await;
        }
        match answer {
            Ok(Value::Array(told)) => {
                if let Some(now) = told.first().and_then(wire::int) {
                    self.remote.clock.told(wire::read_time(now), sent);
                }
                Ok(told)
            }
            Ok(other) => Err(self.failed(&format!("it answers {}", cut(&format!("{other:?}"))))),
            Err(failed) => Err(self.refused(failed)),
        }
    }

    pub(super) fn refused(&self, failed: Failed) -> StoreError {
        let (code, whole) = match failed {
            Failed::Store(error) => return error,
            Failed::Said(code, whole) => (code, whole),
        };
        match code.as_str() {
            "WIPED" => StoreError::Wiped,
            "SETTLING" => StoreError::Settling,
            "LATE" => StoreError::Timeout,
            "NOPERM" | "NOAUTH" | "WRONGPASS" => {
                StoreError::Unusable(format!("{whole}; {}", self.link.needs()))
            }
            "FOREIGN" | "WRONGTYPE" => StoreError::Unusable(format!(
                "{whole}: something else is under {}*; another store.namespace helps",
                self.prefix
            )),
            // What a script may not do has no code of its own: Redis 7.0, and what came after it.
            _ if whole.contains("executing the script can't")
                || whole.contains("ACL failure in script") =>
            {
                StoreError::Unusable(format!("{whole}; {}", self.link.needs()))
            }
            _ => StoreError::Unavailable(whole),
        }
    }

    /// Learns the epoch of the store's data, or begins one; `knew` is the one before.
    pub(super) async fn join(&self, knew: Option<String>) -> Result<String, StoreError> {
        let mut command = self.command(&self.scripts.join, "", 0);
        let fresh = format!("{:016x}", rand::random::<u64>());
        command
            .arg(fresh)
            .arg(knew.as_deref().unwrap_or_default())
            .arg(SETTLING);
        let told = self.send(&self.scripts.join, &command).await?;
        let was_known = knew.is_some();
        let epoch = told.get(1).and_then(wire::text);
        let epoch = epoch.ok_or_else(|| self.strange(&told))?.to_owned();
        let is_new = knew.is_none_or(|knew| knew != epoch);
        if is_new && was_known {
            // Until this is done we go by the data that are gone, so that it is begun again if it fails.
            self.begin_anew(&epoch).await?;
        } else if self.remote.edition().is_none() {
            self.reload(&epoch).await?;
        }
        let mut known = self.epoch();
        if is_new {
            // First, so that who reads the epoch after this reads no time of other data.
            self.wrote.store(0, Ordering::Release);
        }
        *known = Some(epoch.clone());
        Ok(epoch)
    }

    /// Puts back what we know beside our rows of data that are gone, and reads what is there now.
    async fn begin_anew(&self, epoch: &str) -> Result<(), StoreError> {
        let now = self.remote.clock.now();
        let known = self.remote.overrides.standing(now);
        let (mut put_back, mut shut) = (0, self.remote.anew.shut_again(now));
        // Asked with none too: whether it is too late concerns the shut keys as well.
        let none = known.is_empty().then_some(&known[..]);
        for some in known.chunks(AT_ONCE).chain(none) {
            let mut command = self.command(&self.scripts.set, epoch, 0);
            self.write_deadline(&mut command);
            wire::write_put_back(&mut command, some);
            let told = self.send(&self.scripts.set, &command).await?;
            let count = told.get(1).and_then(wire::int);
            match u64::try_from(count.ok_or_else(|| self.strange(&told))?) {
                Ok(count) => put_back += count,
                // What has been opened or taken away since is not known here.
                Err(_) => shut.clear(),
            }
        }
        for some in shut.chunks(AT_ONCE) {
            let mut command = self.command(&self.scripts.set, epoch, 0);
            self.write_deadline(&mut command);
            wire::write_changes(&mut command, some, now);
            self.send(&self.scripts.set, &command).await?;
        }
        self.reload(epoch).await?;
        self.remote.anew.tell(
            &known,
            put_back,
            &self.remote.overrides,
            self.remote.clock.now(),
        );
        Ok(())
    }

    /// Reads the overrides.
    pub(super) async fn reload(&self, epoch: &str) -> Result<(), StoreError> {
        let mut command = self.command(&self.scripts.look, epoch, 0);
        command.arg("over");
        let told = self.send(&self.scripts.look, &command).await?;
        let edition = told.get(1).and_then(wire::int);
        let fields = told.get(2).and_then(wire::list).unwrap_or_default();
        let pairs = fields.chunks_exact(2).filter_map(|pair| {
            let [name, text] = pair else { return None };
            record::kept(wire::text(name)?, wire::text(text)?)
        });
        self.remote
            .replace(edition.unwrap_or(0), pairs, self.remote.clock.now());
        Ok(())
    }

    pub(super) fn strange(&self, told: &[Value]) -> StoreError {
        let told = format!("{told:?}");
        self.failed(&format!("its answer is not understood: {}", cut(&told)))
    }

    pub(super) fn rows_in(&self, told: &[Value]) -> Result<Vec<Row>, StoreError> {
        let rows = told.iter().map(|one| wire::row(one, &self.owner));
        rows.collect::<Option<_>>()
            .ok_or_else(|| self.strange(told))
    }

    pub(super) fn done(&self, told: &[Value]) -> Result<bool, StoreError> {
        match told.get(1).and_then(wire::int) {
            Some(done) => Ok(done == 1),
            None => Err(self.strange(told)),
        }
    }

    /// When nobody waits any more for what is asked for now.
    pub(super) fn not_after(&self, now: Timestamp) -> Timestamp {
        now.plus(u64::try_from(self.link.timeout().as_micros()).unwrap_or(u64::MAX))
    }

    /// What `set` begins with: the time from which on it makes and puts back no limits.
    pub(super) fn write_deadline(&self, to: &mut Cmd) {
        to.arg(wire::time(self.not_after(self.remote.clock.now()).0));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::store::Clock;
    use crate::store::redis::{Config, Target};

    fn store() -> RedisStore {
        let config = Config {
            target: Target::parse("redis://nowhere", None).unwrap(),
            namespace: "limits".to_owned(),
            owner: "a".to_owned(),
            timeout: Duration::from_secs(1),
        };
        RedisStore::new(config, Clock::new(0))
    }

    #[test]
    fn what_a_script_may_not_do_is_a_matter_of_rights_whoever_says_it() {
        let store = store();
        let told = |text: &str| store.refused(Failed::Said("ERR".to_owned(), text.to_owned()));
        for text in [
            "ERR The user executing the script can't run this command or subcommand",
            "ERR ACL failure in script: User a has no permissions to run the 'zadd' command",
        ] {
            let StoreError::Unusable(why) = told(text) else {
                panic!("{text}")
            };
            assert!(why.contains("{limits}:*"), "{why}");
        }
        assert!(matches!(told("ERR other"), StoreError::Unavailable(_)));
    }

    #[test]
    fn an_answer_that_is_not_understood_is_told_in_short() {
        let value = Value::BulkString(vec![b'x'; 5_000]);
        let StoreError::Unavailable(why) = store().strange(&[value]) else {
            panic!("another error")
        };
        assert!(why.contains("bytes)") && why.len() < 400, "{why}");
    }
}
