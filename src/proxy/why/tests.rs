//! Forecasts, compared with what then happens.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use http::Request;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::time::{Instant, advance};

use super::*;
use crate::hold::Held;
use crate::limit::Limits;
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
    async fn of(seed: u64, slots: u32) -> Fleet {
        let mut fleet = Fleet {
            proxy: Proxy::on(Arc::new(MemoryStore::new(BEGIN)).into()),
            dice: SmallRng::seed_from_u64(seed),
            limits: Limits {
                concurrency: Some(slots),
                ..Limits::default()
            },
            ends: BinaryHeap::new(),
            waiting: VecDeque::new(),
            jobs: 0,
            began: Instant::now(),
        };
        for _ in 0..slots {
            fleet.claim();
            fleet.start().await;
        }
        fleet
    }

    /// One more job waits. Returns its id.
    fn claim(&mut self) -> String {
        self.jobs += 1;
        let claim = |limits| {
            let claim = Claim::limited(&format!("j{}", self.jobs));
            let limited = Limited {
                limits,
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
        hold.add(vec![Held::of(claim(self.limits.clone()))]);
        claimed.job.to_string()
    }

    /// The job that has waited for longest takes a slot.
    async fn start(&mut self) {
        let job = self.waiting.pop_front().unwrap();
        self.proxy.sidecar.hold.forget(&job.job).unwrap();
        let taken = self.proxy.sidecar.store.take(&[&job], 1).await.unwrap();
        assert!(matches!(taken.verdicts[0], Verdict::Started { .. }));
        let ran = -10.0 * self.dice.random_range(f64::EPSILON..1.0_f64).ln();
        let end = self.began.elapsed() + Duration::from_secs_f64(ran);
        self.ends.push(Reverse((end, job.job.to_string())));
    }

    /// The next job that ends does so, as its ACK would have it.
    async fn end(&mut self) {
        let Reverse((end, job)) = self.ends.pop().unwrap();
        advance(end.saturating_sub(self.began.elapsed())).await;
        let sidecar = &self.proxy.sidecar;
        let row = sidecar.store.end(&job, None).await.unwrap().unwrap();
        sidecar.settle.runs.note(&row, sidecar.store.now());
    }

    /// What `why` says of when the job starts, in half of all cases and in nine of ten.
    async fn forecast(&self, job: &str) -> [Duration; 2] {
        let asked = Request::get(format!("/throttle/v1/why?job={job}"));
        let asked = asked.header("host", "127.0.0.1").body(()).unwrap();
        let answer = why(&self.proxy, &asked.into_parts().0).await.unwrap();
        let answer: Value = serde_json::from_str(&answer).unwrap();
        ["next_start_p50", "next_start_p90"].map(|name| {
            let at = answer[name].as_str().unwrap_or_else(|| panic!("{answer}"));
            let micros = crate::duration::moment(at).unwrap();
            Duration::from_micros(micros - BEGIN)
        })
    }
}

/// How many of 1,000 jobs before which `ahead` others wait start by the first time that is said, and by the second.
async fn shares(seed: u64, slots: u32, ahead: usize) -> [usize; 2] {
    let mut fleet = Fleet::of(seed, slots).await;
    let mut shares = [0, 0];
    let mut asked = VecDeque::new();
    // 100 run times are known before it is asked.
    for started in 0..1_100 + ahead {
        while fleet.waiting.len() <= ahead {
            let job = fleet.claim();
            let said = match started {
                100.. => Some(fleet.forecast(&job).await),
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
        fleet.start().await;
    }
    shares
}

#[tokio::test(start_paused = true)]
async fn forecasts_come_true_as_often_as_they_say() {
    for seed in 0..20 {
        let (slots, ahead) = [(1, 0), (2, 0), (5, 0), (3, 4)][seed as usize % 4];
        let [half, most] = shares(seed, slots, ahead).await;
        let told = format!("seed {seed}, {slots} slots, {ahead} ahead: {half}, {most}");
        assert!((400..=600).contains(&half), "{told}");
        assert!((800..=970).contains(&most), "{told}");
    }
}
