//! The names of subqueues. Where a `[[queue]]` says `subqueues = true`, a job with a key of its own waits in one of 256
//! queues of the backend that stand beside its own, its base: `mail-ojst-7f` beside `mail`. Some have more of them. Nobody
//! but the sidecar sees those names.
//!
//! This is stochastic fairness queueing (McKenney, 1990): work of many flows lies in a fixed number of queues by a hash of
//! its flow, so that one flow's backlog stands in the way of few others. A queue for each key would stand in nobody's
//! way, but no official backend ever forgets a queue's name, and the reapers of some pay for each name for ever.

use std::fmt;
use std::sync::LazyLock;

use memchr::memchr_iter;
use memchr::memmem::Finder;

use ojs_limit::{Limited, fingerprint};

/// How many subqueues a queue has that says no number. It is a constant: another number would send the jobs of a key
/// elsewhere.
pub const COUNT: u16 = 256;

/// The most that a queue may have.
pub const MOST: u16 = 1_024;

/// The most that all queues may have together: with these names a pass of a backend's reaper stays short.
pub const MOST_OF_ALL: usize = 2_048;

/// The longest name of a queue that has so many subqueues, in bytes: official backends allow 128.
pub const fn longest_base(count: u16) -> usize {
    if count > COUNT { 119 } else { 120 }
}

/// What stands between a base and the number of a subqueue.
const MARKER: &str = "-ojst-";

static MARKERS: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(MARKER));

/// What the store keeps of a queue with subqueues, so that every sidecar reads them.
#[derive(Debug)]
pub struct SubqueueMark {
    /// The most that it ever had: all of them are read.
    pub most: u16,
    /// By which spread jobs are written to them.
    pub seal: Box<str>,
}

impl SubqueueMark {
    /// Reads what stands in the store. Versions that know one number only wrote `1`.
    pub fn read(text: &str) -> SubqueueMark {
        let (most, seal) = text.split_once(' ').unwrap_or(("256", "256"));
        let most = most.parse().unwrap_or(COUNT).clamp(COUNT, MOST);
        let seal = seal.into();
        SubqueueMark { most, seal }
    }

    /// What stands in the store. Who knows one number only reads the first 256, whatever it says.
    pub fn text(&self) -> String {
        match (self.most, &*self.seal) {
            (COUNT, "256") => "1".to_owned(),
            (most, seal) => format!("{most} {seal}"),
        }
    }
}

/// One of the subqueues of a queue.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Subqueue(pub u16);

/// Jobs that wait in one line: those of a key, or of one group that shares it by weight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flow {
    /// Where they wait. Every version gives the same answer, for the order of a tenant's jobs depends on it.
    pub subqueue: Subqueue,
    /// Tells flows of one subqueue apart, but for one pair in 65,536.
    pub tag: u16,
}

/// How the flows of a queue are spread over its subqueues. Another one sends later jobs of a flow elsewhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spread {
    /// Over how many.
    pub count: u16,
    salt: Option<Salt>,
}

/// What keeps strangers from reckoning which flows share a subqueue: a hash of a text that nobody else knows.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Salt([u8; 16]);

impl fmt::Debug for Salt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Salt(***)")
    }
}

impl Default for Spread {
    fn default() -> Spread {
        Spread::new(COUNT, None)
    }
}

impl Spread {
    /// Over so many subqueues, by this salt.
    pub fn new(count: u16, salt: Option<&str>) -> Spread {
        let salt = salt.map(|text| Salt(fingerprint([text.as_bytes()]).to_be_bytes()));
        Spread { count, salt }
    }

    /// Whether who knows a key cannot reckon where its jobs wait.
    pub fn is_salted(self) -> bool {
        self.salt.is_some()
    }

    /// What tells it from others and keeps the salt unsaid: the number, and behind a colon a hash of the salt.
    pub fn seal(self) -> String {
        let salt = self
            .salt
            .map(|Salt(salt)| fingerprint([&b"seal"[..], &salt]) as u64);
        salt.map_or(self.count.to_string(), |hash| {
            format!("{}:{hash:016x}", self.count)
        })
    }

    /// The flow of a key's jobs, or of a group's.
    pub fn flow(self, key: &str, group: Option<&str>) -> Flow {
        let parts = [key.as_bytes(), group.unwrap_or_default().as_bytes()];
        let salt = self.salt.as_ref().map(|Salt(salt)| &salt[..]);
        let [a, b, c, d, ..] = fingerprint(salt.into_iter().chain(parts)).to_le_bytes();
        Flow {
            subqueue: Subqueue(u16::from_le_bytes([a, b]) % self.count.max(1)),
            tag: u16::from_le_bytes([c, d]),
        }
    }

    /// The tag of the flow that waits in a subqueue under these limits: of the one whose key, or group, leads there.
    /// `None`: none of them does.
    pub fn tag_in(self, subqueue: Subqueue, limits: &[Limited]) -> Option<u16> {
        let flows = limits.iter().flat_map(|one| {
            let group = one.share.as_ref().map(|share| &*share.group);
            let groups = group.map(Some).into_iter().chain([None]);
            groups.map(|group| self.flow(one.key.as_str(), group))
        });
        let mut here = flows.filter(|flow| flow.subqueue == subqueue);
        here.next().map(|flow| flow.tag)
    }
}

impl Subqueue {
    /// The first so many.
    pub fn first(count: u16) -> impl Iterator<Item = Subqueue> {
        (0..count).map(Subqueue)
    }

    /// The one at this place.
    pub fn at(nth: usize) -> Option<Subqueue> {
        u16::try_from(nth).ok().map(Subqueue)
    }

    /// Where it stands among all.
    pub fn nth(self) -> usize {
        self.0.into()
    }

    /// Its name in the backend. The first 256 have two digits, however many there are: so a queue that gets more keeps
    /// those that it has.
    pub fn name_in(self, base: &str) -> String {
        format!("{base}{MARKER}{:02x}", self.0)
    }
}

/// The base and the number that a name has; `None`: it is no subqueue's name.
pub fn split(name: &str) -> Option<(&str, Subqueue)> {
    let (base, digits) = name.rsplit_once(MARKER)?;
    let number = u16::from_str_radix(digits, 16).ok()?;
    let length = if number < COUNT { 2 } else { 3 };
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let is_number = digits.len() == length && digits.bytes().all(is_digit);
    (is_number && number < MOST && !base.is_empty()).then_some((base, Subqueue(number)))
}

/// Whether a text may name a subqueue, in JSON however it is spelt; `false` is certain.
pub fn may_name(text: &[u8]) -> bool {
    MARKERS.find(text).is_some() || memchr_iter(b'\\', text).any(|at| is_of_marker(text, at + 1))
}

/// Whether an escape, behind its backslash, stands for a character of the marker.
fn is_of_marker(text: &[u8], at: usize) -> bool {
    let code = text
        .get(at..at + 5)
        .and_then(|code| code.strip_prefix(b"u00"));
    let code = code.and_then(|digits| std::str::from_utf8(digits).ok());
    let byte = code.and_then(|digits| u8::from_str_radix(digits, 16).ok());
    byte.is_some_and(|byte| MARKER.as_bytes().contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Jobs lie in backends under these names: whoever changes one hides them.
    #[test]
    fn golden_names() {
        for (key, group, name) in [
            ("crm:acme", None, "mail-ojst-a0"),
            ("crm:acme", Some("gold"), "mail-ojst-5f"),
            ("crm:bolt", None, "mail-ojst-a2"),
        ] {
            let flow = Spread::default().flow(key, group);
            assert_eq!(flow.subqueue.name_in("mail"), name);
        }
    }

    /// More subqueues have the same names and some beside them. Each salt has names of its own.
    #[test]
    fn golden_names_of_more_and_of_a_salt() {
        let salt = Some("0123456789abcdef");
        for (count, salt, name, seal) in [
            (512, None, "mail-ojst-a2", "512"),
            (1_024, None, "mail-ojst-2a2", "1024"),
            (256, salt, "mail-ojst-a5", "256:a46e5b86951d1a54"),
            (1_024, salt, "mail-ojst-3a5", "1024:a46e5b86951d1a54"),
        ] {
            let spread = Spread::new(count, salt);
            assert_eq!(spread.flow("crm:bolt", None).subqueue.name_in("mail"), name);
            assert_eq!(spread.seal(), seal);
            assert!(!format!("{spread:?}").contains("0123"), "{spread:?}");
        }
    }

    #[test]
    fn two_salts_put_few_keys_alike() {
        let [one, other] =
            ["a salt of the one", "a salt of another"].map(|salt| Spread::new(MOST, Some(salt)));
        let keys = (0..200).map(|nth| format!("crm:t{nth}"));
        let alike =
            keys.filter(|key| one.flow(key, None).subqueue == other.flow(key, None).subqueue);
        assert!(alike.count() <= 2);
    }

    #[test]
    fn only_names_of_its_shape_are_subqueues() {
        for one in Subqueue::first(MOST) {
            let name = one.name_in("a.b-c");
            assert_eq!(split(&name), Some(("a.b-c", one)));
        }
        for name in [
            "mail",
            "-ojst-7f",
            "mail-ojst-7F",
            "mail-ojst-+1",
            "mail-ojst-7",
            "mail-ojst-07f",
            "mail-ojst-400",
            "mail-ojst-+1f",
            "é-ojst7f",
            "",
        ] {
            assert_eq!(split(name), None, "{name}");
        }
    }
}
