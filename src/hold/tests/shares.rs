//! Sidecars that share one key by weight: each holds some of the jobs, and none knows what the others hold.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use ojs_limit::{Cost, CostRule, Rate, WindowKind};
use ojs_store::memory::MemoryStore;
use ojs_store::{Clock, End, Ledger, Verdict};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

use super::*;

const BEGIN: u64 = 1_800_000_000_000_000;
const MS: u64 = 1_000;
/// What the key lets start in a second, by cost.
const LIMIT: u32 = 5_000;
/// So many tenants, with weights from 1 to 5, and so many jobs that wait of each. One more goes before them.
const TENANTS: usize = 20;
const WAITING: usize = 20;
const BEFORE: usize = TENANTS;
/// What a FETCH wants, how long it stays, and when a worker comes again that got nothing.
const WANT: usize = 5;
const STAYS: u64 = 500 * MS;
const PAUSE: u64 = 20 * MS;
/// The backend is asked again for FETCHes that stay.
const ASK_AGAIN: u64 = 250 * MS;

fn weight(tenant: usize) -> u32 {
    (tenant % 5 + 1) as u32
}

/// Three sidecars with two workers each, whose jobs take no time, and the store that they share.
struct Fleet {
    micros: Arc<AtomicU64>,
    store: MemoryStore,
    rng: SmallRng,
    rule: Arc<CostRule>,
    jobs: usize,
    backend: VecDeque<Held>,
    sidecars: Vec<Sidecar>,
    /// By tenant.
    got: [u64; TENANTS + 1],
}

#[derive(Default)]
struct Sidecar {
    hold: Arc<Hold>,
    fetches: [Fetch; 2],
    asked_at: u64,
}

#[derive(Default)]
struct Fetch {
    /// When it comes.
    at: u64,
    /// Its place, once it has found nothing.
    line: Option<Visit>,
}

impl Fleet {
    fn new(seed: u64) -> Fleet {
        let micros = Arc::new(AtomicU64::new(BEGIN));
        let rule = CostRule {
            from: None,
            default: 1.try_into().unwrap(),
            max: None,
            settle: None,
        };
        Fleet {
            store: MemoryStore::on(Clock::given(Arc::clone(&micros))),
            micros,
            rng: SmallRng::seed_from_u64(seed),
            rule: rule.into(),
            jobs: 0,
            backend: VecDeque::new(),
            sidecars: (0..3).map(|_| Sidecar::default()).collect(),
            got: [0; TENANTS + 1],
        }
    }

    fn now(&self) -> u64 {
        self.micros.load(Ordering::Relaxed)
    }

    fn enqueue(&mut self, tenant: usize) {
        self.jobs += 1;
        let pays = match tenant {
            BEFORE => LIMIT,
            _ => self.rng.random_range(1..=100),
        };
        let rate = Rate {
            limit: LIMIT.try_into().unwrap(),
            period: 1_000_000.try_into().unwrap(),
            window: WindowKind::Sliding,
        };
        let limited = Limited {
            limits: Limits {
                rates: vec![rate],
                ..Limits::default()
            },
            cost: Cost {
                pays: pays.try_into().unwrap(),
                rule: Some(Arc::clone(&self.rule)),
                by_calls: false,
            },
            share: Some(Share {
                group: Arc::from(tenant.to_string()),
                weight: weight(tenant).try_into().unwrap(),
            }),
            ..limits(&["vendor"])[0].clone()
        };
        self.backend.push_back(held_of(Claim {
            claimed_at: Timestamp(self.now()),
            limited: [limited].into(),
            ..Claim::of(&self.jobs.to_string())
        }));
    }

    /// Passes a millisecond, in which FETCHes come in any order, and again until none gets a job.
    async fn pass(&mut self) {
        self.micros.fetch_add(MS, Ordering::Relaxed);
        let mut turns = [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)];
        turns.shuffle(&mut self.rng);
        let mut again = true;
        while std::mem::take(&mut again) {
            for (nth, fetch) in turns {
                again |= self.fetch(nth, fetch).await;
            }
        }
    }

    /// What a FETCH does at this moment; whether it got jobs.
    async fn fetch(&mut self, nth: usize, of: usize) -> bool {
        let now = self.now();
        let sidecar = &mut self.sidecars[nth];
        let (hold, fetch) = (Arc::clone(&sidecar.hold), &mut sidecar.fetches[of]);
        if fetch.at + STAYS <= now && fetch.line.take().is_some() {
            fetch.at = now + PAUSE;
        }
        fetch.at = fetch.at.max(BEGIN);
        let is_first = fetch
            .line
            .as_ref()
            .is_none_or(|line| !line.leads().is_empty());
        if now < fetch.at || !is_first {
            return false;
        }
        if fetch.line.is_none() || sidecar.asked_at + ASK_AGAIN <= now {
            let mut more = WANT;
            while hold.look(&lane(1), WANT, Timestamp(now)).askable < WANT
                && !self.backend.is_empty()
            {
                sidecar.asked_at = now;
                let some = more.min(self.backend.len());
                hold.add(self.backend.drain(..some).collect());
                more *= 2;
            }
        }
        let until = fetch.at + STAYS;
        let started = self.grant(&hold, Timestamp(until)).await;
        let fetch = &mut self.sidecars[nth].fetches[of];
        if started.is_empty() {
            let stand = || stand(&hold, 1, &Gate::default());
            fetch.line.get_or_insert_with(stand);
            return false;
        }
        *fetch = Fetch {
            at: now,
            line: None,
        };
        for held in started {
            let one = &held.claimed.limited[0];
            let tenant: usize = one.share.as_ref().unwrap().group.parse().unwrap();
            self.got[tenant] += u64::from(one.cost.pays.get());
            let end = End::of(held.claimed.job.clone(), None);
            self.store.end_all(&[end]).await.unwrap();
            if tenant != BEFORE {
                self.enqueue(tenant);
            }
        }
        true
    }

    /// Picks what may start, and has the store decide.
    async fn grant(&self, hold: &Arc<Hold>, stays: Timestamp) -> Vec<Held> {
        let now = Timestamp(self.now());
        let mut picked = hold.pick(&lane(1), ask(WANT, WANT + 2, 0), now);
        for pick in &mut picked {
            pick.claimed.stays = stays;
            pick.claimed.followed = pick.claimed.followed.min(stays);
        }
        let asks: Vec<&Claimed> = picked.iter().map(|pick| &pick.claimed).collect();
        let taken = self.store.take(&asks, WANT).await.unwrap();
        hold.served(&taken.served, now);
        let (mut started, mut refused) = (Vec::new(), Vec::new());
        for (pick, verdict) in picked.into_iter().zip(taken.verdicts) {
            match verdict {
                Verdict::Started { .. } => started.push(pick),
                Verdict::Refused { why, at, .. } => refused.push((pick, Refused::by(&why, at))),
                _ => {}
            }
        }
        // One that was first in line may have started.
        for pick in started.iter().take(1) {
            let all = self.sidecars.iter();
            all.for_each(|sidecar| sidecar.hold.wake(&pick.claimed.limited));
        }
        for (pick, refused) in refused.into_iter().rev() {
            pick.refuse(Refusal {
                refused,
                at: now,
                by: None,
                rescheduled: None,
            });
        }
        hold.start(&mut started)
    }
}

/// Who comes where nothing is known of the key yet waits from then on, and not from where all began.
#[tokio::test(start_paused = true)]
async fn a_sidecar_that_knows_nothing_gives_newcomers_nothing() {
    let mut fleet = Fleet::new(0);
    fleet.micros.fetch_add(MS, Ordering::Relaxed);
    fleet.enqueue(BEFORE);
    assert!(fleet.fetch(0, 0).await);
    fleet.micros.fetch_add(700 * MS, Ordering::Relaxed);
    fleet.enqueue(0);
    fleet.sidecars[1].fetches[0].at = fleet.now();
    assert!(!fleet.fetch(1, 0).await, "there is no room");
    let key = Key::new("vendor").unwrap();
    let known = fleet.store.states(&[(Space::Job, &key)]).await.unwrap();
    let shares = known.states[0].shares().unwrap();
    assert!(shares.virtual_time() > 0);
    assert_eq!(shares.of("0"), shares.virtual_time());
}

/// Each tenant gets by its weight, within a tenth, whichever sidecar has its jobs, and whichever of them knows the
/// virtual time already.
#[tokio::test(start_paused = true)]
async fn tenants_get_by_weight_over_sidecars() {
    for seed in 0..8 {
        let mut fleet = Fleet::new(seed);
        fleet.enqueue(BEFORE);
        while fleet.got[BEFORE] == 0 {
            fleet.pass().await;
        }
        for _ in 0..WAITING {
            (0..TENANTS).for_each(|tenant| fleet.enqueue(tenant));
        }
        for _ in 0..40_000 {
            fleet.pass().await;
        }
        let all = &fleet.got[..TENANTS];
        let (total, weights) = (
            all.iter().sum::<u64>(),
            (0..TENANTS).map(weight).sum::<u32>(),
        );
        let part = |(tenant, got): (usize, &u64)| {
            let due = total as f64 * f64::from(weight(tenant)) / f64::from(weights);
            *got as f64 / due
        };
        let parts: Vec<f64> = all.iter().enumerate().map(part).collect();
        let off = |part: &&f64| (**part - 1.0).abs() > 0.1;
        assert!(parts.iter().find(off).is_none(), "seed {seed}: {parts:.2?}");
        let used = total as f64 / f64::from(40 * LIMIT);
        assert!(used >= 0.95, "seed {seed}: {used:.3} of the limit is used");
    }
}

/// Claims go by the turns of the groups, what is held included, and by priority before that.
#[test]
fn claims_in_turn() {
    let hold = Hold::default();
    let group = |name: &str, weight: u32, pays: u32, held: usize| {
        let one = Limited {
            cost: Cost {
                pays: pays.try_into().unwrap(),
                ..Cost::ONE
            },
            share: Some(Share {
                group: Arc::from(name),
                weight: weight.try_into().unwrap(),
            }),
            ..limits(&["vendor"])[0].clone()
        };
        QueuedGroup {
            limits: [one].into(),
            priority: 0,
            held,
            waiting: 100,
        }
    };
    let claims =
        |of: &[QueuedGroup], lacking, most| hold.claims_in_turn(of, lacking, most, Timestamp(1));
    let three = |held: [usize; 3]| {
        let [a, b, c] = held;
        [
            group("a", 3, 1, a),
            group("b", 1, 1, b),
            group("c", 1, 1, c),
        ]
    };
    assert_eq!(claims(&three([0; 3]), 10, 99), [6, 2, 2]);
    assert_eq!(claims(&three([3, 2, 0]), 99, 10), [3, 0, 2]);
    assert_eq!(claims(&three([9, 9, 9]), 99, 10), [0; 3]);
    let costs = [group("a", 1, 10, 0), group("b", 1, 1, 0)];
    assert_eq!(claims(&costs, 22, 99), [2, 20]);
    let [mut high, low, _] = three([0; 3]);
    (high.priority, high.waiting) = (5, 7);
    assert_eq!(claims(&[high, low], 9, 99), [7, 2]);
}
