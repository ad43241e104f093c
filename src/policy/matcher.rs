//! Which jobs a policy is for: globs over queue, type and meta.

use wildmatch::WildMatch;

use super::job_view::JobView;
use super::json_path::{find, scalar};
use super::template::Attribute;
use ojs_limit::fingerprint;

/// One glob, or an exact text when it has neither `*` nor `?`.
#[derive(Clone, PartialEq, Debug)]
pub struct Pattern {
    /// The pattern as written.
    text: Box<str>,
    /// `*` stands for any characters, none too; `?` for exactly one. At worst a match takes pattern times text,
    /// whatever a producer sends.
    glob: Option<WildMatch>,
}

impl Eq for Pattern {}

impl Pattern {
    /// Reads a pattern; every text is one.
    pub fn new(text: &str) -> Pattern {
        let is_glob = text.contains(['*', '?']);
        Pattern {
            text: text.into(),
            glob: is_glob.then(|| WildMatch::new(text)),
        }
    }

    /// Whether the pattern covers the whole of `text`.
    pub fn matches(&self, text: &str) -> bool {
        match &self.glob {
            None => *self.text == *text,
            Some(glob) => glob.matches(text),
        }
    }

    /// Whether it stands for more than one text.
    pub fn is_glob(&self) -> bool {
        self.glob.is_some()
    }

    /// The earlier glob that leaves no name to this one, and says something else: of several globs the first one
    /// counts.
    pub fn hidden_by<'e, T: PartialEq>(
        &self,
        earlier: &'e [(Pattern, T)],
        own: &T,
    ) -> Option<&'e Pattern> {
        // A `?` covers one character, and a `*` in the name stands for any number. One that is there twice was reported.
        let covers = |glob: &Pattern| {
            glob != self && !glob.as_str().contains('?') && glob.matches(self.as_str())
        };
        let mut earlier = earlier.iter().filter(|_| self.is_glob());
        let hides = earlier.find(|(glob, said)| covers(glob) && said != own);
        hides.map(|(glob, _)| glob)
    }

    /// What is said of a text: the entry of this very text, else the first glob that matches.
    pub fn find<'a, T>(entries: &'a [(Pattern, T)], text: &str) -> Option<&'a T> {
        let exact = |(name, _): &&(Pattern, T)| !name.is_glob() && name.matches(text);
        let found = entries.iter().find(exact);
        let found = found.or_else(|| entries.iter().find(|(name, _)| name.matches(text)));
        found.map(|(_, said)| said)
    }

    /// The pattern as written.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

/// The `match` of a policy: every named attribute must match one of its patterns; no pattern for
/// an attribute means that it may be anything.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Match {
    /// Queue names.
    pub queue: Vec<Pattern>,
    /// Job types.
    pub kind: Vec<Pattern>,
    /// Meta members by path (`tenant_id`, `customer.plan`).
    pub meta: Vec<(Box<str>, Vec<Pattern>)>,
    /// Which of the jobs of which all that is so.
    pub sample: Sample,
}

impl Match {
    /// Whether a job is meant.
    pub fn matches(&self, job: &JobView<'_>) -> bool {
        self.can_match_queue(job.queue)
            && any(&self.kind, job.kind)
            && self.meta.iter().all(|(path, patterns)| {
                let value = job.meta.and_then(|meta| find(meta, path)).and_then(scalar);
                value.is_some_and(|value| any(patterns, &value))
            })
            && self.sample.has(job.id)
    }

    /// Whether some job of the queue can be meant.
    pub fn can_match_queue(&self, queue: &str) -> bool {
        any(&self.queue, queue)
    }

    /// Whether a job that is meant may have this value.
    pub(super) fn may_have(&self, of: &Attribute, value: &str) -> bool {
        match of {
            Attribute::Queue => self.can_match_queue(value),
            Attribute::Type => any(&self.kind, value),
            Attribute::Meta(path) => {
                let mut named = self.meta.iter().filter(|(of, _)| of == path);
                named.all(|(_, patterns)| any(patterns, value))
            }
            _ => true,
        }
    }

    /// Whether nothing but the queue decides.
    pub fn only_queue(&self) -> bool {
        self.kind.is_empty() && self.meta.is_empty() && self.sample == Sample::All
    }
}

/// Which of its jobs an entry is for, by their ids (`enforce_percent`). A job that is among ten in a hundred is among
/// twenty too, at each sidecar and in each attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Sample {
    /// All of them.
    #[default]
    All,
    /// So many in a hundred. A job without an id is none of them.
    First(u8),
    /// All but so many in a hundred.
    AllBut(u8),
}

impl Sample {
    /// Whether the job with this id is one of them.
    pub fn has(self, id: Option<&str>) -> bool {
        let (percent, wanted) = match self {
            Sample::All => return true,
            Sample::First(percent) => (percent, true),
            Sample::AllBut(percent) => (percent, false),
        };
        let place = |id: &str| fingerprint([&b"enforce_percent"[..], id.as_bytes()]) % 100;
        id.is_some_and(|id| place(id) < percent.into()) == wanted
    }
}

fn any(patterns: &[Pattern], text: &str) -> bool {
    patterns.is_empty() || patterns.iter().any(|pattern| pattern.matches(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs() {
        let table = [
            ("*", "", true),
            ("*", "anything", true),
            ("billing", "billing", true),
            ("billing", "billing-eu", false),
            ("billing-*", "billing-eu", true),
            ("billing-*", "billing", false),
            ("*.charge", "payment.charge", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("?", "é", true),
            ("?", "", false),
            ("a?c*", "abc", true),
            ("**", "x", true),
            ("*x", "xxy", false),
        ];
        for (glob, text, expected) in table {
            assert_eq!(Pattern::new(glob).matches(text), expected, "{glob} {text}");
        }
    }

    /// Sidecars of two releases beside each other choose the same jobs: whoever changes these numbers splits them.
    #[test]
    fn samples_are_nested_and_golden() {
        let ids: Vec<String> = (0..10_000).map(|n| format!("job-{n}")).collect();
        let among = |sample: Sample| ids.iter().filter(move |id| sample.has(Some(id)));
        let ten: Vec<_> = among(Sample::First(10)).collect();
        assert_eq!(ten.len(), 957);
        assert_eq!(ten[..3], ["job-19", "job-20", "job-29"]);
        assert!(ten.iter().all(|id| Sample::First(11).has(Some(id))));
        assert_eq!(among(Sample::AllBut(10)).count(), 10_000 - ten.len());
        assert_eq!(among(Sample::First(100)).count(), 10_000);
        assert!(Sample::AllBut(10).has(None) && !Sample::First(100).has(None));
    }

    #[test]
    fn a_hostile_pattern_ends_soon() {
        // Exponential matchers never come back from this one.
        let glob = Pattern::new(&"*a".repeat(40));
        assert!(!glob.matches(&format!("{}b", "a".repeat(2_000))));
    }
}
