//! `ojs-throttle demo egress`: each job makes three calls to a vendor that bans whoever makes too many. Through the
//! egress nearly all that the vendor allows is used, and nobody is banned. Judged from the vendor's record.

use std::time::Duration;

use super::records::VendorRecord;
use super::scene::{
    Enforcement, JobStream, SECOND, SceneData, SceneFinding, SceneNow, SceneVerdict, Workers,
};

/// The calls that the vendor allows.
const ALLOWED: u64 = 100;
/// So much of what the vendor allows must be used, in hundredths.
const USED: u128 = 95;

const STREAMS: [JobStream; 1] = [JobStream {
    name: "vendor",
    kind: "payment.charge",
    batch: 10,
    backlog: 20,
    calls: 3,
    ..JobStream::PLAIN
}];

const WORKERS: [Workers; 1] = [Workers {
    queue: JobStream::PLAIN.queue,
    workers: 8,
    slots: 1,
    poll: Duration::from_millis(20),
}];

/// A little less than the vendor allows: the way to it does not always take as long. With two in a burst, a start that is
/// late is made up for.
const POLICY: &str = r#"
[[policy]]
name = "vendor"
match = { type = "payment.*" }
throttle = { limit = 97, period = "2s", burst = 2 }
"#;

const EGRESS: &str = r#"counts = "calls"

[[egress]]
name = "calls"
key = "vendor"
listen = "127.0.0.1:0"
upstream = "http://{vendor}"
"#;

pub(super) fn scene(egress: Enforcement) -> SceneData {
    let (way, calls) = match egress {
        Enforcement::On => ("through the egress", EGRESS),
        Enforcement::Off => ("straight to the vendor", ""),
    };
    SceneData {
        intro: format!(
            "A vendor allows {ALLOWED} calls in any {:?}, and bans whoever makes more. 8 workers run jobs, and each job\n\
             makes 3 calls, {way}.\n",
            VendorRecord::PERIOD,
        ),
        config: format!("{POLICY}{calls}"),
        streams: &STREAMS,
        workers: &WORKERS,
        vendor_allows: ALLOWED,
        callers: 0,
        step: SECOND,
        line,
        verdict: |seen, _| vendor_verdict(seen, USED),
        unbroken: "nobody was banned although calls went straight to the vendor",
    }
}

fn line(seen: &SceneNow<'_>) -> String {
    let (second, vendor) = (seen.second(), &seen.pages.vendor);
    let (calls, lately) = (vendor.answered.len(), vendor.lately(seen.now));
    match vendor.banned {
        None => format!("{second:4} s  {calls:6} calls, {lately:3} of {ALLOWED} lately"),
        Some(_) => format!("{second:4} s  BANNED, {} calls refused", vendor.refused),
    }
}

/// Whether nobody was banned, and at least so many hundredths of what the vendor allows were used.
pub(super) fn vendor_verdict(seen: &SceneNow<'_>, least: u128) -> SceneVerdict {
    let vendor = &seen.pages.vendor;
    let when = match vendor.banned {
        None => format!("{} calls answered", vendor.answered.len()),
        Some(at) => format!("banned after {:.1} s", at.as_secs_f64()),
    };
    let free = SceneFinding::new("nobody was banned", vendor.banned.is_none(), when);
    let used = vendor.used();
    let seen_used = format_args!("{used} %");
    let others = vec![
        SceneFinding::new("what is allowed was used", used >= least, seen_used),
        SceneFinding::no_call_failed(seen.pages),
    ];
    SceneVerdict::of("vendor's own record", vec![free], others)
}

#[cfg(test)]
mod tests {
    use super::super::records::Pages;
    use super::*;

    /// The records of a run whose vendor is called so often, each so many microseconds.
    fn called(calls: u64, each: u64, failed: usize) -> Pages {
        let mut pages = Pages::default();
        pages.vendor.allowed = ALLOWED;
        for nth in 0..calls {
            pages.vendor.call(Duration::from_micros(nth * each), 1);
        }
        pages.failed = failed;
        pages
    }

    #[test]
    fn each_fault_is_seen_alone() {
        let good = called(500, 20_500, 0);
        let found = vendor_verdict(&SceneNow::of(&good, &[]), USED);
        assert!(found.good && found.limits_held, "{}", found.text);
        for (pages, wrong) in [
            (
                called(500, 19_900, 0),
                "banned         NO  (banned after 2.0 s)",
            ),
            (called(500, 21_300, 0), "was used  NO  (93 %)"),
            (called(500, 20_500, 1), "failed            NO  (1)"),
        ] {
            let found = vendor_verdict(&SceneNow::of(&pages, &[]), USED);
            let text = &found.text;
            assert!(!found.good && text.matches("NO").count() == 1, "{text}");
            assert!(text.contains(wrong), "{text}");
        }
    }
}
