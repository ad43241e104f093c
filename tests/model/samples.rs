//! Random limits, jobs and times; small numbers, so that limits are met.

use std::future::Future;
use std::num::{NonZeroU32, NonZeroU64};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use ojs_throttle::limit::{
    EARLY, Key, Limited, Limits, Measure, OnLimit, Rate, Space, Throttle, Timestamp, Unit,
    WindowKind, Zone,
};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

/// When every history begins.
pub const T: Timestamp = Timestamp(1_800_000_000_000_000);

/// In microseconds.
pub const DAY: u64 = 86_400_000_000;

pub fn config(cases: u32) -> ProptestConfig {
    let seeds = FileFailurePersistence::Direct("tests/model.proptest-regressions");
    ProptestConfig {
        cases,
        failure_persistence: Some(Box::new(seeds)),
        ..ProptestConfig::default()
    }
}

/// Runs a history on a clock that moves only when told.
pub fn paused<T>(history: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    let history: Pin<Box<dyn Future<Output = T> + '_>> = Box::pin(history);
    runtime.block_on(history)
}

pub async fn advance(micros: u64) {
    tokio::time::advance(Duration::from_micros(micros)).await;
}

pub fn key(n: u8) -> Key {
    Key::new(&format!("key-{n}")).unwrap()
}

pub fn rate(limit: u32, period: u64) -> Rate {
    Rate {
        limit: NonZeroU32::new(limit).unwrap(),
        period: NonZeroU64::new(period).unwrap(),
        window: WindowKind::Sliding,
    }
}

/// Windows with edges at multiples of `period`.
pub fn fixed(limit: u32, period: u64) -> Rate {
    Rate {
        window: WindowKind::Fixed,
        ..rate(limit, period)
    }
}

/// The calendar's days where one begins at [`T`].
pub fn daily(limit: u32) -> Rate {
    let zone = Zone::new("America/Los_Angeles").unwrap();
    Rate {
        window: WindowKind::Calendar(Unit::Day, zone),
        ..rate(limit, DAY)
    }
}

pub fn throttle(limit: u32, period: u64, burst: u32) -> Throttle {
    let number = |n| NonZeroU32::new(n).unwrap();
    Throttle {
        limit: number(limit),
        period: NonZeroU64::new(period).unwrap(),
        burst: number(burst),
        measure: Measure::Start,
    }
}

pub fn limits(
    concurrency: Option<u32>,
    rates: &[(u32, u64)],
    spaced: Option<(u32, u64, u32)>,
) -> Limits {
    Limits {
        concurrency,
        rates: rates
            .iter()
            .map(|(limit, period)| rate(*limit, *period))
            .collect(),
        throttle: spaced.map(|(limit, period, burst)| throttle(limit, period, burst)),
    }
}

pub fn limited(key: &str, limits: Limits) -> Limited {
    Limited {
        space: Space::Job,
        key: Key::new(key).unwrap(),
        limits,
        on_limit: OnLimit::Wait,
        policy: Arc::from("test"),
        cost: Default::default(),
        share: None,
    }
}

/// Limits as policies have them: few periods, few numbers.
pub fn any_limits() -> impl Strategy<Value = Limits> {
    let kinds = vec![
        rate(1, 50_000),
        rate(1, 200_000),
        rate(1, 1_000_000),
        fixed(1, 200_000),
        fixed(1, 1_000_000),
        daily(1),
    ];
    let one = (1..5_u32, prop::sample::select(kinds)).prop_map(|(limit, kind)| Rate {
        limit: NonZeroU32::new(limit).unwrap(),
        ..kind
    });
    let rates = prop::collection::vec(one, 0..3);
    let spaced = (
        prop::sample::select(vec![1_u32, 3, 10, 700, 1_000]),
        prop::sample::select(vec![100_000_u64, 1_000_000]),
        1..4_u32,
        prop::bool::weighted(0.3),
    );
    let spaced = spaced.prop_map(|(limit, period, burst, completion)| Throttle {
        measure: if completion {
            Measure::Completion
        } else {
            Measure::Start
        },
        ..throttle(limit, period, burst)
    });
    (
        prop::option::weighted(0.5, 0..4_u32),
        rates,
        prop::option::weighted(0.5, spaced),
    )
        .prop_map(|(concurrency, rates, throttle)| Limits {
            concurrency,
            rates,
            throttle,
        })
}

/// One of `keys` keys, in either space, with any numbers.
pub fn limited_by(keys: u8) -> impl Strategy<Value = Limited> {
    let actions = prop::sample::select(vec![OnLimit::Wait, OnLimit::Reschedule, OnLimit::Drop]);
    (0..keys, prop::bool::weighted(0.2), any_limits(), actions).prop_map(
        |(which, queue, limits, on_limit)| Limited {
            space: if queue { Space::Queue } else { Space::Job },
            key: key(which),
            limits,
            on_limit,
            policy: Arc::from("test"),
            cost: Default::default(),
            share: None,
        },
    )
}

/// A few jobs, each with what limits it.
pub fn jobs(keys: u8) -> impl Strategy<Value = Vec<Vec<Limited>>> {
    prop::collection::vec(prop::collection::vec(limited_by(keys), 1..3), 1..4)
}

/// Times around which something changes, and others.
pub fn wait() -> impl Strategy<Value = u64> {
    prop_oneof![
        prop::sample::select(vec![
            0,
            1,
            EARLY - 1,
            EARLY,
            EARLY + 1,
            50_000,
            55_000,
            99_999,
            100_000,
            205_000,
            1_005_000
        ]),
        0..2_000_u64,
        0..400_000_u64,
        // Now and then to where the calendar's day ends.
        (0..12_u32, 0..20_000_u64).prop_map(|(seldom, less)| if seldom == 0 {
            DAY - less
        } else {
            less
        }),
    ]
}

/// One set of numbers for each key, to look at all that is kept.
pub fn probes() -> Vec<Limited> {
    let each = |which: u8, space| Limited {
        space,
        key: key(which),
        limits: Limits {
            rates: vec![
                rate(3, 50_000),
                rate(3, 200_000),
                rate(3, 1_000_000),
                fixed(3, 200_000),
                fixed(3, 1_000_000),
                daily(3),
            ],
            ..limits(Some(2), &[], Some((10, 1_000_000, 2)))
        },
        on_limit: OnLimit::Wait,
        policy: Arc::from("test"),
        cost: Default::default(),
        share: None,
    };
    (0..3)
        .flat_map(|which| [each(which, Space::Job), each(which, Space::Queue)])
        .collect()
}
