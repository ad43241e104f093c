//! Reads `[[queue]]`, its limits and its bounds.

use std::collections::hash_map::{Entry, HashMap};
use std::ops::Range;

use toml::de::DeValue;

use super::costs::{prices, refuse_without_limit};
use super::kinds::flag;
use super::mode::{EntryMode, mode};
use super::tenants::tenants;
use ojs_bounds::given::{self, BOUNDS};
use ojs_bounds::{FileBounds, Given, OverflowStrategy};
use ojs_limit::Limits;
use ojs_policy::fields;
use ojs_policy::limits::limits;
use ojs_policy::subqueue::{COUNT, MOST_OF_ALL, Spread, longest_base, split};
use ojs_policy::{Pattern, Prices, QueueLimits};
use ojs_reader::{QUEUE, QUEUES, TomlTable, patterns};

/// Refuses `drop_oldest` in an entry that is for every queue.
fn refuse_drop_for_all(table: &mut TomlTable<'_>) {
    let strategy = table.get("strategy").map(|found| found.value);
    if matches!(strategy, Some(DeValue::String(word)) if word == "drop_oldest") {
        let hint = "it loses jobs: name the queues that may lose theirs";
        table.refuse(
            "strategy",
            "cannot be \"drop_oldest\" for every queue",
            hint,
        );
    }
}

/// Reports a second entry of the same name and mode, whether the first could be read or not.
fn unique(
    root: &TomlTable<'_>,
    seen: &mut HashMap<(bool, String), Range<usize>>,
    (names, mode): (&[Pattern], EntryMode),
    span: &Range<usize>,
) {
    for name in names {
        let known = seen.entry((mode != EntryMode::Enforce, name.as_str().to_owned()));
        if let Entry::Occupied(first) = &known {
            let title = format!("queue {:?} is there twice", name.as_str());
            let hint = format!("make it one entry; {}", root.first_in(first.get()));
            root.error(span, title, hint);
        }
        known.or_insert_with(|| span.clone());
    }
}

/// An entry without a bound must have a limit, and its words on what happens at a bound have no effect yet. A bound
/// that is there but wrong was reported already.
fn report_no_bound(root: &TomlTable<'_>, span: &Range<usize>, limits: &Limits, bounds: &Given) {
    if !bounds.is_silent() {
        root.warn(
            span,
            "this queue entry says what happens at a bound, and has none",
            "add max_depth or max_size: without it this is only for a bound that is set over HTTP",
        );
    } else if *limits == Limits::default() {
        root.missing(
            span,
            "this queue entry has no limit and no bound",
            "add a limit, such as concurrency = 5, or a bound, such as max_depth = 1000, or remove the entry",
        );
    }
}

const BOUNDS_COUNT_JOBS: &str = "bounds and enqueue_rate count jobs; remove it, or add a limit";

/// Reports an entry whose queues count otherwise under an earlier one: a queue has one set of counters.
fn one_price(
    root: &TomlTable<'_>,
    earlier: &[QueueLimits],
    name: &Pattern,
    prices: &Prices,
    span: &Range<usize>,
) {
    let meets = |other: &&QueueLimits| {
        other.name.matches(name.as_str()) || name.matches(other.name.as_str())
    };
    let difference = |other: &QueueLimits| other.prices.difference(prices);
    let mut earlier = earlier.iter().filter(meets);
    if let Some((other, what)) = earlier.find_map(|one| Some((one, difference(one)?))) {
        let (name, other) = (name.as_str(), other.name.as_str());
        let title = format!("queues {other:?} and {name:?} share counters but not their `{what}`");
        let hint = "write the same in both, or use a policy, which has a key of its own";
        root.error(span, title, hint);
    }
}

/// Warns of a queue whose own number is never reached: a pattern that matches it allows less.
fn warn_of_less(
    root: &TomlTable<'_>,
    earlier: &[QueueLimits],
    name: &Pattern,
    limits: &Limits,
    span: &Range<usize>,
) {
    let hides = |other: &&QueueLimits| match (other.name.is_glob(), name.is_glob()) {
        (true, false) => other.name.matches(name.as_str()) && other.limits.is_less(limits),
        (false, true) => name.matches(other.name.as_str()) && limits.is_less(&other.limits),
        _ => false,
    };
    if let Some(other) = earlier.iter().find(hides) {
        let (name, other) = (name.as_str(), other.name.as_str());
        let title =
            format!("queues {other:?} and {name:?} match one queue, and the pattern allows less");
        let hint = "a queue is held to the limits of all entries that match it: give the pattern the larger number";
        root.warn(span, title, hint);
    }
}

/// Warns of bounds that are lost: those of a glob behind a wider one, and those of the first glob where a queue has an
/// entry of its own that leaves them out.
pub(super) fn warn_of_lost_bounds(root: &TomlTable<'_>, entries: &[(Pattern, Given)]) {
    for (nth, (name, own)) in entries.iter().enumerate() {
        let earlier = entries.get(..nth).unwrap_or_default();
        let mut globs = entries.iter().filter(|(glob, _)| glob.is_glob());
        let first = globs.find(|(glob, _)| glob.matches(name.as_str()));
        let first = first.filter(|_| !name.is_glob());
        let unsaid = first.and_then(|(glob, of)| {
            let depth = own.max_depth.is_none() && of.max_depth > Some(0);
            let bytes = own.max_bytes.is_none() && of.max_bytes > Some(0);
            let field = depth.then_some("max_depth");
            Some((glob.as_str(), field.or(bytes.then_some("max_size"))?))
        });
        let (name, hidden) = (name.as_str(), name.hidden_by(earlier, own));
        let (title, hint) = match (hidden, unsaid) {
            (Some(other), _) => (
                format!(
                    "the bounds of {name:?} are for no queue: {:?} is before it",
                    other.as_str()
                ),
                "of several globs that match a queue the first one bounds it: write this entry above that one",
            ),
            (None, Some((glob, field))) => (
                format!("queue {name:?} has no `{field}`: that of {glob:?} is not for it"),
                "its own entry says all that bounds it: write that bound there, or 0 for none",
            ),
            (None, None) => continue,
        };
        root.warn(&root.place_of(QUEUES, name), title, hint);
    }
}

/// What a queue with subqueues may have in place of `drop_oldest`.
const INSTEAD_OF_DROP: &str =
    "of many queues nobody can say which job is the oldest: use \"reject\" or \"block\"";

/// Reports what keeps the queues of an entry from having subqueues, whose names stand in the backend for ever.
fn refuse_subqueues(
    table: &mut TomlTable<'_>,
    names: &[Pattern],
    bounds: Option<&Given>,
    longest: usize,
) {
    const NAME: &str = "subqueues";
    if names.iter().any(Pattern::is_glob) {
        let hint = "a pattern may match any number of queues: give each an entry of its own";
        table.refuse(NAME, "cannot be for a pattern", hint);
    } else if names.iter().any(|name| name.as_str().len() > longest) {
        let what = format!("needs a name of at most {longest} bytes");
        let hint =
            "backends allow 128 bytes, and a subqueue's name has 8 or 9 more: shorten the queue's";
        table.refuse(NAME, what, hint);
    } else if bounds.and_then(|bounds| bounds.strategy) == Some(OverflowStrategy::DropOldest) {
        let what = "cannot stand beside strategy = \"drop_oldest\"";
        table.refuse(NAME, what, INSTEAD_OF_DROP);
    }
}

/// Notes the queues of an entry, whose subqueues may be too many with those of all others.
fn note_subqueues(
    table: &TomlTable<'_>,
    names: &[Pattern],
    spread: Spread,
    subqueues: &mut HashMap<Box<str>, Spread>,
) {
    let names = names.iter().map(|name| Box::from(name.as_str()));
    subqueues.extend(names.map(|name| (name, spread)));
    let counts = subqueues.values().map(|one| usize::from(one.count));
    let all: usize = counts.sum();
    if all > MOST_OF_ALL {
        let title = format!("queues have {all} subqueues, and {MOST_OF_ALL} is the most");
        let hint = "the backend keeps each name for ever: choose the queues with long backlogs, or fewer subqueues";
        table.error(&table.span_of("subqueues"), title, hint);
    }
}

/// Reports queues with subqueues to which a pattern gives `drop_oldest`. What an entry of their own gives was looked at there.
fn refuse_drop_by_pattern(
    root: &TomlTable<'_>,
    subqueues: &HashMap<Box<str>, Spread>,
    bounds: &FileBounds,
) {
    let has_own = |queue: &str| (bounds.entries.iter()).any(|(name, _)| name.as_str() == queue);
    for queue in subqueues.keys().filter(|queue| !has_own(queue)) {
        if bounds.of(queue).and_then(|given| given.strategy) == Some(OverflowStrategy::DropOldest) {
            let title = format!("queue {queue:?} has subqueues, and a pattern's `drop_oldest`");
            root.error(&root.place_of(QUEUES, queue), title, INSTEAD_OF_DROP);
        }
    }
}

/// How the jobs of an entry are spread over subqueues; `None`: they have none.
fn spread(table: &mut TomlTable<'_>) -> Option<Spread> {
    const SALT: &str = "subqueues_salt";
    let salt = table.secret(SALT);
    if !(16..=200).contains(&salt.as_ref().map_or(16, String::len)) {
        let hint = "`openssl rand -hex 16` makes one; write it, \"${NAME}\" or \"file:/path\"";
        table.refuse(SALT, "must have 16 to 200 bytes", hint);
    }
    let count = match table.get("subqueues")?.value {
        DeValue::Integer(_) => fields::Fields::int(table, "subqueues").ok()??,
        _ => flag(table, "subqueues", false).then_some(COUNT.into())?,
    };
    let count = u16::try_from(count).ok();
    let count = count.filter(|count| [256, 512, 1_024].contains(count));
    if count.is_none() {
        let hint = "true is 256; the more there are, the fewer tenants share one";
        table.refuse("subqueues", "can be true, false, 256, 512 or 1024", hint);
    }
    Some(Spread::new(count?, salt.as_deref()))
}

/// A `[[queue]]` as far as it could be read.
struct WrittenQueue {
    names: Vec<Pattern>,
    /// Where messages about its names point.
    at: Range<usize>,
    limits: Option<Limits>,
    prices: Option<Prices>,
    bounds: Option<Given>,
    /// How its queues are spread over subqueues, if they are.
    spread: Option<Spread>,
    mode: EntryMode,
}

/// Reads one entry; `None`: it has no name that can be used.
fn queue(root: &TomlTable<'_>, table: &mut TomlTable<'_>) -> Option<WrittenQueue> {
    let header = table.span.clone();
    let found = table.get("name");
    let names = found
        .as_ref()
        .and_then(|found| patterns(table, found, Some(QUEUE)));
    if found.is_none() {
        table.missing(
            &header,
            "a queue entry needs a `name`",
            "add name = \"…\"; a glob gives each queue its own counters",
        );
    }
    let limits = limits(table).ok();
    let prices = prices(table, limits.as_ref());
    let is_for_all = |name: &Pattern| name.as_str().bytes().all(|byte| b"*?".contains(&byte));
    if names.iter().flatten().any(is_for_all) {
        refuse_drop_for_all(table);
    }
    let bounds = given::read(table).ok();
    let says_subqueues = table.get("subqueues").is_some();
    let spread = spread(table);
    let names_bound = BOUNDS.iter().any(|name| table.get(name).is_some());
    let mode = mode(table);
    let (names, at) = (names?, found?.span);
    if mode != EntryMode::Enforce {
        refuse_in_shadow(table);
    }
    if let Some(spread) = spread {
        refuse_subqueues(table, &names, bounds.as_ref(), longest_base(spread.count));
    }
    if let Some(name) = names.iter().find(|name| split(name.as_str()).is_some()) {
        let title = format!("queue {:?} has a subqueue's name", name.as_str());
        root.error(&at, title, "name the queue that it belongs to");
    }
    for name in &names {
        table.note_place(QUEUES, name.as_str(), header.start);
    }
    if let (Some(limits), Some(bounds), Some(_)) = (&limits, &bounds, &prices) {
        if names_bound && *limits == Limits::default() {
            refuse_without_limit(table, BOUNDS_COUNT_JOBS);
        } else if !names_bound && !says_subqueues && !table.has_unknown() {
            report_no_bound(root, &at, limits, bounds);
        }
    }
    Some(WrittenQueue {
        names,
        at,
        limits,
        prices,
        bounds,
        spread,
        mode,
    })
}

/// Reports what an entry cannot be tried with.
fn refuse_in_shadow(table: &mut TomlTable<'_>) {
    let hint = "write it in an entry of its own, without mode";
    for name in ["enqueue_rate", "per_key", "subqueues", "subqueues_salt"] {
        if table.get(name).is_some() {
            table.refuse(name, "cannot stand beside mode = \"shadow\"", hint);
        }
    }
}

/// What the `[[queue]]` and `[[tenant]]` entries say.
pub(super) struct WrittenQueues {
    pub(super) limits: Vec<QueueLimits>,
    /// Those that are only tried.
    pub(super) tried: Vec<QueueLimits>,
    pub(super) bounds: FileBounds,
    /// The queues with subqueues.
    pub(super) subqueues: HashMap<Box<str>, Spread>,
}

/// Reads all entries in the order of the file, and the bounds of `[[tenant]]`.
pub(super) fn queues(root: &mut TomlTable<'_>) -> WrittenQueues {
    let mut subqueues = HashMap::new();
    let (mut queues, mut tried) = (Vec::<QueueLimits>::new(), Vec::<QueueLimits>::new());
    let (mut bounded, mut bounds_tried) = (Vec::new(), Vec::new());
    let mut seen = HashMap::new();
    for mut table in root.tables("queue", "[[queue]] above its fields") {
        let Some(written) = queue(root, &mut table) else {
            continue;
        };
        if let Some(spread) = written.spread {
            note_subqueues(&table, &written.names, spread, &mut subqueues);
        }
        let mode = written.mode;
        unique(root, &mut seen, (&written.names, mode), &written.at);
        let (Some(limits), Some(bounds), Some(prices)) =
            (written.limits, written.bounds, written.prices)
        else {
            continue;
        };
        for name in written.names {
            let (earlier, bounds_so_far) = match mode {
                EntryMode::Enforce => (&queues, &mut bounded),
                EntryMode::Shadow(_) => (&tried, &mut bounds_tried),
            };
            if !bounds.is_silent() {
                bounds_so_far.push((name.clone(), bounds.clone()));
            }
            // A bound alone must not make FETCHes of the queue look for limits.
            if limits != Limits::default() {
                one_price(root, earlier, &name, &prices, &written.at);
                warn_of_less(root, earlier, &name, &limits, &written.at);
                let of = |sample| QueueLimits {
                    name: name.clone(),
                    limits: limits.clone(),
                    prices: prices.clone(),
                    sample,
                };
                queues.extend(mode.enforced().map(of));
                tried.extend(mode.tried().map(of));
            }
        }
    }
    let bounds = FileBounds {
        entries: bounded,
        tenants: tenants(root),
        tried: bounds_tried,
    };
    refuse_drop_by_pattern(root, &subqueues, &bounds);
    WrittenQueues {
        limits: queues,
        tried,
        bounds,
        subqueues,
    }
}
