//! Keys made from a job's attributes: `stripe:{meta.tenant_id}`.
//!
//! Two different values never make the same key, and no value reaches into another key's name:
//! inside a value everything but letters, digits, `.`, `-` and `_` is written `x_HH` (its bytes in
//! upper-case hex), so a `:` in a key is always the template's own. A `_` after an `x` is written
//! that way too, and so is a first character that no key may begin with. A missing value is
//! `x_none`, which no value makes because `n` is no hex digit.

use std::borrow::Cow;
use std::fmt::{self, Write};

use super::job_view::JobView;
use super::json_path::{find, scalar};
use super::spelling::nearest;
use ojs_limit::{Key, fingerprint};

/// What stands for a value that a job does not have.
const MISSING: &str = "x_none";

/// Marks a key that was too long: what follows is the hash of the whole.
const HASHED: &str = "x_h";

/// So many bytes of it stand before that.
const KEPT: usize = Key::MAX - HASHED.len() - 32;

/// A key with places that each job fills in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Template {
    text: Box<str>,
    parts: Vec<Part>,
    constant: Option<Key>,
}

/// A piece of a template.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Part {
    Literal(Box<str>),
    Place(Attribute),
}

/// What a job is asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Attribute {
    Queue,
    Type,
    Tenant,
    /// A path below `meta`.
    Meta(Box<str>),
    /// Of a call: the header by this name, in small letters.
    Header(Box<str>),
    /// Of a call: the host that it names.
    Host,
    /// Of a call: a segment of its path, from 0.
    Path(usize),
    /// Of a call: a path in its body, which is JSON.
    Json(Box<str>),
}

/// What a call is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallValue<'a> {
    /// The header by this name, in small letters.
    Header(&'a str),
    /// The host that it names.
    Host,
    /// A segment of its path, from 0.
    Segment(usize),
    /// A path in its body, which is JSON.
    Json(&'a str),
}

/// Why a text is no template.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadTemplate {
    /// Nothing was given.
    #[error("a key must not be empty")]
    Empty,
    /// A brace without its partner.
    #[error("`{{` and `}}` must come in pairs, as in \"stripe:{{meta.tenant_id}}\"")]
    Brace,
    /// Not one of the attributes.
    #[error("{{{0}}} is not known; {advice}", advice = meant(.0))]
    Attribute(String),
    /// Not one of those of a call.
    #[error(
        "{{{0}}} is not known; there are {{header.NAME}}, {{path.N}}, {{json.NAME}} and {{host}}"
    )]
    OfCall(String),
    /// It would be stored and shown.
    #[error(
        "{{header.{0}}} has credentials, and keys are stored and shown; name a header that says whose call it is"
    )]
    Credentials(String),
    /// Outside the key pattern.
    #[error(
        "{0:?} is not allowed in a key; it is letters, digits and `.` `_` `:` `-`, beginning with a letter or digit"
    )]
    Character(char),
    /// Two places whose values would run into each other.
    #[error("put a `:` between two {{…}}, so that different values cannot make the same key")]
    Touching,
    /// No room for any value.
    #[error("a key has at most 256 bytes, this one has {0} before any value")]
    Long(usize),
}

/// Whether a header has credentials, as far as its name tells.
fn has_credentials(header: &str) -> bool {
    let name = header.to_ascii_lowercase();
    let ends = [
        "authorization",
        "cookie",
        "api-key",
        "apikey",
        "token",
        "secret",
    ];
    ends.iter().any(|end| name.ends_with(end))
}

/// Which attribute an unknown name may stand for.
fn meant(name: &str) -> String {
    let known = ["queue", "type", "tenant"];
    match nearest(name.trim_end_matches("_id"), known.into_iter()) {
        Some(near) => format!("did you mean {{{near}}}?"),
        None => "there are {queue}, {type}, {tenant} and {meta.NAME}".into(),
    }
}

/// What came of filling a template in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Rendered<'t> {
    /// Every value was there.
    Whole(Key),
    /// One was missing: its name (`meta.tenant_id`), and the key in which a fixed word stands for it.
    Missing(Cow<'t, str>, Key),
}

impl Template {
    /// Reads a template.
    ///
    /// # Errors
    /// See [`BadTemplate`].
    pub fn new(text: &str) -> Result<Template, BadTemplate> {
        Template::read(text, Attribute::parse)
    }

    /// Reads a template that calls fill in.
    ///
    /// # Errors
    /// See [`BadTemplate`].
    pub fn of_calls(text: &str) -> Result<Template, BadTemplate> {
        Template::read(text, Attribute::of_call)
    }

    fn read(
        text: &str,
        attribute: fn(&str) -> Result<Attribute, BadTemplate>,
    ) -> Result<Template, BadTemplate> {
        let parts = split(text, attribute)?;
        let literals: usize = parts
            .iter()
            .map(|p| if let Part::Literal(l) = p { l.len() } else { 0 })
            .sum();
        if literals > Key::MAX {
            return Err(BadTemplate::Long(literals));
        }
        let constant = match parts.as_slice() {
            [] => return Err(BadTemplate::Empty),
            [Part::Literal(literal)] => Some(checked(literal.to_string())),
            _ => None,
        };
        Ok(Template {
            text: text.into(),
            parts,
            constant,
        })
    }

    /// The template as written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The key, when it is the same for every job.
    pub fn constant(&self) -> Option<&Key> {
        self.constant.as_ref()
    }

    /// Whether a job's type is part of its key.
    pub fn sees_types(&self) -> bool {
        self.parts.contains(&Part::Place(Attribute::Type))
    }

    /// Whether a job's tenant is part of its key.
    pub fn sees_tenants(&self) -> bool {
        self.parts.contains(&Part::Place(Attribute::Tenant))
    }

    /// Whether a call's body has a part of its key.
    pub fn sees_bodies(&self) -> bool {
        let is_of_body = |part: &Part| matches!(part, Part::Place(Attribute::Json(_)));
        self.parts.iter().any(is_of_body)
    }

    /// Whether something in its keys is fixed.
    pub(super) fn has_text(&self) -> bool {
        let mut parts = self.parts.iter();
        self.constant.is_some() || parts.any(|part| matches!(part, Part::Literal(_)))
    }

    /// Whether some job may have this key. `false` is certain.
    pub fn may_give(&self, key: &Key) -> bool {
        self.may_give_with(key, |_, _| true)
    }

    /// Whether a job may have this key whose values may be these; a missing one is empty. `false` is certain.
    pub(super) fn may_give_with(
        &self,
        key: &Key,
        may_be: impl Fn(&Attribute, &str) -> bool,
    ) -> bool {
        if let Some(constant) = &self.constant {
            return constant == key;
        }
        // The end of a long one is a hash.
        if let Some(begin) = before_hash(key) {
            return match self.parts.first() {
                Some(Part::Literal(first)) => {
                    begin.starts_with(&**first) || first.starts_with(begin)
                }
                _ => true,
            };
        }
        let values = self.values_in(key.as_str());
        values.is_some_and(|values| values.iter().all(|(of, value)| may_be(of, value)))
    }

    /// The values of the places that make this key; `None`: none make it. No value has a `:`, and between two places there
    /// is one, so there are no two ways to read a key.
    fn values_in<'t>(&'t self, key: &str) -> Option<Vec<(&'t Attribute, String)>> {
        let (mut rest, mut values) = (key, Vec::new());
        for (nth, part) in self.parts.iter().enumerate() {
            let attribute = match part {
                Part::Literal(literal) => {
                    rest = rest.strip_prefix(&**literal)?;
                    continue;
                }
                Part::Place(attribute) => attribute,
            };
            let next = match self.parts.get(nth + 1) {
                Some(Part::Literal(next)) => &**next,
                _ => "",
            };
            let end = match next.find(':') {
                Some(colon) => rest.find(':')?.checked_sub(colon)?,
                None => rest.len().checked_sub(next.len())?,
            };
            let (written, after) = rest.split_at_checked(end)?;
            let begins = if nth == 0 { 0 } else { usize::MAX };
            values.push((attribute, value_of(written, begins)?));
            rest = after;
        }
        rest.is_empty().then_some(values)
    }

    /// Whether a queue's name alone gives the key.
    pub fn only_queue(&self) -> bool {
        self.parts
            .iter()
            .all(|part| matches!(part, Part::Literal(_) | Part::Place(Attribute::Queue)))
    }

    /// The key of a job that has this value, where a job fills in one value.
    pub fn with_value(&self, value: &str) -> Option<Key> {
        let (mut out, mut places) = (String::new(), 0);
        for part in &self.parts {
            match part {
                Part::Literal(literal) => out.push_str(literal),
                Part::Place(_) => {
                    escape(value, 0, &mut out);
                    places += 1;
                }
            }
        }
        (places == 1 && !value.is_empty()).then(|| checked(out))
    }

    /// Whether both make keys of the same form: what is fixed in them is the same, and what fills the places may differ.
    pub fn has_form_of(&self, other: &Template) -> bool {
        let alike = |(one, other): (&Part, &Part)| match (one, other) {
            (Part::Literal(one), Part::Literal(other)) => one == other,
            (Part::Place(_), Part::Place(_)) => true,
            _ => false,
        };
        self.parts.len() == other.parts.len() && self.parts.iter().zip(&other.parts).all(alike)
    }

    /// The key of all calls to this host; `None`: more than that makes their keys.
    pub fn of_host(&self, host: &str) -> Option<Key> {
        let mut is_told = true;
        let key = self.of_call(|value| {
            is_told &= matches!(value, CallValue::Host);
            Some(Cow::Borrowed(host))
        });
        is_told.then_some(key)
    }

    /// How the keys of calls to this host look, with the other places as they are written.
    pub fn told_of_host(&self, host: &str) -> String {
        let mut written = String::new();
        let begins = if self.text.starts_with("{host}") {
            0
        } else {
            usize::MAX
        };
        escape(host, begins, &mut written);
        self.text.replace("{host}", &written)
    }

    /// The key of a call that says this of itself. For what it does not say a fixed word stands.
    pub fn of_call<'v>(
        &self,
        mut value_of: impl FnMut(CallValue<'_>) -> Option<Cow<'v, str>>,
    ) -> Key {
        if let Some(key) = &self.constant {
            return key.clone();
        }
        let mut out = String::with_capacity(64);
        self.fill_in(&mut out, |attribute| match attribute {
            Attribute::Header(name) => value_of(CallValue::Header(name)),
            Attribute::Host => value_of(CallValue::Host),
            Attribute::Path(nth) => value_of(CallValue::Segment(*nth)),
            Attribute::Json(path) => value_of(CallValue::Json(path)),
            _ => None,
        });
        checked(out)
    }

    /// The key of a job. Past 256 bytes its beginning and a hash of the whole.
    pub fn render(&self, job: &JobView<'_>) -> Rendered<'_> {
        if let Some(key) = &self.constant {
            return Rendered::Whole(key.clone());
        }
        let mut out = String::with_capacity(64);
        match self.fill(job, &mut out) {
            None => Rendered::Whole(checked(out)),
            Some(name) => Rendered::Missing(name, checked(out)),
        }
    }

    /// Appends the key of a job, of whatever length; returns the name of a value that is missing, for
    /// which a fixed word stands.
    pub(super) fn fill(&self, job: &JobView<'_>, out: &mut String) -> Option<Cow<'_, str>> {
        self.fill_in(out, |attribute| attribute.of(job))
    }

    fn fill_in<V: AsRef<str>>(
        &self,
        out: &mut String,
        mut value_of: impl FnMut(&Attribute) -> Option<V>,
    ) -> Option<Cow<'_, str>> {
        let (start, mut missing) = (out.len(), None);
        for part in &self.parts {
            match part {
                Part::Literal(literal) => out.push_str(literal),
                Part::Place(attribute) => match value_of(attribute) {
                    Some(value) if !value.as_ref().is_empty() => escape(value.as_ref(), start, out),
                    _ => {
                        out.push_str(MISSING);
                        missing = missing.or(Some(attribute.name()));
                    }
                },
            }
        }
        missing
    }
}

/// The key `prefix` followed by `value`, by the same rules as `prefix{…}`. `prefix` must be the
/// beginning of a valid key.
pub fn key_of(prefix: &str, value: &str) -> Key {
    let mut out = String::from(prefix);
    match value {
        "" => out.push_str(MISSING),
        _ => escape(value, 0, &mut out),
    }
    checked(out)
}

impl Attribute {
    fn parse(name: &str) -> Result<Attribute, BadTemplate> {
        match name {
            "queue" => Ok(Attribute::Queue),
            "type" => Ok(Attribute::Type),
            "tenant" => Ok(Attribute::Tenant),
            other => match other.strip_prefix("meta.") {
                Some(path) if !path.is_empty() => Ok(Attribute::Meta(path.into())),
                _ => Err(BadTemplate::Attribute(other.into())),
            },
        }
    }

    fn of_call(name: &str) -> Result<Attribute, BadTemplate> {
        let header = |name: &&str| {
            name.bytes()
                .all(|c| c.is_ascii_alphanumeric() || b"-_".contains(&c))
        };
        let found = match name.split_once('.') {
            None if name == "host" => Some(Attribute::Host),
            Some(("path", nth)) => nth.parse().ok().map(Attribute::Path),
            Some(("json", path)) if !path.split('.').any(str::is_empty) => {
                Some(Attribute::Json(path.into()))
            }
            Some(("header", of)) if has_credentials(of) => {
                return Err(BadTemplate::Credentials(of.into()));
            }
            Some(("header", of)) => (Some(of).filter(|of| !of.is_empty()).filter(header))
                .map(|of| Attribute::Header(of.to_ascii_lowercase().into())),
            _ => None,
        };
        found.ok_or_else(|| BadTemplate::OfCall(name.into()))
    }

    fn of<'a>(&self, job: &JobView<'a>) -> Option<Cow<'a, str>> {
        let given = |text: &'a str| Some(Cow::Borrowed(text)).filter(|text| !text.is_empty());
        match self {
            Attribute::Queue => given(job.queue),
            Attribute::Type => given(job.kind),
            Attribute::Tenant => job.tenant_id(),
            Attribute::Meta(path) => find(job.meta?, path).and_then(scalar),
            Attribute::Header(_) | Attribute::Host | Attribute::Path(_) | Attribute::Json(_) => {
                None
            }
        }
    }

    fn name(&self) -> Cow<'static, str> {
        match self {
            Attribute::Queue => "queue".into(),
            Attribute::Type => "type".into(),
            Attribute::Tenant => "meta.tenant_id".into(),
            Attribute::Meta(path) => format!("meta.{path}").into(),
            Attribute::Header(name) => format!("header.{name}").into(),
            Attribute::Host => "host".into(),
            Attribute::Path(nth) => format!("path.{nth}").into(),
            Attribute::Json(path) => format!("json.{path}").into(),
        }
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Cuts a template's text into its parts and checks each.
fn split(
    text: &str,
    attribute: fn(&str) -> Result<Attribute, BadTemplate>,
) -> Result<Vec<Part>, BadTemplate> {
    let (mut parts, mut rest) = (Vec::new(), text);
    while !rest.is_empty() {
        let brace = rest.find(['{', '}']).unwrap_or(rest.len());
        let (literal, after) = rest.split_at(brace);
        if !literal.is_empty() {
            let is_allowed = |c: &char| c.is_ascii_alphanumeric() || ".:-_".contains(*c);
            let starts_well =
                !parts.is_empty() || literal.starts_with(|c: char| c.is_ascii_alphanumeric());
            let wrong = literal.chars().find(|c| !is_allowed(c));
            if let Some(c) = wrong.or(literal.chars().next().filter(|_| !starts_well)) {
                return Err(BadTemplate::Character(c));
            }
            parts.push(Part::Literal(literal.into()));
        }
        rest = after;
        if rest.is_empty() {
            break;
        }
        let inside = rest.strip_prefix('{').ok_or(BadTemplate::Brace)?;
        let place = inside.split_once('}');
        let place = place.filter(|(name, _)| !name.contains('{'));
        let (name, after) = place.ok_or(BadTemplate::Brace)?;
        let separated = match parts.as_slice() {
            [.., Part::Place(_), Part::Literal(between)] => between.contains(':'),
            [.., Part::Place(_)] => false,
            _ => true,
        };
        if !separated {
            return Err(BadTemplate::Touching);
        }
        parts.push(Part::Place(attribute(name)?));
        rest = after;
    }
    Ok(parts)
}

/// Appends a value so that it can be told apart from every other value and from the template. The key begins at
/// `start` in `out`, and not with every character.
fn escape(value: &str, start: usize, out: &mut String) {
    let mut first = out.len() == start;
    // Most values need nothing.
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || (!first && matches!(byte, b'.' | b'-'));
    if value.bytes().all(plain) {
        return out.push_str(value);
    }
    let mut before = 0;
    for &byte in value.as_bytes() {
        let plain = match byte {
            b'_' => before != b'x' && !first,
            b'.' | b'-' => !first,
            _ => byte.is_ascii_alphanumeric(),
        };
        if plain {
            out.push(char::from(byte));
        } else {
            // A text takes whatever is written to it.
            let _written = write!(out, "x_{byte:02X}");
        }
        (before, first) = (byte, false);
    }
}

/// The value that an escaped text came from, in bytes.
pub(super) fn unescaped(text: &str) -> Vec<u8> {
    let (mut out, mut rest) = (Vec::new(), text);
    while let Some(c) = rest.chars().next() {
        let hex = rest.strip_prefix("x_").and_then(|after| after.get(..2));
        let byte = hex.and_then(|hex| u8::from_str_radix(hex, 16).ok());
        out.push(byte.unwrap_or(c as u8));
        let written = if byte.is_some() { 4 } else { 1 };
        rest = rest.get(written..).unwrap_or_default();
    }
    out
}

/// The value that was written so into a key which begins at `start`, empty for one that was missing; `None`: none is.
fn value_of(written: &str, start: usize) -> Option<String> {
    if written == MISSING {
        return Some(String::new());
    }
    let (value, mut again) = (String::from_utf8(unescaped(written)).ok()?, String::new());
    escape(&value, start, &mut again);
    (!value.is_empty() && again == written).then_some(value)
}

/// What stands before the hash of a key that was too long; `None`: it was not.
fn before_hash(key: &Key) -> Option<&str> {
    let whole = Some(key.as_str()).filter(|text| text.len() == Key::MAX);
    let (begin, end) = whole?.split_at_checked(KEPT)?;
    end.starts_with(HASHED).then_some(begin)
}

/// The key of a rendered text; a long one keeps its beginning and gets a 128-bit hash of the
/// whole.
#[expect(clippy::expect_used, reason = "valid by construction")]
fn checked(text: String) -> Key {
    let text = if text.len() <= Key::MAX {
        text
    } else {
        shortened(&text)
    };
    // Cannot fail: literals were checked, escapes are within the pattern, and the length is bounded.
    Key::new(&text).expect("a rendered template is a valid key")
}

fn shortened(text: &str) -> String {
    let beginning = text.get(..KEPT).unwrap_or_default();
    let hash = fingerprint([text.as_bytes()]);
    format!("{beginning}{HASHED}{hash:032x}")
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;
    use ojs_json::Json;

    fn render(template: &str, queue: &str, kind: &str, meta: Option<&str>) -> String {
        let meta = meta.map(|meta| Json::parse(meta.as_bytes(), 16).unwrap());
        let job = JobView {
            kind,
            meta,
            ..JobView::of_queue(queue)
        };
        match Template::new(template).unwrap().render(&job) {
            Rendered::Whole(key) => key.to_string(),
            Rendered::Missing(name, key) => format!("{key} without {name}"),
        }
    }

    #[test]
    fn values_are_filled_in_and_escaped() {
        let table = [
            ("stripe", "stripe"),
            ("q:{queue}", "q:billing"),
            ("{queue}:{type}", "billing:payment.charge"),
            ("t:{meta.tenant_id}", "t:acme-corp"),
            ("t:{tenant}", "t:acme-corp"),
            ("{meta.n}", "5"),
            ("{meta.negative}", "x_2D1"),
            ("n:{meta.negative}", "n:-1"),
            ("n:{meta.float}", "n:1.0"),
            ("b:{meta.yes}", "b:true"),
            ("{meta.colon}", "ax_3Ab"),
            ("{meta.under}", "a_b"),
            ("{meta.looks}", "axx_5F3Ab"),
            ("{meta.o}", "x_C3x_B8"),
            ("k:{meta.a.b}", "k:whole"),
            ("k:{meta.c.d}", "k:nested"),
            ("k:{meta.none}:z", "k:x_none:z without meta.none"),
            ("k:{meta.null}", "k:x_none without meta.null"),
            ("k:{meta.c}", "k:x_none without meta.c"),
            ("k:{meta.empty}", "k:x_none without meta.empty"),
        ];
        let meta = r#"{"tenant_id":"acme-corp","n":5,"negative":-1,"float":1.0,"yes":true,"colon":"a:b","under":"a_b",
            "looks":"ax_3Ab","o":"\u00f8","a.b":"whole","a":{"b":"hidden"},"c":{"d":"nested"},"null":null,"empty":""}"#;
        for (template, key) in table {
            assert_eq!(
                render(template, "billing", "payment.charge", Some(meta)),
                key,
                "{template}"
            );
        }
    }

    #[test]
    fn wrong_templates_are_refused() {
        let table = [
            ("", BadTemplate::Empty),
            ("a:{queue", BadTemplate::Brace),
            ("a:{meta.b:{queue}", BadTemplate::Brace),
            ("a}:", BadTemplate::Brace),
            ("{job}", BadTemplate::Attribute("job".into())),
            ("{meta.}", BadTemplate::Attribute("meta.".into())),
            ("a b", BadTemplate::Character(' ')),
            ("-a", BadTemplate::Character('-')),
            ("{queue}{type}", BadTemplate::Touching),
            ("{queue}-{type}", BadTemplate::Touching),
            ("{queue}:{type}.{tenant}", BadTemplate::Touching),
        ];
        for (text, error) in table {
            assert_eq!(Template::new(text), Err(error), "{text}");
        }
        assert_eq!(Template::new(&"a".repeat(257)), Err(BadTemplate::Long(257)));
    }

    #[test]
    fn calls_fill_in_what_they_say() {
        let call = |value: CallValue<'_>| match value {
            CallValue::Header("stripe-account") => Some("acct:1".into()),
            CallValue::Host => Some("127.0.0.1:8082".into()),
            CallValue::Segment(nth) => ["v1", "charges", ""].get(nth).map(|&text| text.into()),
            CallValue::Json("model") => Some("gpt-5".into()),
            CallValue::Header(_) | CallValue::Json(_) => None,
        };
        for (template, key) in [
            ("stripe", "stripe"),
            ("s:{header.Stripe-Account}", "s:acctx_3A1"),
            ("s:{header.other}", "s:x_none"),
            ("s:{path.1}:{path.0}", "s:charges:v1"),
            ("s:{path.2}", "s:x_none"),
            ("s:{path.9}", "s:x_none"),
            ("s:{host}", "s:127.0.0.1x_3A8082"),
            ("s:{json.model}", "s:gpt-5"),
            ("s:{json.a.b}", "s:x_none"),
        ] {
            let template = Template::of_calls(template).unwrap();
            assert_eq!(template.of_call(call).as_str(), key);
        }
        for wrong in [
            "{queue}",
            "{path.x}",
            "{header.}",
            "{header.a b}",
            "{json.}",
            "{json.a..b}",
        ] {
            assert!(matches!(
                Template::of_calls(wrong),
                Err(BadTemplate::OfCall(_))
            ));
        }
        let form = |call: &str, job: &str| {
            let call = Template::of_calls(call).unwrap();
            call.has_form_of(&Template::new(job).unwrap())
        };
        assert!(form("s:{path.1}:b", "s:{meta.a}:b") && form("stripe", "stripe"));
        assert!(!form("s:{path.1}", "s:{meta.a}:b") && !form("s", "s:{meta.a}"));
    }

    #[test]
    fn what_cannot_be_a_key_is_known() {
        for (template, key, may) in [
            ("stripe", "stripe", true),
            ("stripe", "stripes", false),
            ("crm:{queue}", "crm:a", true),
            ("crm:{queue}", "crm", false),
            ("crm:{queue}:v1", "crm:a:v1", true),
            ("crm:{queue}:v1", "crm:a", false),
            ("{queue}", "anything", true),
            ("{queue}:{type}", "anything", false),
            ("{queue}:z", "anything", false),
            ("{queue}:z", "a:y:z", false),
            ("crm:{queue}", "crm:a:b", false),
            ("crm:{queue}", "crm:x_none", true),
            ("crm:{queue}", "crm:ax_20b", true),
            ("crm:{queue}", "crm:ax_2Db", false),
            ("a:{queue}-x:b{type}.c", "a:a-x-x:bb.c", true),
            ("a:{queue}-x:b{type}.c", "a:-x:bb.c", false),
        ] {
            let given = Template::new(template).unwrap();
            assert_eq!(
                given.may_give(&Key::new(key).unwrap()),
                may,
                "{template} {key}"
            );
        }
        let hashed = Template::new("t:{queue}:z").unwrap();
        let long = render("t:{queue}:z", &"a".repeat(300), "", None);
        assert!(hashed.may_give(&Key::new(&long).unwrap()));
        assert!(!hashed.may_give(&Key::new(&"t".repeat(Key::MAX)).unwrap()));
    }

    #[test]
    fn a_long_key_keeps_its_beginning_and_its_identity() {
        let long = |end: &str| render("t:{queue}", &format!("{}{end}", "a".repeat(300)), "", None);
        assert_eq!(long("1").len(), Key::MAX);
        assert!(long("1").starts_with("t:aaa"));
        // Stores have it: an older sidecar and a newer one must count under one key.
        assert!(long("1").ends_with("x_h908d7661fc1deba7a087631e04d85f0e"));
        assert_eq!(long("1"), long("1"));
        assert_ne!(long("1"), long("2"));
    }

    #[test]
    fn all_short_values_make_different_keys() {
        // Enough characters to imitate an escape, the word for a missing value, and a separator.
        let mut values = vec![String::new()];
        for length in 1..=4 {
            let longest: Vec<String> = values
                .iter()
                .filter(|v| v.len() == length - 1)
                .cloned()
                .collect();
            values.extend(
                longest
                    .iter()
                    .flat_map(|v| "x_5F:n-".chars().map(move |c| format!("{v}{c}"))),
            );
        }
        for template in ["{queue}", "p:{queue}"] {
            let keys: HashSet<String> = values
                .iter()
                .map(|value| render(template, value, "", None))
                .collect();
            assert_eq!(keys.len(), values.len(), "{template}");
        }
        let short: Vec<&String> = values.iter().filter(|value| value.len() <= 2).collect();
        let pairs = short.iter().flat_map(|a| {
            short
                .iter()
                .map(move |b| render("{queue}:{type}", a, b, None))
        });
        assert_eq!(
            pairs.collect::<HashSet<_>>().len(),
            short.len() * short.len()
        );
    }

    /// Texts in which escapes, separators and the word for a missing value are likely.
    fn tricky() -> impl Strategy<Value = String> {
        let piece = prop_oneof![
            Just("x".to_owned()),
            Just("_".to_owned()),
            Just("x_".to_owned()),
            Just("x_5F".to_owned()),
            Just("x_none".to_owned()),
            Just("x_h".to_owned()),
            Just(":".to_owned()),
            "[a-zA-Z0-9.:_-]",
            any::<char>().prop_map(String::from),
        ];
        prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn values_can_be_read_back(a in tricky(), b in tricky()) {
            // What can be read back is different for different values.
            for (template, between) in [("{queue}:{type}", ":"), ("px{queue}:{type}", ":"), ("a:{queue}-x:b{type}", "-x:b")] {
                let key = render(template, &a, &b, None);
                prop_assume!(!a.is_empty() && !b.is_empty() && key.len() < Key::MAX);
                let (before, _) = template.split_once('{').unwrap_or_default();
                let (one, other) = key.strip_prefix(before).and_then(|rest| rest.split_once(between)).unwrap();
                prop_assert_eq!((unescaped(one), unescaped(other)), (a.clone().into_bytes(), b.clone().into_bytes()), "{}", key);
            }
        }

        #[test]
        fn a_value_cannot_reach_into_another_template(value in tricky()) {
            let outside = render("api:{queue}", &format!("admin:{value}"), "", None);
            prop_assert_ne!(outside, render("api:admin:{queue}", &value, "", None));
        }

        #[test]
        fn keys_in_the_pattern_stay_readable(value in "[a-zA-Z0-9][a-wyzA-Z0-9.-]{0,40}") {
            prop_assert_eq!(render("t:{queue}", &value, "", None), format!("t:{value}"));
        }
    }
}
