//! Runs scenarios: under many seeds with simulated network and time, once over real sockets, and with
//! limiting switched off.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ojs_throttle::net::Net;
use ojs_throttle::net::sim::Network;

use super::judge::Judge;

/// What one run is given.
#[derive(Clone, Copy, Debug)]
pub struct Ctx {
    /// Decides all that is random in the harness and the backend.
    pub seed: u64,
    /// Real sockets in real time.
    pub real: bool,
    /// Limits are left out and jobs' own are ignored.
    pub unlimited: bool,
}

impl Ctx {
    /// Every other run: for scenarios of two kinds.
    pub fn even(self) -> bool {
        self.seed.is_multiple_of(2)
    }

    /// One after the other, as the seed has it.
    pub fn pick<T: Clone>(self, of: &[T]) -> T {
        pick(self.seed, of)
    }

    pub(super) fn net(self) -> Net {
        if self.real {
            Net::Tcp
        } else {
            Net::Sim(Network::default())
        }
    }
}

/// One after the other, as the number has it.
pub fn pick<T: Clone>(nth: u64, of: &[T]) -> T {
    of[(nth % of.len() as u64) as usize].clone()
}

type Run = Pin<Box<dyn Future<Output = Judge>>>;

/// One scenario.
pub struct Scenario {
    pub name: &'static str,
    /// Runs in simulation, by day and at night.
    pub seeds: [u64; 2],
    /// How many kinds of it there are, which follow each other as the seeds do.
    pub kinds: u64,
    /// Whether it is about a limit: without the limit its checks must fail.
    pub limits: bool,
    /// How many of its kinds run in real time too: those that are short enough.
    pub real: u64,
    pub run: fn(Ctx) -> Run,
}

/// The longest that a scenario may take by its own clock: simulated, and over real sockets.
const LONGEST: [Duration; 2] = [Duration::from_secs(1800), Duration::from_secs(180)];

impl Scenario {
    /// Runs under seeds 1 to `seeds`, or to as many as `SEEDS` says, or under `SEED` alone.
    pub fn simulate(&self) {
        let seeds: Vec<u64> = match (said("SEED"), said("SEEDS")) {
            (Some(seed), _) => vec![seed],
            (None, seeds) => {
                let own = self.seeds[usize::from(said("NIGHTLY").is_some())];
                (1..=seeds.unwrap_or(own)).collect()
            }
        };
        for seed in seeds {
            let mut judge = self.run(Ctx {
                seed,
                real: false,
                unlimited: false,
            });
            judge.problems.append(&mut judge.late);
            judge.must_be_content(self.name, &format!("SEED={seed}"));
        }
        println!("{:?} on the processor", processor_time());
    }

    /// Runs over real sockets: once in each of so many kinds, and where nothing was wrong but that something came late up to five
    /// times, as the machine may be busy.
    pub fn go_real(&self) {
        (1..=self.real).for_each(|seed| self.go_real_as(seed));
    }

    fn go_real_as(&self, seed: u64) {
        for rest in (0..5).rev() {
            let mut judge = self.run(Ctx {
                seed,
                real: true,
                unlimited: false,
            });
            if rest == 0 {
                judge.problems.append(&mut judge.late);
            }
            judge.must_be_content(self.name, "real sockets");
            if judge.late.is_empty() {
                return;
            }
        }
    }

    /// Runs without limits, in each of its kinds, two at least; the judge must see limits broken.
    pub fn must_break(&self) {
        let begun = processor_time();
        for seed in 1..=self.kinds.max(2) {
            let judge = self.run(Ctx {
                seed,
                real: false,
                unlimited: true,
            });
            assert!(
                judge.breaches > 0,
                "{}, SEED={seed}: no check fails without limits",
                self.name
            );
        }
        println!(
            "{}: {:?} on the processor",
            self.name,
            processor_time() - begun
        );
    }

    fn run(&self, ctx: Ctx) -> Judge {
        watch_panics();
        PANICS.with_borrow_mut(Vec::clear);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(!ctx.real)
            .build()
            .expect("a runtime");
        let [simulated, real] = LONGEST;
        let longest = if ctx.real { real } else { simulated };
        let judged =
            runtime.block_on(async { tokio::time::timeout(longest, (self.run)(ctx)).await });
        let mut judge =
            judged.unwrap_or_else(|_| panic!("{} under {ctx:?} does not end", self.name));
        drop(runtime);
        PANICS.with_borrow_mut(|panics| judge.problems.append(panics));
        judge
    }
}

/// Runs scenarios on a few threads, each with a runtime of its own.
pub fn spread(
    threads: usize,
    scenarios: impl Iterator<Item = Scenario>,
    run: impl Fn(&Scenario) + Sync,
) {
    let scenarios: Vec<Scenario> = scenarios.collect();
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(scenario) = scenarios.get(next.fetch_add(1, Ordering::Relaxed)) {
                    run(scenario);
                }
            });
        }
    });
}

/// A number in the environment.
pub fn said(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().expect("a number"))
}

/// How long this thread was on a processor, where the system tells.
fn processor_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = text.split(' ').next().and_then(|nanos| nanos.parse().ok());
    Duration::from_nanos(nanos.unwrap_or(0))
}

thread_local! {
    /// Panics on this thread: tasks of the sidecar swallow them, and none is allowed.
    static PANICS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

fn watch_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANICS.with_borrow_mut(|panics| panics.push(format!("panic: {info}")));
            before(info);
        }));
    });
}

/// The list of scenarios, a test for each, and two for all together: `name: seeds` and what else holds for it. `| N`: so
/// many are run by day, and N at night; `limit`: its
/// checks must fail without limits; `real`: its first kind also runs over real sockets;
/// `each`: all of its kinds do; `/ N`: it has N kinds, by seed.
#[macro_export]
macro_rules! scenarios {
    ($($module:ident :: $name:ident : $seeds:literal $(| $all:literal)? $(/ $kinds:literal)? $($flag:ident)*;)*) => {
        /// All scenarios.
        fn all() -> Vec<$crate::harness::Scenario> {
            vec![$($crate::harness::Scenario {
                name: stringify!($name),
                seeds: [$seeds, [$seeds $(, $all)?].into_iter().max().unwrap_or($seeds)],
                kinds: [1 $(, $kinds)?].into_iter().max().unwrap_or(1),
                limits: [$(stringify!($flag)),*].contains(&"limit"),
                real: match [$(stringify!($flag)),*].last() {
                    Some(&"each") => [1 $(, $kinds)?].into_iter().max().unwrap_or(1),
                    Some(&"real") => 1,
                    _ => 0,
                },
                run: |ctx| Box::pin($module::$name(ctx)),
            }),*]
        }

        mod simulated {
            $(#[test]
            fn $name() {
                let mut all = super::all().into_iter();
                let one = all.find(|scenario| scenario.name == stringify!($name));
                one.expect("a scenario of that name").simulate();
            })*
        }

        #[test]
        fn over_real_sockets() {
            // They mostly wait, but each judges its own lateness: few at a time.
            let real = all().into_iter().filter(|scenario| scenario.real > 0);
            $crate::harness::runner::spread(3, real, $crate::harness::Scenario::go_real);
        }

        #[test]
        fn without_limits_the_judges_see_it() {
            let limited = all().into_iter().filter(|scenario| scenario.limits);
            $crate::harness::runner::spread(2, limited, $crate::harness::Scenario::must_break);
        }
    };
}
