//! What bounds a queue: the file's `[[queue]]` entries, and what was set over HTTP laid over them.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use ojs_limit::Rate;
use ojs_policy::{Pattern, Template};

/// The fraction of a bound from which warnings are given, where nothing else is said (backpressure
/// text, 6.2).
pub const WARNING: f64 = 0.8;
/// The longest that an enqueue may wait for room, where nothing else is said: SDKs give up after 30 s,
/// while the job may still be stored.
pub const BLOCK_TIMEOUT_MAX: Duration = Duration::from_secs(20);
/// The tenant of jobs that name none (multi-tenancy text, 15.3).
pub const DEFAULT_TENANT: &str = "_default";

/// What happens to an enqueue that does not fit (backpressure text, section 5).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OverflowStrategy {
    /// It is refused at once.
    #[default]
    Reject,
    /// It waits for room as long as its producer says.
    Block,
    /// The oldest available job goes, and then it is stored. Lossy.
    DropOldest,
}

impl OverflowStrategy {
    /// All of them, with their words.
    pub const WORDS: [(&'static str, OverflowStrategy); 3] = [
        ("reject", OverflowStrategy::Reject),
        ("block", OverflowStrategy::Block),
        ("drop_oldest", OverflowStrategy::DropOldest),
    ];

    /// The word in configs and answers.
    pub fn as_str(self) -> &'static str {
        match self {
            OverflowStrategy::Reject => "reject",
            OverflowStrategy::Block => "block",
            OverflowStrategy::DropOldest => "drop_oldest",
        }
    }
}

/// A bound of its own for each key inside a queue, such as each tenant.
#[derive(Clone, PartialEq, Debug)]
pub struct PerKey {
    /// What the jobs are told apart by.
    pub by: Template,
    /// The most waiting jobs of one key.
    pub max_depth: u64,
}

/// What one source says of a queue's bounds; what it does not say is `None`.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Given {
    /// The most waiting jobs; 0 is unbounded.
    pub max_depth: Option<u64>,
    /// The most bytes of waiting jobs; 0 is unbounded.
    pub max_bytes: Option<u64>,
    /// What happens beyond them.
    pub strategy: Option<OverflowStrategy>,
    /// The fraction of a bound from which warnings are given, 0 to 1.
    pub warning_threshold: Option<f64>,
    /// The longest that a producer may wait.
    pub block_timeout_max: Option<Duration>,
    /// The most jobs that producers may enqueue in a period.
    pub enqueue_rate: Option<Rate>,
    /// Bounds for each key.
    pub per_key: Option<PerKey>,
}

impl Given {
    /// Whether it says nothing.
    pub fn is_silent(&self) -> bool {
        *self == Given::default()
    }

    /// This one, and where it says nothing, `other`.
    pub fn over(&self, other: &Given) -> Given {
        Given {
            max_depth: self.max_depth.or(other.max_depth),
            max_bytes: self.max_bytes.or(other.max_bytes),
            strategy: self.strategy.or(other.strategy),
            warning_threshold: self.warning_threshold.or(other.warning_threshold),
            block_timeout_max: self.block_timeout_max.or(other.block_timeout_max),
            enqueue_rate: self
                .enqueue_rate
                .clone()
                .or_else(|| other.enqueue_rate.clone()),
            per_key: self.per_key.clone().or_else(|| other.per_key.clone()),
        }
    }

    /// The bounds that this makes; `None`: it bounds nothing.
    pub fn bounds(&self) -> Option<Bounds> {
        Some(self.filled()).filter(Bounds::has_own)
    }

    fn filled(&self) -> Bounds {
        Bounds {
            max_depth: self.max_depth.filter(|most| *most > 0),
            max_bytes: self.max_bytes.filter(|most| *most > 0),
            strategy: self.strategy.unwrap_or_default(),
            warning_threshold: self.warning_threshold.unwrap_or(WARNING),
            block_timeout_max: self.block_timeout_max.unwrap_or(BLOCK_TIMEOUT_MAX),
            enqueue_rate: self.enqueue_rate.clone(),
            per_key: self.per_key.clone().filter(|keys| keys.max_depth > 0),
            tenants: false,
        }
    }
}

/// What bounds a queue, with defaults filled in. At least one of the bounds is there, or its jobs count
/// towards the bounds of tenants.
#[derive(Clone, PartialEq, Debug)]
pub struct Bounds {
    /// The most waiting jobs: available, scheduled and retryable, held ones included.
    pub max_depth: Option<u64>,
    /// The most bytes of waiting jobs, each as long as it was sent.
    pub max_bytes: Option<u64>,
    /// What happens beyond them.
    pub strategy: OverflowStrategy,
    /// The fraction from which warnings are given.
    pub warning_threshold: f64,
    /// The longest that a producer may wait.
    pub block_timeout_max: Duration,
    /// The most jobs that producers may enqueue in a period.
    pub enqueue_rate: Option<Rate>,
    /// Bounds for each key.
    pub per_key: Option<PerKey>,
    /// Whether tenants are bounded, so that it matters whose its jobs are.
    pub tenants: bool,
}

impl Bounds {
    /// What bounds a queue that had bounds and has none any more.
    pub(super) fn none() -> Bounds {
        Given::default().filled()
    }

    /// Whether the queue itself is bounded, and not only tenants of it.
    pub fn has_own(&self) -> bool {
        self.max_depth.is_some()
            || self.max_bytes.is_some()
            || self.enqueue_rate.is_some()
            || self.per_key.is_some()
    }

    /// Whether anything here is about how much waits, so that the depth must be known.
    pub fn needs_depth(&self) -> bool {
        self.max_depth.is_some() || self.max_bytes.is_some() || self.tells_apart()
    }

    /// Whether it matters which jobs wait, not only how many.
    pub fn tells_apart(&self) -> bool {
        self.per_key.is_some() || self.tenants
    }
}

/// The bounds of the file's `[[queue]]` and `[[tenant]]` entries, in its order.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct FileBounds {
    /// What each says, in the order of the file.
    pub entries: Vec<(Pattern, Given)>,
    /// How many jobs of each tenant may wait, in the order of the file; 0 is any number.
    pub tenants: Vec<(Pattern, u64)>,
    /// What entries say that are only tried (`mode = "shadow"`).
    pub tried: Vec<(Pattern, Given)>,
}

impl FileBounds {
    /// From entries in the order of the file.
    pub fn new(entries: Vec<(Pattern, Given)>) -> FileBounds {
        FileBounds {
            entries,
            ..FileBounds::default()
        }
    }

    /// The entry for a queue: the one with its name, else the first glob that matches.
    pub fn of(&self, queue: &str) -> Option<&Given> {
        Pattern::find(&self.entries, queue)
    }
}

/// The bounds of every queue as they are now. Immutable: a change makes another.
#[derive(Debug, Default)]
pub struct BoundsTable {
    pub(super) file: Arc<FileBounds>,
    pub(super) set: HashMap<Arc<str>, Given>,
    /// Asked with every enqueue.
    exact: hashbrown::HashMap<Arc<str>, Option<Arc<Bounds>>>,
    globs: Vec<(Pattern, Option<Arc<Bounds>>)>,
    /// What bounds all others: their jobs' tenants.
    others: Option<Arc<Bounds>>,
    /// How many jobs of each tenant may wait over all queues, as it was set over HTTP (`limits.max_queue_depth` of the
    /// multi-tenancy text, 8.1, and of the backpressure text, 9.2).
    pub(super) tenants: HashMap<Arc<str>, u64>,
    /// What bounds a queue of which bounds are only tried: nothing, and its depth is followed.
    unbounded: Option<Arc<Bounds>>,
    any: bool,
}

impl BoundsTable {
    pub(super) fn new(
        file: Arc<FileBounds>,
        set: HashMap<Arc<str>, Given>,
        tenants: HashMap<Arc<str>, u64>,
    ) -> BoundsTable {
        let of_file = file.tenants.iter().map(|(_, most)| most);
        let bounded = of_file.chain(tenants.values()).any(|most| *most > 0);
        let bounds_of = |given: &Given| {
            let bounds = Bounds {
                tenants: bounded,
                ..given.filled()
            };
            (bounded || bounds.has_own()).then(|| Arc::new(bounds))
        };
        let mut exact: hashbrown::HashMap<Arc<str>, Option<Arc<Bounds>>> = Default::default();
        let mut globs = Vec::new();
        for (name, given) in &file.entries {
            let bounds = bounds_of(given);
            if name.is_glob() {
                globs.push((name.clone(), bounds));
            } else {
                exact.entry(Arc::from(name.as_str())).or_insert(bounds);
            }
        }
        for (queue, given) in &set {
            exact.insert(queue.clone(), bounds_of(&laid_over(&file, queue, given)));
        }
        let others = bounds_of(&Given::default());
        let mut all = exact.values().chain(globs.iter().map(|(_, bounds)| bounds));
        let unbounded = (!file.tried.is_empty()).then(|| Arc::new(Bounds::none()));
        let any = all.any(Option::is_some) || others.is_some() || unbounded.is_some();
        BoundsTable {
            file,
            set,
            exact,
            globs,
            others,
            tenants,
            unbounded,
            any,
        }
    }

    /// Whether a queue has bounds under its own name, and not only as one of many.
    pub(super) fn names(&self, queue: &str) -> bool {
        self.exact.get(queue).is_some_and(Option::is_some)
    }

    /// The queues with other bounds than they had `before`; `None`: any may be among them.
    pub(super) fn differs(&self, before: &BoundsTable) -> Option<Vec<Arc<str>>> {
        let is_alike = self.globs == before.globs && self.others == before.others;
        if !is_alike || self.file.tried != before.file.tried {
            return None;
        }
        let gone = before.exact.keys();
        let gone = gone.filter(|name| !self.exact.contains_key(*name));
        let names = self.exact.keys().chain(gone);
        let others = names.filter(|name| self.of(name) != before.of(name));
        Some(others.cloned().collect())
    }

    /// How many jobs of a tenant may wait, over all queues; 0 is any number, `None`: the tenant has no bound. What was set over HTTP goes before what the file says.
    pub fn tenant(&self, tenant: &str) -> Option<u64> {
        let set = self.tenants.get(tenant);
        set.or_else(|| Pattern::find(&self.file.tenants, tenant))
            .copied()
    }

    /// What was set over HTTP for a queue.
    pub fn set_for(&self, queue: &str) -> Option<&Given> {
        self.set.get(queue)
    }

    /// What was set over HTTP for a tenant.
    pub fn tenant_set_for(&self, tenant: &str) -> Option<u64> {
        self.tenants.get(tenant).copied()
    }

    /// For which queues and tenants something else was set over HTTP than the file says, as keys of the admin port;
    /// where another file stood `before`, only those of which it said something else.
    pub fn in_place_of_file(&self, before: Option<&FileBounds>) -> BTreeSet<String> {
        let queues = self.set.iter().filter(|(queue, set)| {
            let own = self.file.of(queue);
            let is_new = before.is_none_or(|before| before.of(queue) != own);
            is_new && own.is_some_and(|own| set.over(own) != *own)
        });
        let tenants = self.tenants.iter().filter(|(tenant, most)| {
            let own = Pattern::find(&self.file.tenants, tenant);
            let is_new = before.is_none_or(|before| Pattern::find(&before.tenants, tenant) != own);
            is_new && own.is_some_and(|own| own != *most)
        });
        let queues = queues.map(|(queue, _)| format!("_queue:{queue}"));
        let tenants = tenants.map(|(tenant, _)| format!("_tenant:{tenant}"));
        queues.chain(tenants).collect()
    }

    /// Whether any queue is bounded.
    pub(super) fn any(&self) -> bool {
        self.any
    }

    /// The bounds of a queue.
    pub(super) fn of(&self, queue: &str) -> Option<&Arc<Bounds>> {
        let tried = self.unbounded.as_ref();
        let tried = || tried.filter(|_| self.tried(queue).is_some());
        self.enforced(queue).or_else(tried)
    }

    /// Whether it is followed how much of a queue waits.
    pub(super) fn measures(&self, queue: &str) -> bool {
        let needs = self.of(queue).is_some_and(|bounds| bounds.needs_depth());
        needs || self.tried(queue).is_some()
    }

    fn enforced(&self, queue: &str) -> Option<&Arc<Bounds>> {
        if let Some(found) = self.exact.get(queue) {
            return found.as_ref();
        }
        let glob = self.globs.iter().find(|(name, _)| name.matches(queue));
        match glob {
            Some((_, bounds)) => bounds.as_ref(),
            None => self.others.as_ref(),
        }
    }

    /// What is only tried of a queue's bounds.
    pub fn tried(&self, queue: &str) -> Option<Bounds> {
        Pattern::find(&self.file.tried, queue)?.bounds()
    }

    /// The bounds of a queue as the file and HTTP give them.
    pub fn given(&self, queue: &str) -> Option<Given> {
        match self.set.get(queue) {
            Some(given) => Some(laid_over(&self.file, queue, given)),
            None => self.file.of(queue).cloned(),
        }
    }
}

/// What was set over HTTP, and where that says nothing, the file's.
fn laid_over(file: &FileBounds, queue: &str, given: &Given) -> Given {
    match file.of(queue) {
        Some(under) => given.over(under),
        None => given.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn depth(most: u64) -> Given {
        Given {
            max_depth: Some(most),
            ..Given::default()
        }
    }

    fn table(set: &[(&str, Given)]) -> BoundsTable {
        let entry = |name: &str, given| (Pattern::new(name), given);
        let file = FileBounds::new(vec![
            entry("b*", depth(10)),
            entry("billing", depth(20)),
            entry("*", depth(30)),
        ]);
        let set = set
            .iter()
            .map(|(name, given)| (Arc::from(*name), given.clone()));
        BoundsTable::new(Arc::new(file), set.collect(), HashMap::new())
    }

    fn found(table: &BoundsTable, queue: &str) -> Option<u64> {
        table.of(queue).and_then(|bounds| bounds.max_depth)
    }

    #[test]
    fn the_name_goes_before_globs_and_the_first_glob_before_others() {
        let plain = table(&[]);
        let depths = ["billing", "bills", "mail"].map(|queue| found(&plain, queue));
        assert_eq!(depths, [Some(20), Some(10), Some(30)]);
    }

    #[test]
    fn what_is_set_is_laid_over_the_file() {
        let block = Given {
            strategy: Some(OverflowStrategy::Block),
            ..Given::default()
        };
        let with = table(&[("mail", block), ("bills", depth(0)), ("other", depth(7))]);
        assert_eq!(found(&with, "mail"), Some(30));
        assert_eq!(with.of("mail").unwrap().strategy, OverflowStrategy::Block);
        assert!(with.of("bills").is_none(), "0 is unbounded");
        assert_eq!(found(&with, "other"), Some(7));
        let without = table(&[]);
        assert_eq!(found(&without, "bills"), Some(10));
        assert!(!BoundsTable::default().any() && with.any());
    }

    #[test]
    fn it_is_known_which_queues_have_other_bounds() {
        let plain = table(&[]);
        let sets: [&[(&str, Given)]; 4] = [
            &[],
            &[("billing", depth(20)), ("mail", depth(7))],
            &[("mail", depth(8)), ("bills", depth(0))],
            &[("mail", depth(30))],
        ];
        let told = sets.map(|set| {
            let mut names = table(set).differs(&plain).unwrap();
            names.sort();
            names.iter().map(ToString::to_string).collect::<Vec<_>>()
        });
        assert_eq!(told, [vec![], vec!["mail"], vec!["bills", "mail"], vec![]]);
        let set = table(sets[2]);
        let mut gone = plain.differs(&set).unwrap();
        gone.sort();
        assert_eq!(gone, [Arc::from("bills"), Arc::from("mail")]);
        let file = FileBounds::new(vec![(Pattern::new("*"), depth(31))]);
        let other = BoundsTable::new(Arc::new(file), HashMap::new(), HashMap::new());
        assert!(other.differs(&plain).is_none());
        let acme = |most| {
            let tenants = HashMap::from([(Arc::from("acme"), most)]);
            BoundsTable::new(Arc::clone(&plain.file), HashMap::new(), tenants)
        };
        let bounded = acme(5);
        assert!(bounded.differs(&plain).is_none(), "all count from now on");
        assert_eq!(acme(6).differs(&bounded), Some(Vec::new()));
    }

    #[test]
    fn jobs_of_all_queues_count_where_a_tenant_is_bounded() {
        let file = FileBounds::new(vec![(Pattern::new("mail"), depth(3))]);
        let one = HashMap::from([(Arc::from("acme"), 5)]);
        let table = BoundsTable::new(Arc::new(file), HashMap::new(), one);
        for (queue, most) in [("mail", Some(3)), ("other", None)] {
            let bounds = table.of(queue).unwrap();
            assert_eq!(bounds.max_depth, most);
            assert!(bounds.tells_apart() && bounds.needs_depth());
        }
        let without = BoundsTable::new(table.file, HashMap::new(), HashMap::new());
        assert!(without.of("other").is_none() && without.of("mail").is_some());
    }

    #[test]
    fn a_tenant_s_name_goes_before_globs_and_what_is_set_before_the_file() {
        let entry = |name: &str, most| (Pattern::new(name), most);
        let table = |tenants: &[(Pattern, u64)], set| {
            let file = FileBounds {
                tenants: tenants.to_vec(),
                ..FileBounds::default()
            };
            BoundsTable::new(Arc::new(file), HashMap::new(), set)
        };
        let file = [entry("*", 5), entry("acme", 50), entry("free-*", 1)];
        let tenants = table(&file, HashMap::from([("set".into(), 7)]));
        let given = ["acme", "free-x", "other", "set"].map(|name| tenants.tenant(name));
        assert_eq!(given, [Some(50), Some(5), Some(5), Some(7)]);
        assert!(tenants.any() && !BoundsTable::default().any());
        let unbounded = table(&[entry("*", 0)], HashMap::new());
        assert!(!unbounded.any() && unbounded.tenant("a") == Some(0));
    }

    #[test]
    fn defaults_are_those_of_the_text() {
        let bounds = depth(5).bounds().unwrap();
        assert_eq!(bounds.strategy, OverflowStrategy::Reject);
        assert_eq!(bounds.warning_threshold, 0.8);
        assert_eq!(bounds.block_timeout_max, Duration::from_secs(20));
        assert!(Given::default().bounds().is_none() && depth(0).bounds().is_none());
    }
}
