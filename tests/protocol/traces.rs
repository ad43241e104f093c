//! Real stores, step by step, beside the books of the model: calls that are lost, unheard or carried out twice are so in
//! both. The books refuse nothing that a store does, and answer as it does.

use ojs_throttle::limit::{Limited, Space, Timestamp};
use ojs_throttle::store::{self, Change, Claimed, End, Gen, Ledger, LedgerExt as _};
use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};

use super::books::{
    Books, Claim, JOBS, KEYS, Limit, Number, Place, Row, Rules, Step, Time, Verdict, keys_of,
};
use super::steps::Way;
use crate::faulty::{Fault, Faulty};
use crate::stores::rig::{Rig, advance, claimed, limited, now};

/// A tick is a little more than two seconds, so that no time of the store's lies where a tick does.
const TICK: u64 = 2_020_000;
/// The tick at which a sequence begins.
const FIRST: Time = 10;
/// What sidecars find in 5, 3 and 2 seconds they find with these ticks.
const RULES: Rules = Rules {
    limits: [
        Limit {
            slots: Some(1),
            starts: None,
        },
        Limit {
            slots: Some(2),
            starts: Some(2),
        },
    ],
    period: 3,
    visibility: 2,
    silence: 3,
    patience: 2,
    lease: 1,
    fault: None,
};
/// Steps of one sequence, and in all; more at night.
const AT_ONCE: usize = 100;
const STEPS: [usize; 2] = [400, 15_000];

/// A check of stores that one sidecar has.
pub async fn one_sidecar_is_answered_as_by_the_model(rig: &Rig) {
    replay(rig, &["a"]).await;
}

/// A check of stores that sidecars share.
pub async fn three_sidecars_are_answered_as_by_the_model(rig: &Rig) {
    replay(rig, &["a", "b", "c"]).await;
}

async fn replay(rig: &Rig, names: &[&str]) {
    let mut stores = Vec::new();
    for name in names {
        stores.push(Faulty::new(rig.open(name).await));
    }
    let steps = STEPS[usize::from(std::env::var_os("NIGHTLY").is_some())];
    for seed in 0..(steps / AT_ONCE) as u64 {
        let mut trace = Trace::begin(rig, &stores, seed).await;
        for step in 0..AT_ONCE {
            trace.told = format!("seed {seed}, step {step}");
            trace.step().await;
            if step % 5 == 0 {
                trace.compare().await;
            }
        }
    }
}

struct Trace<'a> {
    rig: &'a Rig,
    stores: &'a [Faulty],
    dice: SmallRng,
    begun: u64,
    now: Time,
    books: Books,
    claims: [Number; JOBS],
    /// When each sidecar last looked at what is due: a store is asked once a second.
    looked: [Time; 3],
    told: String,
}

impl<'a> Trace<'a> {
    async fn begin(rig: &'a Rig, stores: &'a [Faulty], seed: u64) -> Trace<'a> {
        advance(rig, 10 * TICK);
        stores[0].set(Change::Clear).await.unwrap();
        for store in stores {
            store.due(0).await.unwrap();
        }
        let books = Books {
            seen: [FIRST; 3],
            ..Books::default()
        };
        let (dice, begun) = (SmallRng::seed_from_u64(seed), now(rig).0);
        let told = String::new();
        Trace {
            rig,
            stores,
            dice,
            begun,
            now: FIRST,
            books,
            claims: [4; JOBS],
            looked: [FIRST; 3],
            told,
        }
    }

    fn below(&mut self, n: usize) -> usize {
        self.dice.random_range(0..n)
    }

    /// When a tick is, by the store's clock, a little less so that it has come by then.
    fn at(&self, tick: Time) -> Timestamp {
        Timestamp(self.begun + TICK * u64::from(tick) - TICK * u64::from(FIRST))
    }

    fn tick_of(&self, at: Timestamp) -> Time {
        FIRST + (at.0 - self.begun).div_ceil(TICK) as Time
    }

    fn claim(&mut self, job: usize) -> Claim {
        if self.below(3) > 0 {
            self.claims[job] += 4;
        }
        let made = self.now + 1 - self.below(4) as Time;
        let number = self.claims[job] - self.below(2) as Number;
        Claim {
            job,
            number,
            attempt: 0,
            made,
            keys: self.below(1 << KEYS) as u8,
        }
    }

    fn real(&self, claim: &Claim) -> Claimed {
        let limits: Vec<Limited> = keys_of(claim.keys).map(limit_of).collect();
        let mut real = claimed(&name(claim.job), u64::from(claim.number), &limits);
        real.claimed_at = self.at(claim.made);
        real.visibility = u64::from(RULES.visibility) * TICK - 30_000;
        real
    }

    /// How often the next call of a sidecar is carried out, and whether its answer is heard.
    fn way(&mut self, me: usize) -> Way {
        let way = match self.below(8) {
            0 => Way::Lost,
            1 => Way::Unheard,
            2 => Way::Twice,
            _ => Way::Whole,
        };
        self.stores[me].script([match way {
            Way::Whole => Fault::NONE,
            Way::Lost => Fault::gone(),
            Way::Unheard => Fault::unheard(),
            Way::Twice => Fault {
                twice: true,
                ..Fault::NONE
            },
        }]);
        way
    }

    /// The same on the books; what the store said is what they say.
    fn same<T, U>(
        &mut self,
        me: usize,
        way: Way,
        said: Result<T, store::StoreError>,
        step: impl Fn(&mut Step<'_>) -> U,
        alike: impl Fn(T, U) -> bool,
    ) {
        let (now, times) = (self.now, [1, 0, 1, 2][way as usize]);
        let mut on_books = || {
            step(&mut Step {
                books: &mut self.books,
                rules: &RULES,
                me,
                now,
                moments: [now; JOBS],
            })
        };
        let answers = (0..times).map(|_| on_books()).last();
        assert_eq!(
            said.is_ok(),
            matches!(way, Way::Whole | Way::Twice),
            "{}: {:?}",
            self.told,
            said.err()
        );
        if let (Ok(said), Some(answer)) = (said, answers) {
            assert!(alike(said, answer), "{}: {:#?}", self.told, self.books);
        }
    }

    async fn change(&mut self, me: usize, change: Change, step: impl Fn(&mut Step<'_>) -> bool) {
        self.told += &format!(", {me} {change:?}");
        let way = self.way(me);
        let done = self.stores[me].set(change).await;
        self.same(me, way, done, step, |done, on_books| done == on_books);
    }

    async fn take(&mut self, me: usize) {
        let from = self.below(JOBS);
        let asks: Vec<Claim> = (from..=from + self.below(JOBS - 1))
            .map(|job| self.claim(job % JOBS))
            .collect();
        let want = self.below(JOBS);
        self.told += &format!(", {me} takes {want} of {asks:?}");
        let real: Vec<Claimed> = asks.iter().map(|ask| self.real(ask)).collect();
        let real: Vec<&Claimed> = real.iter().collect();
        let way = self.way(me);
        let taken = self.stores[me].take(&real, want).await;
        self.same(
            me,
            way,
            taken,
            |step| step.take(&asks, want),
            |taken, (verdicts, ended)| {
                let mut both = taken.verdicts.iter().zip(&verdicts);
                let same = both.all(|(real, verdict)| verdict_of(real) == *verdict);
                let names = |rows: &[Row]| {
                    rows.iter()
                        .map(|row| (name(row.claim.job), row.claim.number))
                        .collect::<Vec<_>>()
                };
                let real = taken.ended.iter().map(|row| {
                    (
                        row.claimed.job.to_string(),
                        row.claimed.generation.0 as Number,
                    )
                });
                same && real.collect::<Vec<_>>() == names(&ended)
            },
        );
    }

    async fn step(&mut self) {
        let (me, job) = (self.below(self.stores.len()), self.below(JOBS));
        if self.books.seen[me] + RULES.silence <= self.now {
            // Who was taken for gone is not looked after before it has said that it lives.
            self.due(me).await;
        }
        let (name, number) = (name(job), self.claims[job] - self.below(2) as Number);
        let until = self.now + self.below(3) as Time;
        match self.below(20) {
            0..6 => self.take(me).await,
            6..8 => {
                let way = self.way(me);
                let back = self.stores[me].back(&name, Gen(number.into())).await;
                self.same(
                    me,
                    way,
                    back,
                    |step| step.back(job, number),
                    |real, back| real == back,
                );
            }
            8..10 => {
                let claim = (self.below(3) > 0).then_some(number);
                let end = End::of(name.as_str().into(), claim.map(|claim| Gen(claim.into())));
                let way = self.way(me);
                let ended = self.stores[me].end_all(&[end]).await;
                self.same(
                    me,
                    way,
                    ended,
                    |step| step.end(job, claim),
                    |real, row| real.len() == usize::from(row.is_some()),
                );
            }
            10 => {
                let (job_name, generation) = (name.as_str().into(), Gen(number.into()));
                let change = Change::Until {
                    job: job_name,
                    generation,
                    until: self.at(until).into(),
                    visibility: TICK,
                };
                self.change(me, change, |step| step.until(job, number, until))
                    .await;
            }
            11..13 => {
                let claim = self.claim(job);
                let change = Change::Offer {
                    claimed: self.real(&claim),
                };
                self.change(me, change, |step| step.offer(&claim)).await;
            }
            13..15 => {
                let (generation, next) = (Gen(number.into()), Gen(u64::from(number) + 1));
                let change = Change::Own {
                    job: name.as_str().into(),
                    generation,
                    next,
                    until: self.at(until + 1),
                };
                self.change(me, change, |step| {
                    step.own(job, number, number + 1, until + 1)
                })
                .await;
            }
            15 => {
                let mut claim = self.claim(job);
                claim.number *= Number::from(self.below(3) > 0);
                let change = Change::Adopt {
                    claimed: self.real(&claim),
                    until: self.at(until).into(),
                };
                self.change(me, change, |step| step.adopt(&claim, until))
                    .await;
            }
            16..18 => self.due(me).await,
            _ => {
                let ticks = 1 + self.below(2) as Time;
                self.now += ticks;
                advance(self.rig, u64::from(ticks) * TICK);
            }
        }
    }

    async fn due(&mut self, me: usize) {
        if std::mem::replace(&mut self.looked[me], self.now) == self.now {
            return;
        }
        self.told += &format!(", {me} looks");
        let due = self.stores[me].due(100).await;
        self.same(
            me,
            Way::Whole,
            due,
            |step| step.due(),
            |real, rows| {
                let mut real: Vec<String> = real
                    .iter()
                    .filter(|row| row.is_out())
                    .map(|row| row.claimed.job.to_string())
                    .collect();
                real.sort();
                real == rows
                    .iter()
                    .filter(|row| row.is_out())
                    .map(|row| name(row.claim.job))
                    .collect::<Vec<_>>()
            },
        );
    }

    /// Rows and keys are the same.
    async fn compare(&mut self) {
        for job in 0..JOBS {
            let real = self.stores[0].row(&name(job)).await.unwrap();
            let real = real.map(|row| {
                let place = match row.place {
                    store::Place::Offered => Place::Offered,
                    store::Place::Held(until) => Place::Held(self.tick_of(until)),
                    store::Place::Out(due) => Place::Out(self.tick_of(due.at())),
                };
                (
                    row.claimed.generation.0 as Number,
                    place,
                    row.started.is_some(),
                    row.ours,
                )
            });
            let row = self.books.rows[job].map(|row| {
                (
                    row.claim.number,
                    row.place,
                    row.started.is_some(),
                    row.owner == 0,
                )
            });
            assert_eq!(real, row, "{}, job {job}", self.told);
        }
        let keys: Vec<_> = (0..KEYS)
            .map(|key| (Space::Job, limit_of(key).key))
            .collect();
        let slots = self.stores[0].active(&keys).await.unwrap();
        assert_eq!(slots, self.books.slots.map(u32::from), "{}", self.told);
    }
}

fn name(job: usize) -> String {
    format!("job-{job}")
}

fn limit_of(key: usize) -> Limited {
    let Limit { slots, starts } = RULES.limits[key];
    let period = u64::from(RULES.period) * TICK - 50_000;
    let rate = starts.map(|starts| (starts.into(), period));
    limited(&format!("key-{key}"), slots.map(u32::from), rate, None)
}

fn verdict_of(real: &store::Verdict) -> Verdict {
    match real {
        store::Verdict::Started { .. } => Verdict::Started,
        store::Verdict::Refused { .. } => Verdict::Refused,
        store::Verdict::Unasked => Verdict::Unasked,
        store::Verdict::HasRow => Verdict::HasRow,
        store::Verdict::Outdated => Verdict::Outdated,
        store::Verdict::Unfit => unreachable!("each store can keep these"),
    }
}
