//! `ojs-throttle demo tokens`: programs without jobs call a model. The vendor bans whoever uses more tokens than it
//! allows, and nobody knows what a call uses before it ends. There is no backend. Judged from the vendor's record.

use super::egress::vendor_verdict;
use super::records::VendorRecord;
use super::scene::{Enforcement, SECOND, SceneData, SceneNow, bar};

/// The tokens that the vendor allows.
const ALLOWED: u64 = 10_000;
const CALLERS: u64 = 16;
/// So much of them must be used, in hundredths. What calls have reserved and do not use is free again when they end.
const USED: u128 = 85;

const EGRESS: &str = r#"
[[egress]]
name = "model"
listen = "127.0.0.1:0"
upstream = "http://{vendor}"
max_wait = "30s"

[[egress.budget]]
name = "tokens"
cost = { use = "tokens", max = 1500 }
rate = { limit = {limit}, period = "2s" }
"#;

pub(super) fn scene(egress: Enforcement) -> SceneData {
    let (way, limit) = match egress {
        Enforcement::On => ("whose budget is the same", ALLOWED),
        Enforcement::Off => ("whose budget nobody reaches", 1_000_000_000),
    };
    SceneData {
        intro: format!(
            "A vendor allows {ALLOWED} tokens in any {:?}, and bans whoever uses more. {CALLERS} programs call its model\n\
             again and again, through an egress {way}. Each call says how many tokens\n\
             its answer may have, and uses half of them. There is no backend, and there are no jobs.\n",
            VendorRecord::PERIOD,
        ),
        config: EGRESS.replace("{limit}", &limit.to_string()),
        streams: &[],
        workers: &[],
        vendor_allows: ALLOWED,
        callers: CALLERS,
        step: SECOND,
        line,
        verdict: |seen, _| vendor_verdict(seen, USED),
        unbroken: "nobody was banned although the budget is not reached",
    }
}

fn line(seen: &SceneNow<'_>) -> String {
    let (second, vendor) = (seen.second(), &seen.pages.vendor);
    let (calls, lately) = (vendor.answered.len(), vendor.lately(seen.now));
    let bar = bar(lately, ALLOWED);
    match vendor.banned {
        None => {
            format!("{second:4} s  {calls:5} calls  {bar} {lately:6} tokens of {ALLOWED} lately")
        }
        Some(_) => format!("{second:4} s  BANNED, {} calls refused", vendor.refused),
    }
}
