//! Forecasts, compared with what then happens.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::num::{NonZeroU32, NonZeroU64};

use http::Request;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::time::{Instant, advance};

use super::*;
use crate::equipment::claims::TestClaim as _;
use crate::equipment::held::held_of;
use crate::limit::{Limits, Measure, Throttle};
use crate::store::memory::MemoryStore;
use crate::store::{Claim, Claimed, Verdict};

const BEGIN: u64 = 1_800_000_000_000_000;

/// Workers of one key: jobs wait in the hold, and run for exponential times with a mean of 10 s.
struct Fleet {
    proxy: Proxy,
    dice: SmallRng,
    limits: Limits,
    /// Since the beginning: when the jobs that run end.
    ends: BinaryHeap<Reverse<(Duration, String)>>,
    waiting: VecDeque<Claimed>,
    jobs: u64,
    began: Instant,
}

impl Fleet {
    fn of(seed: u64, limits: Limits) -> Fleet {
        Fleet {
            proxy: Proxy::on(Arc::new(MemoryStore::new(BEGIN)).into()),
            dice: SmallRng::seed_from_u64(seed),
            limits,
            ends: BinaryHeap::new(),
            waiting: VecDeque::new(),
            jobs: 0,
            began: Instant::now(),
        }
    }

    /// One more job waits. Returns its id.
    fn claim(&mut self) -> String {
        self.jobs += 1;
        let claim = |limits| {
            let claim = Claim::limited(&format!("j{}", self.jobs));
            let limited = Limited {
                limits,
                // The file has no policies here.
                policy: Arc::from(crate::policy::BROUGHT),
                ..claim.limited[0].clone()
            };
            Claim {
                limited: [limited].into(),
                ..claim
            }
        };
        let claimed = Claimed::from(claim(self.limits.clone()));
        self.waiting.push_back(claimed.clone());
        let hold = &self.proxy.sidecar.hold;
        hold.add(vec![held_of(claim(self.limits.clone()))]);
        claimed.job.to_string()
    }

    /// Whether the job that has waited for longest starts.
    async fn starts(&mut self) -> bool {
        let job = &self.waiting[0];
        let taken = self.proxy.sidecar.store.take(&[job], 1).await.unwrap();
        if !matches!(taken.verdicts[0], Verdict::Started { .. }) {
            return false;
        }
        let job = self.waiting.pop_front().unwrap();
        self.proxy.sidecar.hold.forget(&job.job).unwrap();
        let ran = -10.0 * self.dice.random_range(f64::EPSILON..1.0_f64).ln();
        let end = self.began.elapsed() + Duration::from_secs_f64(ran);
        self.ends.push(Reverse((end, job.job.to_string())));
        true
    }

    /// The next job that ends does so, as its ACK would have it.
    async fn end(&mut self) {
        let Reverse((end, job)) = self.ends.pop().unwrap();
        advance(end.saturating_sub(self.began.elapsed())).await;
        let sidecar = &self.proxy.sidecar;
        let row = sidecar.store.end(&job, None).await.unwrap().unwrap();
        sidecar.settle.runs.note(&row, sidecar.store.now());
    }

    /// What `why` says of when the job starts, by the names of the members.
    async fn said<const N: usize>(&self, job: &str, names: [&str; N]) -> [Duration; N] {
        let asked = Request::get(format!("/throttle/v1/why?job={job}"));
        let asked = asked.header("host", "127.0.0.1").body(()).unwrap();
        let answer = why(&self.proxy, &asked.into_parts().0).await.unwrap();
        let answer: Value = serde_json::from_str(&answer).unwrap();
        names.map(|name| {
            let at = answer[name].as_str().unwrap_or_else(|| panic!("{answer}"));
            let micros = crate::duration::moment(at).unwrap();
            Duration::from_micros(micros - BEGIN)
        })
    }
}

/// How many of 1,000 jobs before which `ahead` others wait start by the first time that is said, and by the second.
async fn shares(seed: u64, slots: u32, ahead: usize) -> [usize; 2] {
    let limits = Limits {
        concurrency: Some(slots),
        ..Limits::default()
    };
    let mut fleet = Fleet::of(seed, limits);
    for _ in 0..slots {
        fleet.claim();
        assert!(fleet.starts().await);
    }
    let mut shares = [0, 0];
    let mut asked = VecDeque::new();
    // 100 run times are known before it is asked.
    for started in 0..1_100 + ahead {
        while fleet.waiting.len() <= ahead {
            let job = fleet.claim();
            let said = match started {
                100.. => Some(fleet.said(&job, ["next_start_p50", "next_start_p90"]).await),
                _ => None,
            };
            asked.push_back(said);
        }
        fleet.end().await;
        let now = fleet.began.elapsed();
        if let Some(said) = asked.pop_front().unwrap() {
            for (share, said) in shares.iter_mut().zip(said) {
                *share += usize::from(now <= said);
            }
        }
        assert!(fleet.starts().await);
    }
    shares
}

#[tokio::test(start_paused = true)]
async fn forecasts_come_true_as_often_as_they_say() {
    for seed in 0..8 {
        let (slots, ahead) = [(1, 0), (2, 0), (5, 0), (3, 4)][seed as usize % 4];
        let [half, most] = shares(seed, slots, ahead).await;
        let told = format!("seed {seed}, {slots} slots, {ahead} ahead: {half}, {most}");
        assert!((400..=600).contains(&half), "{told}");
        assert!((800..=970).contains(&most), "{told}");
    }
}

/// Under a throttle alone the first job that waits starts when it is said to: not 50 ms earlier, and not later.
#[tokio::test(start_paused = true)]
async fn starts_under_a_throttle_are_when_they_are_said_to_be() {
    for seed in 0..20 {
        let mut dice = SmallRng::seed_from_u64(seed);
        let throttle = Throttle {
            limit: NonZeroU32::new(dice.random_range(1..20)).unwrap(),
            period: NonZeroU64::new(dice.random_range(1_000_000..60_000_000)).unwrap(),
            burst: NonZeroU32::MIN,
            measure: Measure::Start,
        };
        let limits = Limits {
            throttle: Some(throttle),
            ..Limits::default()
        };
        let mut fleet = Fleet::of(seed, limits);
        for _ in 0..50 {
            // Workers may be late.
            advance(Duration::from_millis(dice.random_range(0..200))).await;
            let job = fleet.claim();
            let [said] = fleet.said(&job, ["next_start"]).await;
            let now = fleet.began.elapsed();
            let early = said.checked_sub(Duration::from_millis(50));
            if let Some(early) = early.and_then(|early| early.checked_sub(now)) {
                advance(early).await;
                assert!(!fleet.starts().await, "seed {seed}: 50 ms before {said:?}");
            }
            advance(said.saturating_sub(fleet.began.elapsed())).await;
            assert!(fleet.starts().await, "seed {seed}: at {said:?}");
        }
    }
}
