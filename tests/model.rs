//! The limiter and the memory store against the promises, and against a naive model.

mod oracle;
mod promises;
pub mod samples;
mod worst;

use std::time::Duration;

use ojs_throttle::limit::{EARLY, Limited, Space, Timestamp};
use ojs_throttle::store::memory::MemoryStore;
use ojs_throttle::store::{Change, Claimed, Gen, Ledger, LedgerExt, Place, Taken, Usage, Verdict};
use proptest::prelude::*;

use oracle::Oracle;
use samples::{T, config, jobs, key, limited_by};

use crate::stores::rig::claimed;

/// One step of a random history. Numbers that name something are taken modulo what there is.
#[derive(Clone, Debug)]
enum Step {
    Take {
        jobs: Vec<(u8, bool, Vec<Limited>)>,
        want: usize,
    },
    Back(u8),
    End(u8, bool),
    Offer(u8),
    Own(u8, u64),
    Adopt(u8, Vec<Limited>),
    Shut(u8, u64),
    Until(u8, u64),
    Wait(u64),
    /// To the time that the last refusal named, less 5 ms and less this.
    ToNamed(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let ask = (
        0..6_u8,
        prop::bool::weighted(0.3),
        prop::collection::vec(limited_by(3), 0..3),
    );
    prop_oneof![
        6 => (prop::collection::vec(ask, 1..4), 0..4_usize).prop_map(|(jobs, want)| Step::Take { jobs, want }),
        3 => (0..6_u8).prop_map(Step::Back),
        3 => (0..6_u8, any::<bool>()).prop_map(|(job, any)| Step::End(job, any)),
        1 => (0..6_u8).prop_map(Step::Offer),
        1 => (0..6_u8, 0..3_u64).prop_map(|(job, more)| Step::Own(job, more)),
        1 => (0..6_u8, prop::collection::vec(limited_by(3), 0..3)).prop_map(|(job, limited)| Step::Adopt(job, limited)),
        1 => (0..3_u8, 0..300_000_u64).prop_map(|(key, time)| Step::Shut(key, time)),
        1 => (0..6_u8, 0..300_000_u64).prop_map(|(job, time)| Step::Until(job, time)),
        5 => samples::wait().prop_map(Step::Wait),
        3 => (0..2_u64).prop_map(Step::ToNamed),
    ]
}

/// The store and the model, side by side.
struct Both {
    store: MemoryStore,
    model: Oracle,
    /// The newest claim of each job.
    claims: [u64; 6],
    named: Option<Timestamp>,
}

fn each(asks: &[Claimed]) -> Vec<&Claimed> {
    asks.iter().collect()
}

impl Both {
    fn claimed(&self, job: u8, limited: &[Limited]) -> Claimed {
        claimed(
            &format!("job-{job}"),
            self.claims[usize::from(job)],
            limited,
        )
    }

    async fn take(&mut self, asked: &[(u8, bool, Vec<Limited>)], want: usize) {
        let mut asks = Vec::new();
        for (job, fresh, limited) in asked {
            self.claims[usize::from(*job)] += u64::from(*fresh);
            asks.push(self.claimed(*job, limited));
        }
        let now = self.store.now();
        let Taken {
            verdicts, ended, ..
        } = self.store.take(&each(&asks), want).await.unwrap();
        let ended: Vec<_> = ended.iter().map(|row| &*row.claimed.job).collect();
        assert_eq!(ended, self.model.end_older(&asks, now));
        assert_eq!(verdicts, self.model.take(&asks, want, now));
        for verdict in &verdicts {
            if let Verdict::Refused { at: Some(at), .. } = verdict {
                self.named = Some(*at);
            }
        }
    }

    async fn set(&self, change: Change) -> bool {
        self.store.set(change).await.unwrap()
    }

    async fn step(&mut self, step: &Step) {
        let now = self.store.now();
        match step {
            Step::Take { jobs, want } => self.take(jobs, *want).await,
            Step::Back(job) => {
                let generation = Gen(self.claims[usize::from(*job)]);
                let name = format!("job-{job}");
                let back = self.store.back(&name, generation).await.unwrap();
                assert_eq!(back, self.model.back(&name, generation));
            }
            Step::End(job, any) => {
                let generation = (!any).then(|| Gen(self.claims[usize::from(*job)]));
                let name = format!("job-{job}");
                let ended = self.store.end(&name, generation).await.unwrap();
                let expected = self.model.end(&name, generation, now);
                assert_eq!(ended.map(|row| row.place), expected.map(|row| row.place));
                assert!(
                    self.store.end(&name, generation).await.unwrap().is_none(),
                    "ended twice"
                );
            }
            Step::Offer(job) => {
                let claimed = self.claimed(*job, &[]);
                let expected = self.model.offer(&claimed, now);
                assert_eq!(self.set(Change::Offer { claimed }).await, expected);
            }
            Step::Own(job, more) => {
                let name = format!("job-{job}");
                let claim = &mut self.claims[usize::from(*job)];
                let (generation, next) = (Gen(*claim), Gen(*claim + more));
                let until = now.plus(1_000);
                let done = self.model.own(&name, generation, next, until);
                // From then on this is the job's claim.
                *claim += if done { *more } else { 0 };
                let own = Change::Own {
                    job: name.as_str().into(),
                    generation,
                    next,
                    until,
                };
                assert_eq!(self.set(own.clone()).await, done);
                assert_eq!(self.set(own).await, done, "the second time as the first");
            }
            Step::Adopt(job, limited) => {
                let claimed = self.claimed(*job, limited);
                let expected = self.model.adopt(&claimed, now.plus(1_000), now);
                assert_eq!(
                    self.set(Change::Adopt {
                        claimed,
                        until: now.plus(1_000).into()
                    })
                    .await,
                    expected
                );
            }
            Step::Shut(which, time) => {
                let until = now.plus(*time);
                self.set(Change::Shut {
                    key: key(*which),
                    until,
                    at_least: false,
                })
                .await;
                self.model.shut.insert((Space::Job, key(*which)), until);
            }
            Step::Until(job, time) => {
                let name = format!("job-{job}");
                let generation = Gen(self.claims[usize::from(*job)]);
                let (until, visibility) = (now.plus(*time), 77_000);
                let change = Change::Until {
                    job: name.as_str().into(),
                    generation,
                    until: until.into(),
                    visibility,
                };
                let row = self.model.rows.get_mut(&name);
                let row = row.filter(|row| row.generation == generation && row.is_out());
                let expected = row
                    .map(|row| (row.place, row.visibility) = (Place::Out(until.into()), visibility))
                    .is_some();
                assert_eq!(self.set(change).await, expected);
            }
            Step::Wait(micros) => samples::advance(*micros).await,
            Step::ToNamed(less) => {
                let to = self.named.map_or(0, |at| at.0.saturating_sub(EARLY + less));
                samples::advance(to.saturating_sub(now.0)).await;
            }
        }
    }

    /// Everything that can be looked at is the same.
    async fn compare(&self) {
        let now = self.store.now();
        let rows = self.model.rows.values();
        let out = rows.filter(|row| row.is_out()).count();
        assert_eq!(self.store.count_out().await.unwrap(), out);
        let due: Vec<String> = self
            .store
            .due(usize::MAX)
            .await
            .unwrap()
            .iter()
            .map(|row| row.claimed.job.to_string())
            .collect();
        assert_eq!(due, self.model.due(now));
        for limited in samples::probes() {
            let usage = self
                .store
                .usage(limited.space, &limited.key, &limited.limits)
                .await
                .unwrap();
            let rates = &limited.limits.rates;
            // Of what is unused each window is empty.
            let usage = usage.unwrap_or_else(|| Usage {
                windows: vec![(0, None); rates.len()],
                ..Usage::default()
            });
            assert_eq!(usage.active, self.model.active(limited.space, &limited.key));
            assert_eq!(usage.windows.len(), rates.len());
            for ((count, leaves), rate) in usage.windows.iter().zip(rates) {
                let window = self.model.window(limited.space, &limited.key, rate, now);
                assert_eq!(*count as usize, window.len());
                let expected = self.model.leaves(limited.space, &limited.key, rate, now);
                assert_eq!(*leaves, expected);
            }
            let room = self
                .store
                .room(std::slice::from_ref(&limited))
                .await
                .unwrap();
            assert_eq!(
                room.starts == 0,
                !self.model.ask(&limited, now).1.is_empty(),
                "{room:?} {limited:?}"
            );
        }
    }
}

proptest! {
    #![proptest_config(config(400))]

    /// Limits disagree, are lowered and raised, jobs name a key twice, hand-outs are undone out of
    /// order, claims are replaced: the store and the model give the same answers throughout.
    #[test]
    fn the_store_does_what_the_model_does(steps in prop::collection::vec(step(), 1..60)) {
        samples::paused(async {
            let store = MemoryStore::new(T.0);
            let mut both = Both { store, model: Oracle::default(), claims: [1; 6], named: None };
            for step in &steps {
                both.step(step).await;
                both.compare().await;
            }
        });
    }

    /// What happens to other keys, before, between or after, changes nothing for a key.
    #[test]
    fn unrelated_keys_do_not_matter(
        steps in prop::collection::vec((jobs(1), jobs(1), samples::wait(), any::<bool>()), 1..40),
    ) {
        samples::paused(async {
            let (alone, mixed) = (MemoryStore::new(T.0), MemoryStore::new(T.0));
            for (n, (mine, others, wait, first)) in steps.iter().enumerate() {
                let mine: Vec<Claimed> = mine.iter().map(|l| claimed(&format!("mine-{n}"), 1, l)).collect();
                let others: Vec<Claimed> = others.iter().map(|l| {
                    let mut moved = l.clone();
                    moved.iter_mut().for_each(|one| one.key = key(200));
                    claimed(&format!("other-{n}"), 1, &moved)
                }).collect();
                if *first {
                    mixed.take(&each(&others), 9).await.unwrap();
                }
                let expected = alone.take(&each(&mine), 9).await.unwrap().verdicts;
                assert_eq!(mixed.take(&each(&mine), 9).await.unwrap().verdicts, expected);
                if !*first {
                    mixed.take(&each(&others), 9).await.unwrap();
                    mixed.back(&format!("other-{n}"), Gen(1)).await.unwrap();
                }
                if n % 3 == 0 {
                    alone.end(&format!("mine-{n}"), None).await.unwrap();
                    mixed.end(&format!("mine-{n}"), None).await.unwrap();
                }
                samples::advance(*wait).await;
            }
        });
    }

    /// `room` is what `take` then starts, and it grows when it says so and not before. (Where jobs
    /// disagree on spacing, `take` may start more.)
    #[test]
    fn room_is_what_may_start(
        warm in prop::collection::vec((jobs(2), samples::wait()), 0..15), asked in limited_by(2), agree in any::<bool>(),
    ) {
        samples::paused(async {
            let store = MemoryStore::new(T.0);
            for (n, (jobs, wait)) in warm.iter().enumerate() {
                let mut jobs = jobs.clone();
                if agree {
                    jobs.iter_mut().flatten().for_each(|one| one.limits.throttle = asked.limits.throttle);
                }
                let asks: Vec<Claimed> = jobs.iter().map(|l| claimed(&format!("warm-{n}"), 1, l)).collect();
                store.take(&each(&asks), 9).await.unwrap();
                samples::advance(*wait).await;
            }
            let asked = [asked];
            let room = store.room(&asked).await.unwrap();
            if let Some(more) = room.at.filter(|_| !room.slot) {
                let wait = more.0 - EARLY - store.now().0;
                samples::advance(wait - 1).await;
                assert_eq!(store.room(&asked).await.unwrap().starts, room.starts, "grew too soon");
                samples::advance(1).await;
                assert!(store.room(&asked).await.unwrap().starts > room.starts, "did not grow");
            }
            let room = store.room(&asked).await.unwrap();
            prop_assume!(room.starts < 200);
            let asks: Vec<Claimed> = (0..=room.starts).map(|n| claimed(&format!("ask-{n}"), 1, &asked)).collect();
            let verdicts = store.take(&each(&asks), usize::MAX).await.unwrap().verdicts;
            let started = verdicts.iter().filter(|v| matches!(v, Verdict::Started { .. })).count();
            assert!(started >= room.starts as usize);
            assert!(!agree || started == room.starts as usize);
            Ok(())
        })?;
    }

    /// Taken and put back is as if never taken, when nothing came between.
    #[test]
    fn back_leaves_no_trace(warm in prop::collection::vec((jobs(2), samples::wait()), 0..10), asked in jobs(2)) {
        samples::paused(async {
            let (once, twice) = (MemoryStore::new(T.0), MemoryStore::new(T.0));
            for (n, (jobs, wait)) in warm.iter().enumerate() {
                let asks: Vec<Claimed> = jobs.iter().map(|l| claimed(&format!("warm-{n}"), 1, l)).collect();
                assert_eq!(once.take(&each(&asks), 9).await.unwrap().verdicts, twice.take(&each(&asks), 9).await.unwrap().verdicts);
                samples::advance(*wait).await;
            }
            let asks: Vec<Claimed> = asked.iter().map(|l| claimed("asked", 1, l)).collect();
            let first = twice.take(&each(&asks), 9).await.unwrap().verdicts;
            let out = first.iter().any(|verdict| matches!(verdict, Verdict::Started { .. }));
            assert_eq!(twice.back("asked", Gen(1)).await.unwrap(), out);
            assert!(!twice.back("asked", Gen(1)).await.unwrap(), "back twice");
            for probe in samples::probes() {
                let probe = std::slice::from_ref(&probe);
                assert_eq!(once.room(probe).await.unwrap(), twice.room(probe).await.unwrap());
            }
            assert_eq!(twice.take(&each(&asks), 9).await.unwrap().verdicts, first);
        });
    }
}

/// A key that is used no more is forgotten, and so are a million of them, a few at a time.
#[tokio::test(start_paused = true)]
async fn idle_keys_are_forgotten_and_busy_ones_are_not() {
    let store = MemoryStore::new(T.0);
    let limits = samples::limits(Some(5), &[(5, 1_000_000)], Some((1, 1_000_000, 1)));
    let one = |n: u32| [samples::limited(&format!("key-{n}"), limits.clone())];
    for n in 0..2_000 {
        store
            .take(&[&claimed(&format!("job-{n}"), 1, &one(n))], 1)
            .await
            .unwrap();
        if n >= 10 {
            store.end(&format!("job-{n}"), None).await.unwrap();
        }
    }
    assert_eq!(store.keys(), 2_000, "their windows still count");
    tokio::time::advance(Duration::from_secs(2)).await;
    let usage = |n: u32| {
        let key = one(n)[0].key.clone();
        let limits = limits.clone();
        let store = &store;
        async move { store.usage(Space::Job, &key, &limits).await.unwrap() }
    };
    assert_eq!(usage(500).await, None, "expired without a call");
    assert_eq!(usage(3).await.map(|usage| usage.active), Some(1));
    // The last spaced start is remembered for an hour.
    tokio::time::advance(Duration::from_secs(3_600)).await;
    for n in 0..2_000 {
        store
            .take(&[&claimed("asker", n + 2, &one(0))], 0)
            .await
            .unwrap();
    }
    assert_eq!(store.keys(), 10, "those with a job out stay");
}
