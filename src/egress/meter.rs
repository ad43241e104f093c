//! What a call pays to its budgets before anybody knows, and what its answer says that it used.

use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use http::header::{self, HeaderMap};
use http::request::Parts;
use http::{StatusCode, Uri};
use std::num::NonZeroU32;

use crate::answers::respond::Fault;
use crate::config::Budget;
use crate::config::budget::{NumberPlace, TokenPrices, Tokens, UseSource};
use crate::json::{Framing, Json, JsonError, Kind, Reader, Scanner};
use crate::limit::{Cost, Key, Limited, Space};
use crate::policy::json_path;
use crate::store::Used;
use crate::told::metrics::Settlement;
use crate::wire::ojs::DEPTH;
use crate::wire::upstream::{RequestLeft, is_packed};

use super::key::{ReadBody, key_of};

/// Where models tell of tokens: the first that is there says it. Then, which model it is, why a stream ended early, and
/// which event of a stream this is.
const TOLD: [&str; KIND + 1] = [
    "usage.prompt_tokens",
    "usage.input_tokens",
    "usage.completion_tokens",
    "usage.output_tokens",
    "usage.total_tokens",
    "usage.prompt_tokens_details.cached_tokens",
    "usage.input_tokens_details.cached_tokens",
    "usage.cache_read_input_tokens",
    "usage.cache_creation_input_tokens",
    "model",
    "error.type",
    "type",
];
const MODEL: usize = 9;
/// Where a service says that it failed. In a stream it has succeeded before that.
const ERROR: usize = 10;
const KIND: usize = 11;
/// The longest name of a model, in bytes.
const LONGEST: usize = 256;
/// Where a call says how much a model may write.
const MAY_WRITE: [&str; 3] = ["max_completion_tokens", "max_tokens", "max_output_tokens"];
/// What a model may write if the call does not say.
const WRITES: u64 = 4_096;
/// What a picture counts that stands in a call: more than most do.
const PICTURE: u64 = 1_500;
/// Within so many bytes a `data:` text has said its type.
const MOST_TYPE: usize = 100;
/// What stands elsewhere and is read by the model: nobody here knows how much that is.
const ELSEWHERE: [&str; 3] = ["previous_response_id", "conversation", "prompt"];

/// What a call pays to one budget.
#[derive(Clone, Debug)]
pub(super) struct Charged {
    pub(super) budget: Arc<Budget>,
    /// The key under which it pays.
    pub(super) key: Key,
    pays: NonZeroU32,
    /// The model that it names, where that could be read and money is counted.
    model: Option<Box<str>>,
}

impl Charged {
    /// What this call pays to a budget.
    ///
    /// # Errors
    /// Its key cannot be read, or in two ways.
    pub(super) fn of(
        budget: &Arc<Budget>,
        parts: &Parts,
        said: &ReadBody<'_>,
    ) -> Result<Charged, Fault> {
        let body = said.json().filter(|_| budget.currency.is_some());
        let model = body.and_then(|body| body.text_of("model"));
        let model = model.filter(|model| model.len() <= LONGEST);
        let prices = model.as_deref().and_then(|model| prices(budget, model));
        let estimate = estimate(budget, prices, parts, said);
        let pays = estimate.map_or(budget.max, |units| capped(units, budget.max));
        Ok(Charged {
            budget: Arc::clone(budget),
            key: key_of(&budget.key, parts, said)?,
            pays,
            model: model.map(Box::from),
        })
    }

    /// As a limit of the call.
    pub(super) fn limited(&self, live: &[Arc<Budget>]) -> Limited {
        let own = &self.budget;
        // Since the call came its numbers may have changed.
        let mut same = live.iter().filter(|of| of.name == own.name);
        let now =
            same.find(|of| of.key.as_str() == own.key.as_str() && of.currency == own.currency);
        let limits = now.unwrap_or(own).limits.clone();
        let name = Arc::clone(&own.name);
        let cost = Cost {
            pays: self.pays,
            ..Cost::of(Arc::clone(&self.budget.rule))
        };
        Limited {
            cost,
            ..Limited::new(Space::Job, self.key.clone(), limits, name)
        }
    }

    /// Whether an answer can say that the call used less.
    pub(super) fn settles(&self) -> bool {
        self.budget.settle.is_some()
    }

    /// What an answer says that the call used, in units.
    fn used(&self, answer: &MeteredAnswer) -> Option<u64> {
        match self.budget.settle.as_ref()? {
            UseSource::At(NumberPlace::Header(name)) => {
                let told = answer.told.iter().find(|(of, _)| of == name);
                told.map(|(_, units)| *units)
            }
            UseSource::At(NumberPlace::Json(path)) => answer.found(path),
            UseSource::Tokens(which) => Some(answer.tokens()?.of(*which)),
            UseSource::Money(_) => {
                let currency = self.budget.currency.as_ref()?;
                let cost = answer.tokens()?.cost(&self.prices(answer)?);
                Some(currency.units_of(cost))
            }
        }
    }

    /// The model that the call names, or else its answer.
    fn model<'m>(&'m self, answer: &'m MeteredAnswer) -> Option<&'m str> {
        self.model.as_deref().or_else(|| answer.model())
    }

    /// What its model costs.
    fn prices(&self, answer: &MeteredAnswer) -> Option<TokenPrices> {
        prices(&self.budget, self.model(answer)?)
    }

    /// Why what was paid stays, though the service has done the call.
    fn kept(&self, answer: &MeteredAnswer) -> Settlement {
        match self.model(answer) {
            _ if self.budget.currency.is_none() => Settlement::Kept,
            Some(_) if self.prices(answer).is_none() => Settlement::Unpriced,
            None if answer.tokens().is_some() => Settlement::Unnamed,
            _ => Settlement::Kept,
        }
    }

    /// What counts in place of what was paid; `None`: that stays.
    fn settled(&self, answer: &MeteredAnswer) -> (Option<u32>, Settlement) {
        let (paid, max) = (self.pays.get(), self.budget.max.get());
        let is_money = self.budget.currency.is_some();
        let free = |status: &StatusCode| match status.as_u16() {
            401 | 403 | 404 | 413 => true,
            // Nobody is billed for what was not begun; of tokens a vendor may count it.
            400 | 415 | 422 | 429 | 503 | 529 => is_money,
            _ => false,
        };
        let is_of_head = matches!(
            self.budget.settle,
            Some(UseSource::At(NumberPlace::Header(_)))
        );
        let used = self.used(answer);
        let used = used.map(|units| u32::try_from(units).unwrap_or(u32::MAX).min(max));
        let (used, how) = match used {
            _ if !answer.left.get() => (Some(0), Settlement::Free),
            // A part of an answer tells of a part of what was used, and its head of all.
            Some(used) if is_of_head || answer.is_complete() || used > paid => {
                (Some(used), Settlement::Told)
            }
            // Without a word of what is used, calls are what counts.
            None if !self.settles() => (None, Settlement::Kept),
            None if answer.status.as_ref().is_some_and(free) => (Some(0), Settlement::Free),
            _ => (None, self.kept(answer)),
        };
        let counts_now = self.budget.counts_at_end && answer.left.get();
        (used.or(counts_now.then_some(paid)), how)
    }
}

/// What a model costs: under its own name, or under that of which it is a version, such as `gpt-5-2025-08-07`.
fn prices(budget: &Budget, model: &str) -> Option<TokenPrices> {
    let Some(UseSource::Money(of)) = &budget.settle else {
        return None;
    };
    let is_version = |name: &str| {
        let version = model.strip_prefix(name).unwrap_or_default();
        let date = version.strip_prefix('-').unwrap_or_default();
        let is_date = |c: char| c.is_ascii_digit() || c == '-';
        date.find('-').unwrap_or(date.len()) >= 4 && date.chars().all(is_date)
    };
    let own = of.iter().find(|(name, _)| **name == *model);
    let own = own.or_else(|| of.iter().find(|(name, _)| is_version(name)));
    own.map(|(_, prices)| *prices)
}

/// The estimate of what a call uses; `None`: as much as any may.
fn estimate(
    budget: &Budget,
    prices: Option<TokenPrices>,
    parts: &Parts,
    said: &ReadBody<'_>,
) -> Option<u64> {
    let own = match &budget.estimate.from {
        Some(NumberPlace::Header(name)) => told(budget, &parts.headers, name),
        Some(NumberPlace::Json(_)) if matches!(said, ReadBody::Unread) => return None,
        Some(NumberPlace::Json(path)) => said.json().and_then(|body| number_at(body, path)),
        None => None,
    };
    if own.is_some() {
        return own;
    }
    let which = match budget.settle {
        Some(UseSource::Tokens(which)) => which,
        Some(UseSource::Money(_)) => Tokens::All,
        _ => return budget.estimate.default.map(|default| default.get().into()),
    };
    let ReadBody::Json(body, bytes) = said else {
        return None;
    };
    let may_use = may_use(*body, bytes, &parts.uri, budget)?;
    match (&budget.currency, prices) {
        (None, _) => Some(may_use.of(which)),
        (Some(currency), Some(prices)) => Some(currency.units_of(may_use.cost(&prices))),
        (Some(_), None) => None,
    }
}

/// The tokens that a call may use: a third of its bytes are read, and its own bound may be written. `None`: nobody here
/// knows how much it reads.
fn may_use(body: Json<'_>, bytes: &[u8], uri: &Uri, budget: &Budget) -> Option<UsedTokens> {
    let is_elsewhere = |name: &&str| {
        let value = body.get_exact(name).filter(|value| !value.is_null());
        // A prompt may be a text, which stands here.
        value.is_some_and(|value| *name != "prompt" || value.members().next().is_some())
    };
    if ELSEWHERE.iter().any(is_elsewhere) {
        return None;
    }
    let mut attached = Attached::default();
    let read = attached.read(&mut Reader::new(bytes, DEPTH));
    read.ok().filter(|_| !attached.is_unknown)?;
    let text = bytes.len().saturating_sub(attached.packed) as u64;
    let own = MAY_WRITE.iter().find_map(|name| number_at(body, name));
    let default = budget.estimate.default;
    let default = default.filter(|_| budget.currency.is_none());
    let written = own.unwrap_or_else(|| default.map_or(WRITES, |default| default.get().into()));
    let answers = ["n", "best_of"].map(|name| number_at(body, name));
    let answers = answers.into_iter().flatten().fold(1, u64::max);
    let writes = !uri.path().ends_with("/embeddings");
    Some(UsedTokens {
        input: (text * 3).div_ceil(10) + attached.pictures * PICTURE,
        output: Some(written.saturating_mul(answers))
            .filter(|_| writes)
            .unwrap_or(0),
        ..UsedTokens::default()
    })
}

/// What a body has beside words.
#[derive(Default)]
struct Attached {
    pictures: u64,
    /// How many of its bytes those are.
    packed: usize,
    /// Whether nobody here knows how much is read of something else.
    is_unknown: bool,
}

/// A value of a body, and of an object some of its members.
struct AttachedValue<'a> {
    whole: Json<'a>,
    kind: Option<Json<'a>>,
    media: Option<Json<'a>>,
    data: Option<Json<'a>>,
    url: Option<Json<'a>>,
}

impl Attached {
    /// Reads the next value, and adds what is in it. Each byte is looked at once, however deep it stands.
    fn read<'a>(&mut self, from: &mut Reader<'a>) -> Result<AttachedValue<'a>, JsonError> {
        let ([mut kind, mut media, mut data, mut url], mut source) = ([None; 4], None);
        let whole = match from.kind() {
            Kind::Array => from.items(|from| self.read(from).map(drop))?,
            Kind::Object => from.members(|name, from| {
                let value = self.read(from)?;
                let whole = value.whole;
                match name {
                    _ if name.is("type") => kind = Some(whole),
                    _ if name.is("media_type") => media = Some(whole),
                    _ if name.is("data") => data = Some(whole),
                    _ if name.is("url") => url = Some(whole),
                    _ if name.is("source") => source = Some(value),
                    _ if name.is("file_id") || name.is("file_url") => {
                        self.is_unknown |= whole.kind() == Kind::String;
                    }
                    _ if name.is("vector_store_ids") && !self.is_unknown => {
                        self.is_unknown = whole.items().next().is_some();
                    }
                    _ if name.is("image_url") => {
                        let is_link = begins_with(value.url.unwrap_or(whole), "http");
                        self.pictures += u64::from(is_link);
                    }
                    _ => {}
                }
                Ok(())
            })?,
            _ => from.value()?,
        };
        if begins_with(whole, "data:") && is_packed_text(whole) {
            self.add(begins_with(whole, "data:image"), whole);
        }
        if let Some(source) = source {
            self.add_source(&source, kind);
        }
        Ok(AttachedValue {
            whole,
            kind,
            media,
            data,
            url,
        })
    }

    /// Adds what is read from a source, as Anthropic writes it, of something of this kind.
    fn add_source(&mut self, source: &AttachedValue<'_>, of: Option<Json<'_>>) {
        if says(source.kind, "url") {
            let is_image = says(of, "image");
            self.pictures += u64::from(is_image);
            self.is_unknown |= !is_image;
        }
        if let Some(data) = source.data.filter(|_| says(source.kind, "base64")) {
            let media = source.media.and_then(|media| media.text());
            self.add(media.is_some_and(|media| media.starts_with("image/")), data);
        }
    }

    /// Adds what is packed in this text.
    fn add(&mut self, is_image: bool, text: Json<'_>) {
        self.pictures += u64::from(is_image);
        self.packed += text.raw().len().saturating_sub("\"\"".len());
        self.is_unknown |= !is_image;
    }
}

fn says(value: Option<Json<'_>>, word: &str) -> bool {
    value.and_then(|value| value.text()).as_deref() == Some(word)
}

/// Whether a value is a text that begins so, in letters of any case.
fn begins_with(value: Json<'_>, word: &str) -> bool {
    let text = value.raw().strip_prefix(b"\"").unwrap_or_default();
    let begins = text.get(..word.len());
    begins.is_some_and(|begins| begins.eq_ignore_ascii_case(word.as_bytes()))
}

/// Whether this `data:` text is packed. Words that begin so are read as words.
fn is_packed_text(value: Json<'_>) -> bool {
    let text = value.raw();
    let begins = text.get(..MOST_TYPE).unwrap_or(text);
    memchr::memmem::find(begins, b";base64,").is_some() && !text.contains(&b' ')
}

fn number_at(body: Json<'_>, path: &str) -> Option<u64> {
    let number = json_path::scalar(json_path::find(body, path)?)?;
    whole(&number)
}

/// A number from 0, rounded up.
fn whole(text: &str) -> Option<u64> {
    let number: f64 = text.trim().parse().ok()?;
    // A float that is too large becomes the largest number.
    (number >= 0.0).then(|| number.ceil() as u64)
}

/// A number in a header, or an amount where money is counted.
fn told(budget: &Budget, headers: &HeaderMap, name: &str) -> Option<u64> {
    let text = headers.get(name)?.to_str().ok()?;
    match &budget.currency {
        Some(currency) => currency.units(text).ok()?.try_into().ok(),
        None => whole(text),
    }
}

fn capped(units: u64, max: NonZeroU32) -> NonZeroU32 {
    let units = u32::try_from(units).ok().unwrap_or(u32::MAX);
    NonZeroU32::new(units).unwrap_or(NonZeroU32::MIN).min(max)
}

/// How many tokens were used.
#[derive(Clone, Copy, Default, Debug)]
struct UsedTokens {
    /// Read, and neither from a cache nor into one.
    input: u64,
    cached: u64,
    /// Whether those from the cache count as read, as far as limits go.
    cached_counts: bool,
    cache_write: u64,
    output: u64,
    total: Option<u64>,
    /// The sum, where it alone is told: all may have been read, or written.
    undivided: Option<u64>,
}

impl UsedTokens {
    fn of(&self, which: Tokens) -> u64 {
        if let Some(all) = self.undivided {
            return all;
        }
        let cached = if self.cached_counts { self.cached } else { 0 };
        let read = self
            .input
            .saturating_add(cached)
            .saturating_add(self.cache_write);
        match which {
            Tokens::Input => read,
            Tokens::Output => self.output,
            Tokens::All => self.total.unwrap_or(read.saturating_add(self.output)),
        }
    }

    /// In millionths of a millionth of a currency.
    fn cost(&self, prices: &TokenPrices) -> u128 {
        if let Some(all) = self.undivided {
            return u128::from(all) * u128::from(prices.input.max(prices.output));
        }
        let each = [
            (self.input, prices.input),
            (self.cached, prices.cached),
            (self.cache_write, prices.cache_write),
            (self.output, prices.output),
        ];
        let each = each.map(|(tokens, price)| u128::from(tokens) * u128::from(price));
        each.into_iter().fold(0, u128::saturating_add)
    }
}

/// Follows the answer of a call that pays to budgets.
#[derive(Debug)]
pub(super) struct Meter {
    charged: Arc<[Charged]>,
    answer: MeteredAnswer,
}

/// What is known of an answer.
#[derive(Debug)]
struct MeteredAnswer {
    /// Whether the service may have seen the call.
    left: RequestLeft,
    status: Option<StatusCode>,
    /// What its headers say, by their names.
    told: Vec<(Box<str>, u64)>,
    scanner: Option<Scanner>,
    /// Of the scanner.
    paths: Paths,
    is_whole: bool,
    /// The last of it, if it has events.
    tail: Option<Vec<u8>>,
}

/// The last events of vendors. Their SDKs hang up then, before the last chunk has come.
const LAST: [&str; 4] = [
    "message_stop",
    "response.completed",
    "response.incomplete",
    "response.failed",
];
/// So end streams whose events do not say what they are.
const DONE: [&[u8]; 2] = [b"\ndata: [DONE]", b"\ndata:[DONE]"];
/// Within so many bytes of its end one of [`DONE`] stands.
const TAIL: usize = 256;

type Paths = Arc<[Box<[Box<str>]>]>;

/// Those of models.
static OF_MODELS: LazyLock<Paths> = LazyLock::new(|| TOLD.iter().map(|path| names(path)).collect());

fn names(path: &str) -> Box<[Box<str>]> {
    path.split('.').map(Box::from).collect()
}

impl Meter {
    pub(super) fn new(charged: Arc<[Charged]>) -> Meter {
        let own = charged.iter().filter_map(|one| match &one.budget.settle {
            Some(UseSource::At(NumberPlace::Json(path))) => Some(names(path)),
            _ => None,
        });
        let own: Vec<_> = own.collect();
        let paths = match own.is_empty() {
            true => Arc::clone(&OF_MODELS),
            false => OF_MODELS.iter().cloned().chain(own).collect(),
        };
        let answer = MeteredAnswer {
            left: RequestLeft::default(),
            status: None,
            told: Vec::new(),
            scanner: None,
            paths,
            is_whole: false,
            tail: None,
        };
        Meter { charged, answer }
    }

    /// What the request of the call bears: whoever sends it says by this whether the service may see it.
    pub(super) fn leaves(&self) -> RequestLeft {
        self.answer.left.clone()
    }

    /// The head of the answer has come.
    pub(super) fn answered(&mut self, status: StatusCode, headers: &HeaderMap) {
        let answer = &mut self.answer;
        answer.status = Some(status);
        for one in &*self.charged {
            if let Some(UseSource::At(NumberPlace::Header(name))) = &one.budget.settle {
                let told = told(&one.budget, headers, name);
                answer.told.extend(told.map(|units| (name.clone(), units)));
            }
        }
        let kind = headers.get(header::CONTENT_TYPE);
        let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let kind = kind.split(';').next().unwrap_or_default();
        let framing = match &*kind.trim().to_ascii_lowercase() {
            "text/event-stream" => Some(Framing::Events),
            // Small servers do not say what they send. What is no JSON tells nothing.
            "" | "text/plain" => Some(Framing::Json),
            kind if kind.ends_with("json") => Some(Framing::Json),
            _ => None,
        };
        let framing = framing.filter(|_| !is_packed(headers));
        answer.tail = (framing == Some(Framing::Events)).then(Vec::new);
        answer.scanner = framing.map(|framing| Scanner::new(Arc::clone(&answer.paths), framing));
    }

    /// A part of the answer's body passes.
    pub(super) fn see(&mut self, part: &Bytes) {
        if let Some(scanner) = &mut self.answer.scanner {
            scanner.push(part);
        }
        if let Some(tail) = &mut self.answer.tail {
            let last = part.len().saturating_sub(TAIL);
            tail.extend_from_slice(part.get(last..).unwrap_or_default());
            tail.drain(..tail.len().saturating_sub(TAIL));
        }
    }

    /// The whole answer has passed.
    pub(super) fn ended(&mut self) {
        self.answer.is_whole = true;
    }

    /// Whether the service has done the call, and all of its answer has passed.
    pub(super) fn has_success(&self) -> bool {
        self.answer.has_ended() && self.answer.status.is_some_and(|of| of.is_success())
    }

    /// The model of a call that has ended, as far as it is known.
    pub(super) fn model_of<'m>(&'m self, of: &'m Charged) -> Option<&'m str> {
        of.model(&self.answer)
    }

    /// What counts in place of what was paid, each with how it differs.
    pub(super) fn settled(&self) -> impl Iterator<Item = (&Charged, Settlement, Option<Used>)> {
        self.charged.iter().map(|one| {
            let (amount, how) = one.settled(&self.answer);
            let used = amount.map(|amount| Used {
                space: Space::Job,
                key: one.key.clone(),
                amount,
                counts_now: one.budget.counts_at_end && self.answer.left.get(),
            });
            (one, how, used)
        })
    }
}

impl MeteredAnswer {
    fn found(&self, path: &str) -> Option<u64> {
        let mut known = self.paths.iter();
        let nth = known.position(|known| path.split('.').eq(known.iter().map(AsRef::as_ref)))?;
        self.scanner.as_ref()?.found(nth)
    }

    /// Whether all of it has passed, or all that its service has to say.
    fn has_ended(&self) -> bool {
        let has = |last: &&[u8]| {
            let tail = self.tail.as_deref().unwrap_or_default();
            memchr::memmem::find(tail, last).is_some()
        };
        let event = self.scanner.as_ref().filter(|of| of.is_between());
        let event = event.and_then(|of| of.text_at(KIND));
        let is_last = event.is_some_and(|event| LAST.contains(&event));
        self.is_whole || is_last || DONE.iter().any(has)
    }

    /// Whether it has passed, and its service has not broken off within it.
    fn is_complete(&self) -> bool {
        let error = self.scanner.as_ref().and_then(|of| of.text_at(ERROR));
        let is_success = self.status.is_some_and(|of| of.is_success());
        self.has_ended() && !(is_success && error.is_some())
    }

    /// The model that it names.
    fn model(&self) -> Option<&str> {
        self.scanner.as_ref()?.text_at(MODEL)
    }

    /// What it says of tokens; `None`: nothing.
    fn tokens(&self) -> Option<UsedTokens> {
        let [
            prompt,
            input,
            completion,
            output,
            total,
            of_prompt,
            of_input,
            beside,
            cache_write,
        ] = std::array::from_fn(|nth| self.scanner.as_ref()?.found(nth));
        let read = prompt.or(input);
        let written = completion.or(output);
        let undivided = total.filter(|_| read.or(written).is_none());
        read.or(written).or(total)?;
        // Some vendors count what comes from the cache, and what goes into it, within what was read, others beside it.
        let is_within = prompt.is_some();
        let within = of_prompt.or(of_input).or(beside.filter(|_| is_within));
        let beside_it = [beside, cache_write].map(|of| of.filter(|_| !is_within).unwrap_or(0));
        let all_read = read.map(|read| beside_it.into_iter().fold(read, u64::saturating_add));
        // Some leave what a model thinks out of what it wrote, and only the sum has it.
        let rest = total.zip(all_read);
        let rest = rest.map(|(total, read)| total.saturating_sub(read));
        let read = read.unwrap_or(0).saturating_sub(within.unwrap_or(0));
        let stored = cache_write.filter(|_| is_within).unwrap_or(0);
        Some(UsedTokens {
            input: read.saturating_sub(stored),
            cached: within.or(beside).unwrap_or(0),
            cached_counts: within.is_some(),
            cache_write: cache_write.unwrap_or(0),
            output: written.max(rest).unwrap_or(0),
            total,
            undivided,
        })
    }
}
