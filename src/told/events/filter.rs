//! A subscriber's filter, read from the query of its request: `channel`, `types`, `queues`, `job_types` and `sources`
//! (events text, 6.1 and 6.4). All of them must match. Other parameters are ignored.

use std::borrow::Cow;

use super::event::EncodedEvent;
use ojs_wire::ojs;

/// The most names in one list.
const NAMES: usize = 64;
/// The longest name or pattern, in bytes.
const LONGEST: usize = 256;

/// A subscriber's filter; by default it lets everything through.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Filter {
    /// The channel it asked for.
    pub channel: Channel,
    types: Vec<NamePattern>,
    queues: Vec<NamePattern>,
    job_types: Vec<NamePattern>,
    sources: Vec<NamePattern>,
}

/// One of the streams that SDKs name.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub enum Channel {
    /// `all`, `events`, or nothing said.
    #[default]
    All,
    /// `job:ID`
    Job(Box<str>),
    /// `queue:NAME`
    Queue(Box<str>),
    /// One that only the backend may know.
    Other(Box<str>),
}

/// A query that can match nothing.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{field}: {why}")]
pub struct BadFilter {
    /// The parameter.
    pub field: &'static str,
    /// The problem, and what would be right.
    pub why: String,
}

impl BadFilter {
    fn of(field: &'static str) -> impl Fn(String) -> BadFilter {
        move |why| BadFilter { field, why }
    }
}

/// A name, or the beginning of names.
#[derive(Clone, PartialEq, Eq, Debug)]
struct NamePattern {
    begins: Box<str>,
    open: bool,
}

impl NamePattern {
    fn matches(&self, name: &str) -> bool {
        if self.open {
            name.starts_with(&*self.begins)
        } else {
            *name == *self.begins
        }
    }
}

impl Filter {
    /// Reads the query of a request.
    ///
    /// # Errors
    /// A known parameter has a value that can match nothing: bad characters, too long, too many.
    pub fn read(query: Option<&str>) -> Result<Filter, BadFilter> {
        let mut filter = Filter::default();
        for pair in query.unwrap_or_default().split('&') {
            let (name, raw) = pair.split_once('=').unwrap_or((pair, ""));
            let (field, list) = match name {
                "channel" => {
                    let channel = value(raw).and_then(|text| channel(&text));
                    filter.channel = channel.map_err(BadFilter::of("channel"))?;
                    continue;
                }
                "types" => ("types", &mut filter.types),
                "event_types" => ("event_types", &mut filter.types),
                "queue" => ("queue", &mut filter.queues),
                "queues" => ("queues", &mut filter.queues),
                "job_types" => ("job_types", &mut filter.job_types),
                "sources" => ("sources", &mut filter.sources),
                _ => continue,
            };
            let names = value(raw).map_err(BadFilter::of(field))?;
            for name in names.split(',').filter(|name| !name.is_empty()) {
                list.push(pattern(field, name).map_err(BadFilter::of(field))?);
                if list.len() > NAMES {
                    let why = format!("has more than {NAMES} names; ask for less, or for all");
                    return Err(BadFilter { field, why });
                }
            }
        }
        Ok(filter)
    }

    /// Whether the subscriber wants this event of `source`.
    pub(super) fn lets_through(&self, told: &EncodedEvent, source: &str) -> bool {
        let on_channel = match &self.channel {
            Channel::All => true,
            Channel::Job(id) => told.job.as_deref() == Some(id),
            Channel::Queue(name) => told.queue.as_deref() == Some(name),
            Channel::Other(_) => false,
        };
        let any = |list: &[NamePattern], name: Option<&str>| {
            list.is_empty() || name.is_some_and(|name| list.iter().any(|one| one.matches(name)))
        };
        on_channel
            && any(&self.types, Some(told.kind))
            && any(&self.queues, told.queue.as_deref())
            && any(&self.job_types, told.job_type.as_deref())
            && any(&self.sources, Some(source))
    }

    /// Whether the subscriber wants events that go by one of these names.
    pub fn wants_type<'a>(&self, mut names: impl Iterator<Item = &'a str>) -> bool {
        self.types.is_empty() || names.any(|name| self.types.iter().any(|one| one.matches(name)))
    }
}

impl std::fmt::Display for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Channel::All => f.write_str("all"),
            Channel::Job(id) => write!(f, "job:{id}"),
            Channel::Queue(name) => write!(f, "queue:{name}"),
            Channel::Other(name) => f.write_str(name),
        }
    }
}

/// The text of a value, its escapes undone.
fn value(raw: &str) -> Result<Cow<'_, str>, String> {
    let text = ojs::decoded(raw).ok_or("is not UTF-8")?;
    match text.len() > NAMES * LONGEST {
        true => Err("is too long".to_owned()),
        false => Ok(text),
    }
}

fn channel(text: &str) -> Result<Channel, String> {
    let bad = |why: &str| Err(why.to_owned());
    if text.len() > LONGEST || text.chars().any(char::is_control) {
        return bad("is no name; write `job:ID`, `queue:NAME` or `all`");
    }
    match text.split_once(':') {
        Some(("job", id)) if !id.is_empty() => Ok(Channel::Job(id.into())),
        Some(("queue", name)) if !name.is_empty() => Ok(Channel::Queue(name.into())),
        Some(("job" | "queue", _)) => bad("names no job or queue; write `job:ID` or `queue:NAME`"),
        _ if matches!(text, "" | "all" | "events") => Ok(Channel::All),
        _ => Ok(Channel::Other(text.into())),
    }
}

/// One item of a list: printable characters, and a `*` only at the end.
fn pattern(field: &str, text: &str) -> Result<NamePattern, String> {
    if text.len() > LONGEST {
        return Err(format!("has a name of more than {LONGEST} bytes"));
    }
    let (begins, open) = match text.strip_suffix('*') {
        Some(begins) => (begins, true),
        None => (text, false),
    };
    let types = matches!(field, "types" | "event_types");
    let fits = |c: char| match types {
        true => c.is_ascii_alphanumeric() || "._-".contains(c),
        false => c != '*' && !c.is_whitespace() && !c.is_control(),
    };
    if !begins.chars().all(fits) {
        let example = if types {
            "job.completed` or `rate_limit.*"
        } else {
            "email` or `mail.*"
        };
        return Err(format!(
            "{text:?} is no name; write names such as `{example}`, separated by commas"
        ));
    }
    let begins = begins.into();
    Ok(NamePattern { begins, open })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(query: &str) -> Filter {
        Filter::read(Some(query)).unwrap()
    }

    fn field(query: &str) -> &'static str {
        Filter::read(Some(query)).unwrap_err().field
    }

    #[test]
    fn channels_as_sdks_write_them() {
        for all in ["", "channel=", "channel=all", "channel=events", "x=1&y"] {
            assert_eq!(read(all).channel, Channel::All, "{all}");
        }
        assert_eq!(Filter::read(None).unwrap(), Filter::default());
        for job in ["channel=job:j1", "channel=job%3Aj1", "a=b&channel=job%3aj1"] {
            assert_eq!(read(job).channel, Channel::Job("j1".into()), "{job}");
        }
        let named = Channel::Queue("a:b".into());
        assert_eq!(read("channel=queue:a:b").channel, named);
        assert_eq!(named.to_string(), "queue:a:b");
        let other = Channel::Other("workflow:w".into());
        assert_eq!(read("channel=workflow:w").channel, other);
        for bad in [
            "channel=job:",
            "channel=queue%3A",
            "channel=%ff",
            "channel=a%0Ab",
        ] {
            assert_eq!(field(bad), "channel", "{bad}");
        }
        assert_eq!(field(&format!("channel={}", "x".repeat(300))), "channel");
    }

    #[test]
    fn types_are_names_and_beginnings_of_names() {
        let wants = |query: &str, name: &str| read(query).wants_type([name].into_iter());
        assert!(wants("", "job.completed"));
        assert!(wants("types=", "job.completed"));
        assert!(wants("types=job.failed,job.completed", "job.completed"));
        assert!(wants(
            "types=job.failed&types=job.completed",
            "job.completed"
        ));
        assert!(wants("types=job.*", "job.completed"));
        assert!(wants("event_types=%6aob.%2A", "job.completed"));
        assert!(wants("types=*", "job.completed"));
        assert!(!wants("types=job", "job.completed"));
        assert!(!wants("types=rate_limit.*", "job.completed"));
        assert!(!wants("types=job.completed.", "job.completed"));
    }

    #[test]
    fn absurd_lists_are_refused_by_name() {
        for bad in [
            "types=a b",
            "types=%00",
            "types=rate_limit.*.x",
            "types=**",
            "types=%7B%7D",
            "types=\u{e9}",
        ] {
            assert_eq!(field(bad), "types", "{bad}");
        }
        assert_eq!(field(&format!("types={}", "x".repeat(300))), "types");
        assert_eq!(field(&format!("types={}", "a,".repeat(65))), "types");
        assert_eq!(field(&format!("types={}", ",".repeat(20_000))), "types");
        assert_eq!(field("job_types=a*b"), "job_types");
        assert_eq!(field("queues=a%20b"), "queues");
        assert!(Filter::read(Some(&format!("types={}", "a,".repeat(64)))).is_ok());
    }
}
