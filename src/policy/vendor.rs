//! What the headers of a vendor's answer say of its limits: of the vendors in [`VENDORS`] as their own documents have it,
//! of others as it is usual. The manual's chapter `egress` has both in tables.

use std::borrow::Cow;
use std::time::UNIX_EPOCH;

use jiff::SignedDuration;

use ojs_duration as duration;
use ojs_limit::Timestamp;

const SECOND: u64 = 1_000_000;

/// What is known of the answers of one vendor.
#[derive(PartialEq, Eq, Debug)]
pub struct Vendor {
    /// As `egress.vendor` has it.
    pub name: &'static str,
    /// The hosts of its API; `*.` stands for some labels.
    pub hosts: &'static [&'static str],
    /// What is read of its answers, for the manual.
    pub means: &'static str,
    /// The budgets of which its headers tell, as they stand behind `x-ratelimit-reset`, or as Anthropic has them; `None`:
    /// any, and numbers that lack are guessed.
    budgets: Option<&'static [&'static str]>,
    /// How long its 429 without a time lasts at least, in microseconds.
    least: u64,
    /// The header with the reason of its 429, and the reasons that are about all calls; what has another reason, or none,
    /// says nothing of others.
    reasons: Option<(&'static str, &'static [&'static str])>,
    /// Whether its limits of tokens count what a call may use from its start on, and not what it has used.
    pub counts_at_start: bool,
}

/// A vendor of which nothing is known.
pub(super) const GENERIC: Vendor = Vendor {
    name: "generic",
    hosts: &[],
    means: "The headers of the table above. What they leave out is guessed, as said above.",
    budgets: None,
    least: 0,
    reasons: None,
    counts_at_start: false,
};

/// The vendors that are known. Their documents and SDKs were read in November 2026.
pub static VENDORS: [Vendor; 7] = [
    // Guide "Rate limits": x-ratelimit-{limit,remaining,reset}-{requests,tokens}, and `reset` is the time until the limit is
    // back at its initial state: a bucket. SDK openai 3.57.0, `_base_client.py`: Retry-After-Ms, then Retry-After.
    Vendor {
        name: "openai",
        hosts: &["api.openai.com", "*.api.openai.com"],
        means: "`Retry-After-Ms`, `Retry-After`, and the bucket of `x-ratelimit-…-requests`. It is read only if limit, remaining and reset are all there. That of tokens counts at a 429 alone.",
        budgets: Some(&["-requests", "-tokens"]),
        counts_at_start: true,
        ..GENERIC
    },
    // API reference "Rate limits": anthropic-ratelimit-{requests,tokens,input-tokens,output-tokens}-{limit,remaining,reset};
    // `reset` is when the limit "will be fully replenished", and tokens left are rounded to thousands. "Errors": 529 is
    // overload. SDK anthropic 2.14.0, `_base_client.py`: Retry-After-Ms, then Retry-After.
    Vendor {
        name: "anthropic",
        hosts: &["api.anthropic.com"],
        means: "As OpenAI, with headers such as `anthropic-ratelimit-requests-reset`. Budgets of tokens are three: `tokens`, `input-tokens` and `output-tokens`.",
        budgets: Some(&["requests", "tokens", "input-tokens", "output-tokens"]),
        ..GENERIC
    },
    // REST API "Rate limits": 403 or 429 with x-ratelimit-remaining 0 until x-ratelimit-reset, of x-ratelimit-resource; or
    // with Retry-After; "otherwise, wait for at least one minute". So does @octokit/plugin-throttling 11.0.5.
    Vendor {
        name: "github",
        hosts: &["api.github.com"],
        means: "`Retry-After`, and `x-ratelimit-reset` where `x-ratelimit-remaining` is 0. A part other than `core` shuts only a key that names it. A 429 without a time shuts the key for a minute at least.",
        budgets: Some(&[""]),
        least: 60 * SECOND,
        ..GENERIC
    },
    // "Rate limits": a reason, and no time. Endpoints have limits of their own, objects too (`resource-specific`), and a 429
    // without a reason is a lock (`lock_timeout`). SDK stripe 16.1.0 reads no time either.
    Vendor {
        name: "stripe",
        hosts: &["api.stripe.com", "files.stripe.com"],
        means: "It says no time. A 429 shuts the key if `Stripe-Rate-Limited-Reason` is `global-rate` or `global-concurrency`. Other reasons, and a 429 without one, are about an endpoint, an object or a lock: they shut nothing.",
        budgets: Some(&[]),
        reasons: Some((
            "stripe-rate-limited-reason",
            &["global-rate", "global-concurrency"],
        )),
        ..GENERIC
    },
    // "Rate limits": 429 with Retry-After in seconds, for a method and a workspace. SDK slack_sdk 3.48.0,
    // `http_retry/builtin_handlers.py`.
    Vendor {
        name: "slack",
        hosts: &["slack.com", "www.slack.com"],
        means: "`Retry-After`. It is about one method: give each a key of its own, with `{path.1}`.",
        budgets: Some(&[]),
        ..GENERIC
    },
    // "REST Admin API rate limits": 429 with Retry-After in seconds, with a fraction. X-Shopify-Shop-Api-Call-Limit has no
    // time. SDK @shopify/shopify-api 13.1.0, `clients/common`.
    Vendor {
        name: "shopify",
        hosts: &["*.myshopify.com"],
        means: "`Retry-After`. `X-Shopify-Shop-Api-Call-Limit` tells no time, and is not read.",
        budgets: Some(&[]),
        ..GENERIC
    },
    GENERIC,
];

impl Vendor {
    /// The vendor whose API has this host.
    pub fn of_host(host: &str) -> &'static Vendor {
        let is_host = |of: &&str| match of.strip_prefix('*') {
            Some(end) => host.len() > end.len() && host.ends_with(end),
            None => host == *of,
        };
        let [known @ .., generic] = &VENDORS;
        let mut known = known.iter();
        known
            .find(|vendor| vendor.hosts.iter().any(is_host))
            .unwrap_or(generic)
    }

    /// How long its 429 without a time shuts a key at least, in microseconds; `None`: it may be about one endpoint, and shuts
    /// none.
    pub fn unnamed_pause(&self) -> Option<u64> {
        self.reasons.is_none().then_some(self.least)
    }

    /// Whether it sends such a header and means what it says.
    fn reads(&self, line: &VendorLine) -> bool {
        match line {
            VendorLine::RetryAfter | VendorLine::RetryAfterMs => true,
            VendorLine::RateLimit => self.budgets.is_none(),
            VendorLine::Part => self.budgets.is_none_or(|known| known.contains(&"")),
            VendorLine::Reason => self.reasons.is_some(),
            VendorLine::Limit(of) | VendorLine::Remaining(of) | VendorLine::Reset(of) => {
                self.budgets.is_none_or(|known| known.contains(&&**of))
            }
        }
    }
}

/// What one header tells. A vendor with several budgets names each behind its headers: `x-ratelimit-reset-tokens`.
#[derive(PartialEq, Eq, Debug)]
enum VendorLine {
    RetryAfter,
    RetryAfterMs,
    /// The field `RateLimit` (draft-ietf-httpapi-ratelimit-headers).
    RateLimit,
    Limit(String),
    Remaining(String),
    Reset(String),
    /// The part of the vendor that the budget is for.
    Part,
    /// Why a call was refused.
    Reason,
}

impl VendorLine {
    /// Any case; `None`: it says nothing of limits.
    fn of(name: &str) -> Option<VendorLine> {
        let name = name.to_ascii_lowercase();
        let mut reasons = VENDORS.iter().filter_map(|vendor| vendor.reasons);
        if reasons.any(|(of, _)| of == name) {
            return Some(VendorLine::Reason);
        }
        if let Some(told) = name.strip_prefix("anthropic-ratelimit-") {
            let (budget, kind) = told.rsplit_once('-')?;
            let budget = budget.to_owned();
            return match kind {
                "limit" => Some(VendorLine::Limit(budget)),
                "remaining" => Some(VendorLine::Remaining(budget)),
                "reset" => Some(VendorLine::Reset(budget)),
                _ => None,
            };
        }
        let name = name.strip_prefix("x-").unwrap_or(&name);
        let of_limit = ["ratelimit", "rate-limit"].into_iter();
        let told = match of_limit.filter_map(|begin| name.strip_prefix(begin)).next() {
            Some("") => return Some(VendorLine::RateLimit),
            Some(told) => told.strip_prefix('-')?,
            None => name,
        };
        let of_budget = |kind: &str| {
            let budget = told.strip_prefix(kind)?;
            (budget.is_empty() || budget.starts_with('-')).then(|| budget.to_owned())
        };
        match told {
            "retry-after" => Some(VendorLine::RetryAfter),
            "retry-after-ms" => Some(VendorLine::RetryAfterMs),
            _ if told == name => None,
            "reset-after" => Some(VendorLine::Reset(String::new())),
            "resource" | "bucket" => Some(VendorLine::Part),
            _ => of_budget("reset")
                .map(VendorLine::Reset)
                .or_else(|| of_budget("remaining").map(VendorLine::Remaining))
                .or_else(|| of_budget("limit").map(VendorLine::Limit)),
        }
    }
}

/// Whether a header by this name may say something of limits, in small letters. `Retry-After` alone means something
/// else in an answer that is a success.
pub fn tells_of_limits(name: &str) -> bool {
    let mut begins = ["x-", "anthropic-"].into_iter();
    let rest = begins.find_map(|begin| name.strip_prefix(begin));
    rest.unwrap_or(name).starts_with("rate")
}

/// When a service takes a call again that it has not carried out, as these lines of its answer say.
pub fn back_at<'h>(
    vendor: Option<&'static Vendor>,
    (status, lines): (u16, impl Iterator<Item = (&'h str, &'h str)>),
    now: Timestamp,
    most: u64,
) -> Option<Timestamp> {
    let head = VendorHead::read(
        vendor?,
        lines.map(|(name, value)| (name, Cow::Borrowed(value))),
    );
    let told = head.retry_after(now).max(head.spent(now, status, most));
    told.filter(|at| *at > now)
}

/// The headers of one answer that tell of limits.
#[derive(Debug)]
pub(super) struct VendorHead<'h> {
    vendor: &'static Vendor,
    lines: Vec<(VendorLine, Cow<'h, str>)>,
}

impl<'h> VendorHead<'h> {
    /// All lines of an answer's head, in their order.
    pub(super) fn read<N: AsRef<str>>(
        vendor: &'static Vendor,
        lines: impl Iterator<Item = (N, Cow<'h, str>)>,
    ) -> VendorHead<'h> {
        let told = lines.filter_map(|(name, value)| Some((VendorLine::of(name.as_ref())?, value)));
        let lines = told.filter(|(line, _)| vendor.reads(line)).collect();
        VendorHead { vendor, lines }
    }

    /// Whether a 429 is about the calls of one endpoint or object, and says nothing of others.
    pub(super) fn is_of_few(&self) -> bool {
        let of_all = self.vendor.reasons.map(|(_, of_all)| of_all);
        let said = || self.values(&VendorLine::Reason).next();
        of_all.is_some_and(|of_all| !said().is_some_and(|said| of_all.contains(&said)))
    }

    /// How long a 429 without a time lasts at least, in microseconds.
    pub(super) fn least(&self) -> u64 {
        self.vendor.least
    }

    fn values<'a>(&'a self, of: &'a VendorLine) -> impl Iterator<Item = &'a str> {
        let lines = self.lines.iter().filter(move |(line, _)| line == of);
        lines.map(|(_, value)| value.trim())
    }

    /// Whether its budget is for one part of the vendor that is none of this key's: `core` is GitHub's word for the
    /// rest, and a key may have the name of a part in it. `/search/code` has the part `code_search`.
    pub(super) fn is_of_another_part(&self, key: &str) -> bool {
        let has = |word: &str| key.split(':').any(|of_key| of_key == word);
        let mut parts = self.values(&VendorLine::Part);
        parts.any(|part| part != "core" && !has(part) && !part.split('_').all(has))
    }

    /// When `Retry-After` lets callers come back: the latest that is told.
    pub(super) fn retry_after(&self, now: Timestamp) -> Option<Timestamp> {
        let told = self.values(&VendorLine::RetryAfter);
        let told = told.filter_map(|text| moment(text, now)).max();
        let exact = self.values(&VendorLine::RetryAfterMs);
        let exact = exact.filter_map(|text| Some(now.plus((number(text)? * 1e3) as u64)));
        let exact = exact.max();
        // Whole seconds are the milliseconds, rounded.
        let is_same = |(told, exact): (Timestamp, Timestamp)| told.0.abs_diff(exact.0) < 1_000_000;
        match told.zip(exact).is_some_and(is_same) {
            true => exact,
            false => told.max(exact),
        }
    }

    /// When the last budget of which nothing is left has room again. An answer of 429 says that one is spent, so times count
    /// that stand alone, where nothing better is known. With a bucket of tokens the pause is no longer than `most` then: it says when it
    /// will be full, and nobody knows how much the next call wants.
    pub(super) fn spent(&self, now: Timestamp, status: u16, most: u64) -> Option<Timestamp> {
        let (refused, is_guessed) = (status == 429, self.vendor.budgets.is_none());
        let resets = self.lines.iter().filter_map(|(line, text)| match line {
            VendorLine::Reset(budget) => Some((budget, moment(text.trim(), now)?)),
            _ => None,
        });
        let resets: Vec<(&String, Timestamp)> = resets.collect();
        let of_budgets = resets
            .iter()
            .enumerate()
            .filter_map(|(nth, (budget, reset))| {
                let before = resets.iter().take(nth).filter(|(other, _)| other == budget);
                let nth = before.count();
                let Some(left) = self.number(&VendorLine::Remaining(budget.to_string()), nth)
                else {
                    return (refused && is_guessed).then_some(*reset);
                };
                if left > 0.0 {
                    return None;
                }
                let limit = self.number(&VendorLine::Limit(budget.to_string()), nth);
                let wait = reset.since(now);
                match limit.filter(|limit| *limit >= 1.0) {
                    Some(limit) if budget.contains("request") => {
                        Some(now.plus((wait as f64 / limit).ceil() as u64))
                    }
                    Some(_) if budget.contains("token") => {
                        (refused && wait <= most).then_some(*reset)
                    }
                    // A window; or a bucket of which the size is not told.
                    _ => (is_guessed || budget.is_empty()).then_some(*reset),
                }
            });
        of_budgets.chain(self.rate_limit(now)).max()
    }

    /// Whether nothing is left of some budget.
    pub(super) fn is_spent(&self) -> bool {
        let lines = self.lines.iter();
        let mut left = lines.filter(|(line, _)| matches!(line, VendorLine::Remaining(_)));
        left.any(|(_, text)| number(text.trim()) == Some(0.0))
    }

    /// The number in the nth line of this kind, else in the last.
    fn number(&self, of: &VendorLine, nth: usize) -> Option<f64> {
        let values: Vec<&str> = self.values(of).collect();
        number(values.get(nth).or(values.last())?)
    }

    /// `RateLimit`: `"name";r=0;t=12`, several with commas between, or as in earlier drafts
    /// `limit=100, remaining=0, reset=12`. All its lines are one list.
    fn rate_limit(&self, now: Timestamp) -> Option<Timestamp> {
        let lines: Vec<&str> = self.values(&VendorLine::RateLimit).collect();
        let whole = lines.join(",");
        let parameter = |members: &str, between: char, names: [&str; 2]| {
            unquoted(members, between).find_map(|member| {
                let (name, value) = member.split_once('=')?;
                names.contains(&name.trim()).then(|| number(value.trim()))?
            })
        };
        let wait = |members: &str, between: char| {
            let left = parameter(members, between, ["r", "remaining"])?;
            let reset = parameter(members, between, ["t", "reset"])?;
            (left == 0.0).then(|| now.plus((reset * 1e6) as u64))
        };
        let items = unquoted(&whole, ',').filter_map(|item| wait(item, ';'));
        items.max().or_else(|| wait(&whole, ','))
    }
}

/// Splits at each of these letters that stands in no quoted string (RFC 9651, 3.3.3).
fn unquoted(text: &str, between: char) -> impl Iterator<Item = &str> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    text.split(move |letter| {
        let was_escaped = std::mem::replace(&mut is_escaped, false);
        match letter {
            '"' if !was_escaped => is_quoted = !is_quoted,
            '\\' => is_escaped = is_quoted && !was_escaped,
            _ => {}
        }
        letter == between && !is_quoted
    })
}

/// A date of HTTP (RFC 9110, 5.6.7).
pub(super) fn date(text: &str) -> Option<Timestamp> {
    let date = httpdate::parse_http_date(text).ok()?;
    let since = date.duration_since(UNIX_EPOCH).ok()?;
    u64::try_from(since.as_micros()).ok().map(Timestamp)
}

/// A number from 0. One that is too large for a float is infinite, and clamped like any other.
fn number(text: &str) -> Option<f64> {
    let begins = text.starts_with(|first: char| first.is_ascii_digit() || first == '.');
    begins.then(|| text.parse().ok())?
}

/// Microseconds of a number of seconds, whole or not; none is no wait.
pub(super) fn seconds(text: &str) -> Option<u64> {
    let seconds = number(text.trim())?;
    (seconds > 0.0).then_some((seconds * 1e6) as u64)
}

/// A time in one of the forms that vendors send: seconds from now, seconds or milliseconds since 1970, RFC 3339, the
/// date of HTTP (RFC 9110, 5.6.7), or a duration such as `6m0s`.
fn moment(text: &str, now: Timestamp) -> Option<Timestamp> {
    if let Some(number) = number(text) {
        return match number {
            0.0 => None,
            ..1e9 => Some(now.plus((number * 1e6) as u64)),
            ..1e11 => Some(Timestamp((number * 1e6) as u64)),
            ..1e14 => Some(Timestamp((number * 1e3) as u64)),
            _ => Some(Timestamp::NEVER),
        };
    }
    if let Some(micros) = duration::moment(text) {
        return Some(Timestamp(micros));
    }
    if let Some(date) = date(text) {
        return Some(date);
    }
    let wait: SignedDuration = text.parse().ok()?;
    Some(now.plus(u64::try_from(wait.as_micros()).ok()?))
}
