//! What can be said of the server without changing data there.

use std::pin::Pin;

use redis::{Cmd, Value, cmd};

use super::info::{OLDEST, eviction, oldest};
use super::{RedisStore, wire};
use crate::clock::compare;
use crate::remote::Data;
use crate::{Inspection, StoreError};

impl RedisStore {
    /// Looks at the server with this many calls. At most, one script is loaded. Where data of ours are, one key is
    /// written that is gone after a second.
    ///
    /// # Errors
    /// It is not reachable, lacks rights, or has something else under our keys.
    pub fn inspect(
        &self,
        calls: usize,
    ) -> Pin<Box<dyn Future<Output = Result<Inspection, StoreError>> + '_>> {
        Box::pin(self.look_at_server(calls))
    }

    async fn look_at_server(&self, calls: usize) -> Result<Inspection, StoreError> {
        self.link.ready().await?;
        // First, as it says what is wrong with a server that answers.
        let own = &self.remote.clock.own;
        let (trips, ahead) = compare(own, calls.max(1), async || {
            let told = self.ask(&cmd("TIME")).await?;
            time(&told).ok_or_else(|| self.failed("it does not know the time"))
        })
        .await?;
        let live = self.live(ahead).await?;
        // Runs a script that reads one row that is not there.
        let mut look = self.command(&self.scripts.look, &Data::named("".into()));
        look.arg("row").arg("-");
        self.send(&self.scripts.look, &look).await?;
        let mut write = cmd("SET");
        write.arg(format!("{}doctor", self.prefix));
        write.arg(1).arg("PX").arg(1_000);
        let unwritable = match live {
            Some(_) => self.ask(&write).await.err(),
            None => None,
        };
        // Who may not ask for these may be right all the same.
        let server = self.info("server").await;
        let server = server.as_ref().and_then(oldest);
        let memory = self.info("memory").await;
        Ok(Inspection {
            server: server.map(|(name, (major, minor))| format!("{name} {major}.{minor}")),
            is_too_old: server.is_some_and(|(_, version)| version < OLDEST),
            eviction: memory.as_ref().and_then(eviction),
            live,
            unwritable,
            ahead,
            trips,
        })
    }

    async fn ask(&self, command: &Cmd) -> Result<Value, StoreError> {
        let told = self.link.send(command).await;
        told.map_err(|failed| self.refused(failed))
    }

    pub(super) async fn info(&self, section: &str) -> Option<Value> {
        self.link.send(cmd("INFO").arg(section)).await.ok()
    }

    /// How many sidecars live there; `None`: none was there in the last week.
    async fn live(&self, ahead: i64) -> Result<Option<usize>, StoreError> {
        let meta = format!("{}meta", self.prefix);
        let mut fields = cmd("HMGET");
        fields.arg(&meta).arg("format").arg("epoch").arg("ahead");
        let told = self.ask(&fields).await?;
        let fields = wire::list(&told).unwrap_or_default();
        let field = |nth: usize| fields.get(nth).and_then(wire::text);
        let foreign = |what: &str| {
            let namespace = "another store.namespace helps";
            StoreError::Unusable(format!("{}: {meta} {what}; {namespace}", self.link.place()))
        };
        match (field(0), field(1)) {
            (Some("1"), Some(_)) => {}
            (Some("1") | None, None) => {
                let there = self.ask(cmd("EXISTS").arg(&meta)).await?;
                return match wire::int(&there) {
                    Some(0) => Ok(None),
                    _ => Err(foreign("is not ours")),
                };
            }
            (Some(format), _) => return Err(foreign(&format!("is of format {format}"))),
            (None, Some(_)) => return Err(foreign("has no format")),
        }
        let since = self.remote.clock.own.now().0.saturating_add_signed(ahead);
        // Where that clock was set back, ours is ahead of it.
        let set_back = field(2).and_then(|ahead| ahead.parse::<u64>().ok());
        let since = since
            .saturating_add(set_back.unwrap_or(0))
            .saturating_sub(5_000_000);
        let key = format!("{}live", self.prefix);
        let live = self
            .ask(cmd("ZCOUNT").arg(key).arg(since).arg("+inf"))
            .await?;
        let live = wire::int(&live).and_then(|live| usize::try_from(live).ok());
        Ok(Some(live.unwrap_or(0)))
    }
}

/// The answer to TIME, in microseconds.
fn time(told: &Value) -> Option<i64> {
    let mut parts = wire::list(told)?.iter();
    let mut next = || wire::text(parts.next()?)?.parse::<i64>().ok();
    Some(next()? * 1_000_000 + next()?)
}
