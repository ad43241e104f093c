//! How the server is asked: a script runs on the data that are known here, or on those that are met. And what its
//! errors mean.

use redis::{Cmd, Value};
use tokio::time::Instant;

use super::link::CallFailed;
use super::script::{Script, with_text};
use super::{RedisStore, wire};
use crate::remote::{self, Data};
use crate::{Row, StoreError};
use ojs_limit::Timestamp;
use ojs_log::cut;

impl RedisStore {
    pub(super) fn failed(&self, why: &str) -> StoreError {
        StoreError::Unavailable(format!("{}: {why}", self.link.place()))
    }

    /// A call on these data.
    pub(super) fn command(&self, script: &Script, data: &Data) -> Cmd {
        let mut command = redis::cmd("EVALSHA");
        // No key has the first name alone. With two keys, one of which is nowhere, a cluster refuses a script for as
        // long as the slot moves: it would find a part of the data on either node.
        let keys = (&self.prefix, &self.meta);
        command.arg(&script.hash).arg(2).arg(keys.0).arg(keys.1);
        match &self.remote.clock.given {
            Some(given) => command.arg(given.now().0),
            None => command.arg(""),
        };
        let wrote = wire::time(data.wrote);
        command.arg(&*self.owner).arg(&*data.epoch).arg(wrote);
        command
    }

    /// Runs a script with what `write` adds to its arguments; the answer begins with the server's time.
    pub(super) async fn run(
        &self,
        script: &Script,
        write: impl FnOnce(&mut Cmd),
    ) -> Result<Vec<Value>, StoreError> {
        let data = remote::data(self).await?;
        let mut command = self.command(script, &data);
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
        if matches!(&answer, Err(CallFailed::Said(code, _)) if code == "NOSCRIPT") {
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

    pub(super) fn refused(&self, failed: CallFailed) -> StoreError {
        let (code, whole) = match failed {
            CallFailed::Store(error) => return error,
            CallFailed::Said(code, whole) => (code, whole),
        };
        // What a script may not do has no code of its own: Redis 7.0, and what came after it.
        let lacks_rights = ["NOPERM", "NOAUTH", "WRONGPASS"].contains(&code.as_str())
            || whole.contains("executing the script can't")
            || whole.contains("ACL failure in script");
        match code.as_str() {
            "WIPED" => StoreError::Wiped,
            "SETTLING" => StoreError::Settling,
            "LATE" => StoreError::Timeout,
            "FOREIGN" | "WRONGTYPE" => StoreError::Unusable(format!(
                "{whole}: something else is under {}*; another store.namespace helps",
                self.prefix
            )),
            _ if lacks_rights => StoreError::Unusable(format!("{whole}; {}", self.link.needs())),
            _ => StoreError::Unavailable(whole),
        }
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

    /// When nobody waits any more for what is asked for now.
    pub(super) fn not_after(&self, now: Timestamp) -> Timestamp {
        now.plus(u64::try_from(self.link.timeout().as_micros()).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Clock;
    use crate::redis::{RedisConfig, RedisTarget};

    fn store() -> RedisStore {
        let config = RedisConfig {
            target: RedisTarget::parse("redis://nowhere").unwrap(),
            namespace: "limits".to_owned(),
            owner: "a".to_owned(),
            timeout: Duration::from_secs(1),
        };
        RedisStore::new(config, Clock::new(0))
    }

    #[test]
    fn what_a_script_may_not_do_is_a_matter_of_rights_whoever_says_it() {
        let store = store();
        let told = |text: &str| store.refused(CallFailed::Said("ERR".to_owned(), text.to_owned()));
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
