//! Random sequences, through a store and through the core side by side: every answer is compared.

use std::num::NonZeroU64;

use ojs_throttle::limit::{Cost, CostRule, Measure, Share, Unit, WindowKind, Zone};
use ojs_throttle::store::{End, Taken, Used, Wish};
use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng};

use super::prelude::*;
use super::rig::number;

const SEQUENCES: u64 = 12;
const STEPS: usize = 600;
const JOBS: u64 = 40;
const KEYS: u64 = 4;

struct Dice(SmallRng);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0.random_range(0..n)
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }

    fn limited(&mut self) -> Limited {
        let key = format!("k{}", self.below(KEYS));
        let slots = self.one_in(3).then(|| self.of(&[0, 1, 3, 20]));
        let rate = self.one_in(2).then(|| {
            let limit = self.of(&[1, 2, 5, 140, 200]);
            (
                limit,
                self.of(&[50_000, 1_000_000, 60_000_000, 3_600_000_000]),
            )
        });
        let spaced = self.one_in(3).then(|| self.of(&[1, 3, 7, 1_000, 30_000]));
        let mut one = limited(&key, slots, rate, spaced);
        if let Some(throttle) = &mut one.limits.throttle {
            throttle.burst = number(self.of(&[1, 1, 2, 10]));
        }
        if let Some(throttle) = &mut one.limits.throttle
            && self.one_in(4)
        {
            throttle.measure = Measure::Completion;
        }
        if let Some(rate) = one.limits.rates.first_mut()
            && self.one_in(3)
        {
            rate.window = self.window();
        }
        if self.one_in(4)
            && let Some(first) = one.limits.rates.first().cloned()
        {
            let mut second = first;
            second.limit = number(self.of(&[3, 130]));
            second.period = NonZeroU64::new(self.of(&[1_000_000, 90_000_000])).unwrap();
            one.limits.rates.push(second);
        }
        one.on_limit = self.of(&[OnLimit::Wait, OnLimit::Reschedule, OnLimit::Drop]);
        if self.one_in(5) {
            one.space = Space::Queue;
        }
        one
    }

    fn window(&mut self) -> WindowKind {
        match self.below(3) {
            0 => WindowKind::Calendar(
                self.of(&[Unit::Day, Unit::Week, Unit::Month]),
                Zone::new(self.of(&["UTC", "Europe/Oslo"])).unwrap(),
            ),
            _ => WindowKind::Fixed,
        }
    }

    /// What a few keys ask of a job. It pays the same under each limit of a key.
    fn limits(&mut self) -> Vec<Limited> {
        let mut all: Vec<Limited> = (0..self.below(4)).map(|_| self.limited()).collect();
        for nth in 0..all.len() {
            let same = all[..nth].iter().find(|one| one.shares_key(&all[nth]));
            (all[nth].cost, all[nth].share) = match same {
                Some(same) => (same.cost.clone(), same.share.clone()),
                // What its calls pay for has no price, and is not shared.
                None if self.one_in(6) => (
                    Cost {
                        by_calls: true,
                        ..Cost::ONE
                    },
                    None,
                ),
                None => (self.cost(), self.share()),
            };
        }
        all
    }

    fn cost(&mut self) -> Cost {
        let pays = match self.below(4) {
            0 => self.of(&[2, 3, 10, 90]),
            // The most that 40 jobs of a key may pay in all, as slots are counted.
            1 => self.of(&[7, 150, 1_000, 20_000, u32::MAX / 40]),
            _ => 1,
        };
        let rule = CostRule {
            from: None,
            default: number(pays),
            max: Some(number(u32::MAX)),
            settle: self.one_in(2).then(|| "result.used".into()),
        };
        match self.one_in(2) && pays == 1 {
            true => Cost::ONE,
            false => Cost::of(rule.into()),
        }
    }

    fn share(&mut self) -> Option<Share> {
        let group = format!("t{}", self.below(4));
        self.one_in(3).then(|| Share {
            group: group.into(),
            weight: number(self.of(&[1, 3, 7])),
        })
    }
}

/// A store, the core, and what is known of both.
struct Both<'a> {
    rig: &'a Rig,
    store: &'a dyn Ledger,
    core: &'a MemoryStore,
    dice: Dice,
    claims: Vec<u64>,
    named: Option<Timestamp>,
    granted: Vec<Timestamp>,
}

impl Both<'_> {
    fn job(&mut self) -> usize {
        self.dice.below(JOBS) as usize
    }

    fn claimed(&mut self, job: usize) -> Claimed {
        let limits = self.dice.limits();
        let mut claim = claimed(&format!("job-{job}"), self.claims[job], &limits);
        claim.visibility = self.dice.of(&[3_000, 30_000_000]);
        claim.since = self.dice.below(40_000);
        claim.followed = now(self.rig).plus(self.dice.of(&[0, 0, 2_000_000]));
        claim.stays = now(self.rig).plus(self.dice.of(&[0, 0, 30_000, 2_000_000, 90_000_000]));
        claim
    }

    async fn take(&mut self) {
        let mut asks = Vec::new();
        for _ in 0..=self.dice.below(4) {
            let job = self.job();
            self.claims[job] += u64::from(!self.dice.one_in(3));
            asks.push(self.claimed(job));
        }
        let asks: Vec<&Claimed> = asks.iter().collect();
        let want = self.dice.below(5) as usize;
        let taken = self.store.take(&asks, want).await.unwrap();
        let expected = self.core.take(&asks, want).await.unwrap();
        let Taken {
            verdicts,
            ended,
            served,
        } = taken;
        assert_eq!(verdicts, expected.verdicts, "{asks:#?} want {want}");
        assert_eq!(shown(ended), shown(expected.ended));
        assert_eq!(served, expected.served, "{asks:#?}");
        for verdict in &verdicts {
            if let Verdict::Refused { at: Some(at), .. } = verdict {
                self.named = Some(*at);
            }
        }
    }

    async fn set(&self, change: Change) {
        let expected = self.core.set(change.clone()).await.unwrap();
        let done = self.store.set(change.clone()).await.unwrap();
        assert_eq!(done, expected, "{change:?}");
    }

    async fn change(&mut self) {
        let job = self.job();
        let generation = Gen(self.claims[job].saturating_sub(self.dice.below(2)));
        let name: std::sync::Arc<str> = format!("job-{job}").into();
        let until = now(self.rig).plus(self.dice.below(100_000));
        let change = match self.dice.below(6) {
            0 => Change::Until {
                job: name,
                generation,
                until: until.into(),
                visibility: 9_000,
            },
            1 => Change::Offer {
                claimed: self.claimed(job),
            },
            2 => Change::Shut {
                key: limited(&format!("k{}", self.dice.below(KEYS)), None, None, None).key,
                until: Timestamp(until.0 - 10_000),
                at_least: self.dice.one_in(2),
            },
            4 => Change::Unused {
                key: limited(&format!("k{}", self.dice.below(KEYS)), None, None, None).key,
            },
            3 => Change::Adopt {
                claimed: self.claimed(job),
                until: until.into(),
            },
            _ => {
                self.claims[job] += 1;
                Change::Own {
                    job: name,
                    generation,
                    next: Gen(self.claims[job]),
                    until,
                }
            }
        };
        self.set(change).await;
    }

    /// Some ahead of their time, and some of those that were granted earlier given back.
    async fn reserve(&mut self) {
        let mut limited = self.dice.limited();
        let rates = &mut limited.limits.rates;
        rates.retain(|rate| rate.window == WindowKind::Sliding);
        let mut unused = Vec::new();
        while !self.granted.is_empty() && self.dice.one_in(2) {
            let which = self.dice.below(self.granted.len() as u64) as usize;
            unused.push(self.granted.swap_remove(which));
        }
        let wish = Wish {
            limited: &limited,
            want: self.dice.below(20) as usize,
            ahead: self.dice.of(&[0, 20_000, 500_000, 90_000_000]),
            unused: &unused,
        };
        let reserved = self.store.reserve(wish).await.unwrap();
        assert_eq!(reserved, self.core.reserve(wish).await.unwrap(), "{wish:?}");
        self.granted
            .extend(reserved.turns.iter().map(|turn| turn.at));
        self.granted.truncate(50);
    }

    async fn end(&mut self) {
        let job = self.job();
        let name = format!("job-{job}");
        let generation = (!self.dice.one_in(3)).then_some(Gen(self.claims[job]));
        let mut end = match self.store.row(&name).await.unwrap() {
            Some(row) => {
                let end = End::settled(&row.claimed, |_| {
                    let amount = self.dice.of(&[0, 1, 5, 80, 1_500, u32::MAX]);
                    Some(amount).filter(|_| self.dice.one_in(2))
                });
                // As of a call, whose use may count from now on.
                let counts_now = self.dice.one_in(2);
                let used = end.used().iter().cloned();
                let used = used.map(|used| Used { counts_now, ..used });
                End::with_used(&row.claimed, used.collect())
            }
            None => End::of(name.as_str().into(), None),
        };
        end.claim = generation;
        let ended = self.store.end_all(std::slice::from_ref(&end)).await;
        let expected = self.core.end_all(&[end]).await.unwrap();
        assert_eq!(shown(ended.unwrap()), shown(expected));
    }

    async fn back(&mut self) {
        let job = self.job();
        let (name, generation) = (format!("job-{job}"), Gen(self.claims[job]));
        let back = self.store.back(&name, generation).await.unwrap();
        assert_eq!(back, self.core.back(&name, generation).await.unwrap());
    }

    async fn look(&mut self) {
        let limits = self.dice.limits();
        let room = self.store.room(&limits).await.unwrap();
        assert_eq!(room, self.core.room(&limits).await.unwrap(), "{limits:?}");
        for one in &limits {
            let used = self.store.usage(one.space, &one.key, &one.limits);
            let expected = self.core.usage(one.space, &one.key, &one.limits);
            assert_eq!(used.await.unwrap(), expected.await.unwrap(), "{one:?}");
        }
        let count = self.store.count_out().await.unwrap();
        assert_eq!(count, self.core.count_out().await.unwrap());
        let name = format!("job-{}", self.job());
        let row = self.store.row(&name).await.unwrap();
        let expected = self.core.row(&name).await.unwrap();
        assert_eq!(shown(row), shown(expected));
        // What is offered is anybody's, and a store in which nothing else is due is not asked.
        let is_due = |row: &ojs_throttle::store::Row| row.place != Place::Offered;
        let due = self.store.due(5).await.unwrap().into_iter();
        let expected = self.core.due(5).await.unwrap().into_iter();
        assert_eq!(shown(due.filter(is_due)), shown(expected.filter(is_due)));
    }

    async fn wait(&mut self) {
        let now = now(self.rig).0;
        let micros = match (self.named.take(), self.dice.below(6)) {
            // To the moment from which the last refusal said that it is granted, or just before.
            (Some(named), 0..=2) => {
                (named.0.saturating_sub(EARLY + self.dice.below(2))).saturating_sub(now)
            }
            (_, 0..=3) => self.dice.below(2_000),
            (_, 4) => self.dice.below(1_000_000),
            _ => self.dice.below(200_000_000),
        };
        // A shut key may be shut for ever, as far as this is concerned.
        advance(self.rig, micros.min(10_000_000_000));
    }

    async fn step(&mut self) {
        match self.dice.below(20) {
            0..9 => self.take().await,
            9..11 => self.back().await,
            11..13 => self.end().await,
            13..15 => self.change().await,
            15 => self.look().await,
            16 => self.reserve().await,
            _ => self.wait().await,
        }
    }
}

/// Rows as text. Of how a cost was found they keep only where it is settled.
fn shown(rows: impl IntoIterator<Item = ojs_throttle::store::Row>) -> String {
    let rows = rows.into_iter().map(|mut row| {
        let mut limited = row.claimed.limited.to_vec();
        for one in &mut limited {
            let settle = one.cost.rule.take().and_then(|rule| rule.settle.clone());
            let name = format!("{} {settle:?}", one.policy);
            one.policy = name.into();
        }
        row.claimed.limited = limited.into();
        row.claimed.since = 0;
        (row.claimed.stays, row.claimed.followed) = (Timestamp(0), Timestamp(0));
        row
    });
    format!("{:?}", rows.collect::<Vec<_>>())
}

pub async fn random_sequences_are_answered_as_by_the_core(rig: &Rig) {
    let store = rig.open("a").await;
    for seed in 0..SEQUENCES {
        store.set(Change::Clear).await.unwrap();
        let core = MemoryStore::on(Clock::given(rig.clock().clone()));
        let mut both = Both {
            rig,
            store: &*store,
            core: &core,
            dice: Dice(SmallRng::seed_from_u64(seed)),
            claims: vec![1; JOBS as usize],
            named: None,
            granted: Vec::new(),
        };
        for step in 0..STEPS {
            let told = format!("seed {seed}, step {step}");
            let _told = Told(&told);
            both.step().await;
        }
    }
}

/// Says where it was when a check fails.
struct Told<'a>(&'a str);

impl Drop for Told<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("at {}", self.0);
        }
    }
}
