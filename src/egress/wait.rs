//! How a call waits for its start: in the line of its key, until its deadline.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::header::{HeaderName, HeaderValue};
use tokio::time::Instant;

use super::ask::CallAsk;
use super::service::{SHOULD_RETRY, WayOut};
use super::start::{CallStart, PricedCall};
use crate::answers::respond::Fault;
use crate::config::EgressSettings;
use crate::desk::calling::Calling;
use crate::desk::outlive::to_the_end;
use crate::desk::{Sidecar, micros, named, tell};
use crate::inquiry::in_force;
use crate::inquiry::shape::rfc3339;
use crate::limit::{
    EARLY, Key, LINE, Limited, Limits, OnLimit, Refusal, Space, Strategy, Timestamp,
};
use crate::lines::{AskedBy, BEHIND, CallPlace, CallStep, Comer, turn_key};
use crate::policy::Sample;
use crate::policy::price::one_price;
use crate::store::{Claim, Claimed, LedgerExt as _, Verdict};
use crate::told::metrics::StartKind;
use crate::wire::boxed::boxed;
use crate::wire::ojs::shell_word;

/// As `X-Should-Retry`, for the SDKs of Stripe.
const STRIPE_SHOULD_RETRY: HeaderName = HeaderName::from_static("stripe-should-retry");
/// Of a refusal of ours: the key that is limited.
const LIMITED: HeaderName = HeaderName::from_static("ojs-throttle-limited");
/// What to do about a call that has no start in time, and about one for which there is no place.
const LATE: &str = "come back after Retry-After, or raise egress.max_wait";
const FULL: &str = "too many calls wait: come back after Retry-After, or raise egress.max_waiting";
const PAUSED: &str = "come back after Retry-After, or end the pause";
/// When the store is asked again that had no word.
const NO_WORD: Duration = Duration::from_millis(250);
/// Whose next start is further away has used up its budget: nobody waits for that within a job.
const WORTH_WAITING: Duration = Duration::from_secs(3_600);
/// SDKs of vendors that are told to wait for longer come back at once.
const SDKS_WAIT: Duration = Duration::from_secs(60);
/// How often a call asks that counts for more than one: for [`LINE`] after that the store keeps room for the first.
const KEEPS_ROOM: Duration = Duration::from_micros(LINE / 2);
/// When a call that waits for a slot asks although nobody has told of one.
const UNHEARD: Duration = Duration::from_secs(1);

impl WayOut {
    /// Waits for a start until `deadline`.
    pub(super) async fn start(
        &self,
        entry: &EgressSettings,
        of: &CallAsk,
        deadline: Instant,
    ) -> Result<CallStart, Fault> {
        let Calling { lines, closed, .. } = &self.sidecar.calling;
        if closed.is_cancelled() {
            return Err(Fault::draining());
        }
        let mut claimed = self.claim(entry, deadline);
        claimed.limited = self.limits_now(of, &claimed.job)?;
        let turn = turn_key(&claimed.limited).unwrap_or(&of.key).clone();
        let priced = PricedCall::of(&self.sidecar, &claimed);
        let mut answer = CallVerdict::Refused(None, None);
        let stands_behind = !entry.max_wait.is_zero() && lines.has(&turn);
        let place = stands_behind.then(|| self.join(entry, of, &claimed, &answer));
        let mut place = place.transpose()?;
        let mut since = place.is_some().then(Instant::now);
        loop {
            let wakes = lines.wakes();
            match place.as_ref().map_or(CallStep::ALONE, CallPlace::step) {
                CallStep::Asks { begins, followed } => {
                    (claimed.since, claimed.followed) = (begins, followed);
                    if lines.call_is_behind(&turn) {
                        tokio::time::sleep(BEHIND).await;
                    }
                    claimed.limited = self.limits_now(of, &claimed.job)?;
                    answer = self.ask(&claimed, of, priced.clone()).await;
                    let again = self.asks_again(&answer);
                    let by = match answer {
                        CallVerdict::Started(mut start) => {
                            lines.started(AskedBy::Call, &claimed.limited);
                            start.waited = since.map(|since| since.elapsed());
                            return Ok(start);
                        }
                        CallVerdict::Refused(_, Some(_)) if again > deadline => {
                            return Err(self.limited(of, &claimed, &answer, LATE));
                        }
                        CallVerdict::Refused(ref by, _) => by.as_ref().map(|(by, _)| by),
                        CallVerdict::NoWord => None,
                    };
                    since = since.or_else(|| Some(Instant::now()));
                    let comes = place.is_none();
                    let stands = match place {
                        Some(stands) => stands,
                        None => self.join(entry, of, &claimed, &answer)?,
                    };
                    // What woke the line before it stood there woke it in vain.
                    if !comes || lines.wakes() == wakes {
                        stands.refused(by.map(|by| &by.key), while_room_is_kept(&claimed, again));
                    }
                    place = Some(stands);
                }
                CallStep::Waits(until) => {
                    let until = until.map_or(deadline, |until| until.min(deadline));
                    self.waits(place.as_ref(), until).await?;
                }
            }
            if Instant::now() >= deadline {
                return Err(self.limited(of, &claimed, &answer, LATE));
            }
        }
    }

    /// Waits until it is woken, or until then.
    async fn waits(&self, place: Option<&CallPlace>, until: Instant) -> Result<(), Fault> {
        let woken = async {
            match place {
                Some(place) => place.woken().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = woken => Ok(()),
            () = tokio::time::sleep_until(until) => Ok(()),
            () = self.sidecar.calling.closed.cancelled() => Err(Fault::draining()),
        }
    }

    /// The call stands in its line.
    fn join(
        &self,
        entry: &EgressSettings,
        of: &CallAsk,
        claimed: &Claimed,
        answer: &CallVerdict,
    ) -> Result<CallPlace, Fault> {
        let comer = Comer {
            entry,
            limited: &claimed.limited,
            stays: claimed.stays,
            now: self.sidecar.store.now(),
        };
        let place = self.sidecar.calling.lines.join(&comer);
        place.ok_or_else(|| self.limited(of, claimed, answer, FULL))
    }

    /// When the first of a line asks again by itself.
    fn asks_again(&self, answer: &CallVerdict) -> Instant {
        match answer {
            CallVerdict::Refused(_, Some(at)) => self.sidecar.asked_from(*at),
            CallVerdict::Refused(_, None) => Instant::now() + UNHEARD,
            _ => Instant::now() + NO_WORD,
        }
    }

    /// A call before its start, which waits for that until `deadline`.
    fn claim(&self, entry: &EgressSettings, deadline: Instant) -> Claimed {
        let now = self.sidecar.store.now();
        let generation = self.sidecar.fetching.next_claim(now);
        let id = [&*self.ids, &generation.0.to_string()].concat().into();
        let queue = Arc::clone(&self.queue);
        let stays = self.sidecar.store.at(deadline).plus(EARLY);
        let claim = Claim {
            claimed_at: now,
            visibility: micros(entry.lease),
            stays,
            ..Claim::new(id, generation, queue)
        };
        claim.into()
    }

    /// The limits of now for the call of this id, with what was set over HTTP laid over them.
    ///
    /// # Errors
    /// The call costs more than all of a budget, as somebody has set it.
    fn limits_now(&self, of: &CallAsk, id: &str) -> Result<Arc<[Limited]>, Fault> {
        let written = self.limits_of(of, id);
        named::renamed(&self.sidecar, &written);
        let limited = in_force::asked(&self.sidecar, "", &written).into_owned();
        let dear = limited.iter().find_map(|one| {
            let mut rates = one.limits.rates.iter();
            let rate = rates.find(|rate| rate.limit < one.cost.pays)?;
            one.cost.rule.is_some().then_some((one, rate.limit.get()))
        });
        match dear {
            Some((one, limit)) => Err(self.too_dear(of, one, limit)),
            None => Ok(limited),
        }
    }

    /// What the file says of a key and this call: a policy in shadow may be for some of them.
    fn limits_of(&self, of: &CallAsk, id: &str) -> Arc<[Limited]> {
        let live = self.sidecar.live();
        let entry = live.settings.way(&self.name);
        let one = |policy: &Arc<str>, limits: Limits| {
            Limited::new(Space::Job, of.key.clone(), limits, Arc::clone(policy))
        };
        let all = entry.into_iter().flat_map(|entry| {
            let of_call = |(_, _, sample): &&(_, _, Sample)| sample.has(Some(id));
            let limits = entry.limits.iter().filter(of_call);
            limits.map(|(policy, limits, _)| Limited {
                cost: entry.cost.clone(),
                share: of.share.clone(),
                ..one(policy, limits.clone())
            })
        });
        let mut all: Vec<Limited> = all.collect();
        // What nothing limits only asks whether the key is shut, or somebody has set limits for it.
        if all.is_empty() {
            all.push(one(&self.name, Limits::default()));
        }
        let (own, budgets) = (all.len(), entry.map_or(&[][..], |entry| &entry.budgets));
        all.extend(of.budgets(budgets));
        // A caller may have made the key of a budget.
        if all.len() > own {
            one_price(&mut all);
        }
        all.into()
    }

    /// Asks the store. The answer is heard also if the caller hangs up meanwhile, and then a start is undone.
    async fn ask(
        &self,
        claimed: &Claimed,
        of: &CallAsk,
        priced: Option<Arc<PricedCall>>,
    ) -> CallVerdict {
        let (sidecar, claimed) = (Arc::clone(&self.sidecar), claimed.clone());
        let (meter, may_give_back) = (of.meter(), of.settles());
        let asking = boxed(|| async move {
            let asked = Instant::now();
            let taken = sidecar.store.take(&[&claimed], 1).await;
            sidecar.fetching.way.took(asked.elapsed());
            let verdict = taken.ok().and_then(|taken| {
                let lines = &sidecar.calling.lines;
                lines.served(&taken.served, sidecar.store.now());
                taken.verdicts.into_iter().next()
            });
            if let Some(priced) = &priced {
                let has_started = verdict.as_ref().is_some_and(Verdict::is_started);
                priced.may_stand.store(!has_started, Ordering::Relaxed);
            }
            match verdict {
                Some(Verdict::Started { at }) => {
                    CallVerdict::Started(CallStart::of(&sidecar, &claimed, at, meter))
                }
                Some(Verdict::Refused { which, why, at, .. }) => {
                    let by = claimed.limited.get(which).cloned();
                    if let Some(by) = &by {
                        let metrics = &sidecar.metrics;
                        metrics.refused(StartKind::Call, by, &why, &by.policy, OnLimit::Wait);
                    }
                    // Whoever has paused the key may end that sooner, so only a pause beyond the deadline refuses at once.
                    let ends_late = |by| {
                        let (_, until) = in_force::pause_of(&sidecar, by)?;
                        until.filter(|until| *until > claimed.stays)
                    };
                    let at = match why.is_pause() {
                        true => by.as_ref().and_then(ends_late),
                        false => at.filter(|_| !why.slot),
                    };
                    let by = by.map(|by| (by, why));
                    // Before it starts, other calls may give back what they do not use.
                    let gives_back = match &by {
                        Some((by, why)) if may_give_back && at > Some(claimed.stays) => {
                            gives_back(&sidecar, by, why).await
                        }
                        _ => false,
                    };
                    CallVerdict::Refused(by, at.filter(|_| !gives_back))
                }
                Some(Verdict::HasRow) => {
                    // A client of the store sent the question twice, over a connection that broke: the first one started
                    // the call, and nobody knows when. It asks anew.
                    let _undone = sidecar.store.back(&claimed.job, claimed.generation).await;
                    CallVerdict::NoWord
                }
                _ => CallVerdict::NoWord,
            }
        });
        to_the_end(&self.sidecar.tasks.own, asking).await
    }

    /// The call costs more than all of this budget.
    fn too_dear(&self, of: &CallAsk, one: &Limited, limit: u32) -> Fault {
        let why = Refusal {
            strategy: Strategy::Rate,
            limit,
            current: 0,
            at: None,
            slot: false,
        };
        let metrics = &self.sidecar.metrics;
        metrics.refused(StartKind::Call, one, &why, &one.policy, OnLimit::Wait);
        tell::call_refused(&self.sidecar, &self.name, &of.key);
        let message = format!(
            "this call costs more than the whole limit of key {}",
            one.key
        );
        let fault = Fault::new("budget_spent", message)
            .hinting("ask for less, or have the limit of the key raised")
            .with_header(SHOULD_RETRY, "false")
            .with_header(STRIPE_SHOULD_RETRY, "false");
        let fault = fault.with("policy", &*one.policy);
        self.naming(
            self.with_units(fault, one, ("asks", one.cost.pays.get())),
            &one.key,
        )
    }

    /// A fault that names the key by which it is.
    fn naming(&self, fault: Fault, key: &Key) -> Fault {
        let mut named = fault.with("key", key.as_str()).with("egress", &*self.name);
        if let Ok(value) = HeaderValue::from_str(key.as_str()) {
            let more = named.more.get_or_insert_default();
            more.headers.push((LIMITED, value));
        }
        named
    }

    /// A fault with a number of what is limited, which is an amount where that is money.
    fn with_units(&self, fault: Fault, by: &Limited, (name, units): (&str, u32)) -> Fault {
        match self.amount(by, units) {
            Some(amount) => fault.with(name, amount),
            None => fault.with(name, units),
        }
    }

    /// A number of what is limited as an amount, where that is money.
    fn amount(&self, by: &Limited, units: u32) -> Option<String> {
        let live = self.sidecar.live();
        let budget = live.settings.budget_of(&by.key)?;
        let currency = budget.currency.as_ref()?;
        Some(currency.show(units.into()).to_string())
    }

    /// That somebody has paused the key by which a call is refused, and what ends that.
    fn resume(&self, by: &Limited, why: &Refusal) -> Option<String> {
        let (space, _) = in_force::pause_of(&self.sidecar, by).filter(|_| why.is_pause())?;
        let name = match space {
            Space::Policy => format!("--policy {}", shell_word(&by.policy)),
            _ => shell_word(by.key.as_str()),
        };
        let key = &by.key;
        Some(format!(
            "the calls of key {key} are paused by hand: `ojs-throttle resume {name}` ends that"
        ))
    }

    /// The call may not start in time.
    fn limited(
        &self,
        of: &CallAsk,
        claimed: &Claimed,
        answer: &CallVerdict,
        hint: &'static str,
    ) -> Fault {
        let key = &of.key;
        let CallVerdict::Refused(by, at) = answer else {
            let message = format!("the store does not say whether a call of key {key} may start");
            return Fault::new("store_unavailable", message).later(NO_WORD);
        };
        tell::call_refused(&self.sidecar, &self.name, key);
        // A call that has not asked by itself is told when the first of its line may start.
        let first = || self.sidecar.calling.lines.asks_at(&claimed.limited);
        let at = at.or_else(|| Some(self.sidecar.store.at(first()?)));
        let wait = at.map(|at| self.sidecar.instant_of(at) - Instant::now());
        let wait = wait.unwrap_or_default();
        // Others may have used up a budget that several keys have.
        let key = by.as_ref().map_or(key, |(by, _)| &by.key);
        let paused = by.as_ref().and_then(|(by, why)| self.resume(by, why));
        let hint = if paused.is_some() { PAUSED } else { hint };
        let mut fault = match at.filter(|_| wait > WORTH_WAITING) {
            Some(at) => {
                let at = rfc3339(at);
                let shown = |by: &Limited, units: u32| {
                    (self.amount(by, units)).unwrap_or_else(|| units.to_string())
                };
                let some_left = by.as_ref().filter(|(by, why)| {
                    by.cost.pays.get() > 1
                        && why.strategy == Strategy::Rate
                        && why.current < why.limit
                });
                let message = paused.unwrap_or_else(|| match some_left {
                    Some((by, why)) => format!(
                        "this call may use {} of key {key}, and {} are left until {at}",
                        shown(by, by.cost.pays.get()),
                        shown(by, why.limit - why.current)
                    ),
                    None => format!("what the calls of key {key} may use is gone until {at}"),
                });
                Fault::new("budget_spent", message)
                    .with("next_start", at)
                    .with_header(STRIPE_SHOULD_RETRY, "false")
            }
            None => {
                let message = paused.unwrap_or_else(|| {
                    format!("the calls of key {key} are limited, and this one has no start in time")
                });
                Fault::new("rate_limited", message)
                    .hinting(hint)
                    .later_exactly(wait)
            }
        };
        if wait > SDKS_WAIT {
            fault = fault.with_header(SHOULD_RETRY, "false");
        }
        if let Some((by, why)) = by {
            fault = fault.with("policy", &*by.policy);
            if by.cost.pays.get() > 1 && why.strategy == Strategy::Rate {
                let left = why.limit.saturating_sub(why.current);
                fault = self.with_units(fault, by, ("left", left));
                fault = self.with_units(fault, by, ("asks", by.cost.pays.get()));
            }
        }
        self.naming(fault, key)
    }
}

/// When a call asks again that may start then: before, where room for it would be kept no longer.
fn while_room_is_kept(claimed: &Claimed, again: Instant) -> Instant {
    let mut pays = claimed.limited.iter().map(|one| one.cost.pays.get());
    match pays.any(|units| units > 1) {
        true => again.min(Instant::now() + KEEPS_ROOM),
        false => again,
    }
}

/// What the store said.
enum CallVerdict {
    Started(CallStart),
    /// By this limit, and when the call may start; `None`: when a slot is free, or others before it have started.
    Refused(Option<(Limited, Refusal)>, Option<Timestamp>),
    /// It had no word.
    NoWord,
}

/// Whether the calls that are out under a key would leave enough room if they used nothing of what they have paid.
async fn gives_back(sidecar: &Sidecar, by: &Limited, why: &Refusal) -> bool {
    let usage = sidecar.store.usage(by.space, &by.key, &by.limits).await;
    let out = usage.ok().flatten().map_or(0, |usage| usage.active);
    let stays = why.current.saturating_sub(out);
    why.strategy == Strategy::Rate && stays.saturating_add(by.cost.pays.get()) <= why.limit
}
