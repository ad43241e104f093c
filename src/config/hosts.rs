//! Reads `hosts` of an `[[egress]]`: the services that calls may name, and the addresses that these may have.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use ojs_policy::fields::Fields as _;
use ojs_policy::{Template, Vendor};
use ojs_reader::{Reported, TomlTable, masked, texts};
use ojs_wire::upstream::{AddressRange, BaseUrl, one_name, usual_port, with_port};

/// So many are named where a call is refused.
const SHOWN: usize = 10;
const EXAMPLES: &str =
    "write a host such as \"api.example.com\", \"*.example.com\" or \"10.0.0.7:8443\"";

const METADATA: &str =
    "calls can reach an address from which clouds hand out the credentials of this machine";

/// The services that calls may name.
#[derive(Clone, PartialEq, Debug)]
pub struct Hosts {
    /// By [`one_name`], with the port in any case, and some with `*.` before it.
    names: BTreeSet<String>,
    /// Whether they speak TLS.
    pub tls: bool,
    /// Addresses that they may have beside public ones.
    pub allow: Arc<[AddressRange]>,
}

impl Hosts {
    /// Where calls to this name go; `None`: nowhere. It is as [`one_name`] writes it.
    pub fn find(&self, name: &str) -> Option<BaseUrl> {
        let name = with_port(name, usual_port(self.tls));
        let mut dots = name.match_indices('.');
        let is_below = |(at, _)| {
            let end = name.get(at..);
            end.is_some_and(|end| self.names.contains(&["*", end].concat()))
        };
        let is_listed = self.names.contains(&name) || dots.any(is_below);
        is_listed.then(|| self.url(&name)).flatten()
    }

    /// The vendor whose all of them are; else one of which nothing is known.
    pub(super) fn vendor(&self) -> &'static Vendor {
        let named = self.names.iter();
        let mut all =
            named.map(|name| Vendor::of_host(name.rsplit_once(':').map_or(name, |at| at.0)));
        let first = all.next();
        let first = first.filter(|first| all.all(|other| other == *first));
        first.unwrap_or_else(|| Vendor::of_host(""))
    }

    /// Where calls to the names go that stand there whole.
    pub fn urls(&self) -> impl Iterator<Item = BaseUrl> {
        let whole = self.names.iter().filter(|name| !name.starts_with('*'));
        whole.filter_map(|name| self.url(name))
    }

    fn url(&self, name: &str) -> Option<BaseUrl> {
        let scheme = if self.tls { "https" } else { "http" };
        format!("{scheme}://{name}").parse().ok()
    }
}

/// Each with its port.
impl fmt::Display for Hosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown: Vec<&str> = self.names.iter().take(SHOWN).map(|name| &**name).collect();
        write!(f, "{}", shown.join(", "))?;
        match self.names.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

/// Warns where a 429 of one host would stop the calls to others.
pub(super) fn warn_of_one_key(table: &mut TomlTable<'_>, hosts: &Hosts, key: &Template) {
    let is_star = |name: &String| name.starts_with('*');
    let are_many = hosts.names.len() > 1 || hosts.names.iter().any(is_star);
    if are_many && !key.as_str().contains("{host}") {
        let title = "all hosts have one key: a 429 of one stops the calls to all of them";
        let hint = "write {host} into the key, such as \"shop:{host}\"";
        table.warn(&table.span, title, hint);
    }
}

/// Warns of keys that callers make up where there is one service: they call it by whatever name leads to this port.
pub(super) fn warn_of_any_host(table: &TomlTable<'_>, name: &str, made: &Template) {
    if made.as_str().contains("{host}") {
        let title = format!(
            "`{}` has {{host}}, and callers of an `upstream` may name any",
            table.path_of(name)
        );
        let hint = "it is their name for this port, so that one caller has as many keys as it likes: take {host} out";
        table.warn(&table.span_of(name), title, hint);
    }
}

/// Warns where credentials of calls go over public networks in clear: to hosts of vendors that are known.
pub(super) fn warn_of_clear(
    table: &TomlTable<'_>,
    upstream: Option<&BaseUrl>,
    hosts: Option<&Hosts>,
) {
    let upstream = upstream.filter(|url| !url.tls);
    let upstream = upstream.map(|url| ("upstream", url.host.as_str()));
    let hosts = hosts.filter(|hosts| !hosts.tls).into_iter();
    let hosts = hosts.flat_map(|hosts| &hosts.names).map(|name| {
        let host = name.rsplit_once(':').map_or(name.as_str(), |at| at.0);
        ("scheme", host)
    });
    let mut all = upstream.into_iter().chain(hosts);
    if let Some((name, host)) = all.find(|(_, host)| !Vendor::of_host(host).hosts.is_empty()) {
        let title = format!("calls to {host:?} go out in clear, and their credentials with them");
        let hint = "write https there, unless something on this machine adds TLS on the way";
        table.warn(&table.span_of(name), title, hint);
    }
}

/// Reads `hosts` and what stands with it; `None`: there is no `hosts`, or it is wrong, which was reported.
pub(super) fn hosts(table: &mut TomlTable<'_>) -> Option<Arc<Hosts>> {
    let found = table.get("hosts");
    let tls = table.word_or("scheme", true, &[("https", true), ("http", false)]);
    let allow = table.get("allow");
    let allow = allow.map(|allow| texts(table, &allow).ok_or(Reported));
    let is_read = !matches!(allow, Some(Err(Reported)));
    let allow = allow.and_then(Result::ok);
    let allow = allow.into_iter().flatten().filter_map(|range| {
        let read = range.text.parse();
        let title = format!("`egress.allow` cannot have {:?}", range.text);
        let read: Option<AddressRange> = read
            .map_err(|hint: String| table.error(&range.span, title, hint))
            .ok();
        if read.is_some_and(AddressRange::has_metadata) {
            table.warn(&range.span, METADATA, "write narrower ranges");
        }
        read
    });
    let allow = allow.collect();
    let Some(found) = found else {
        for (name, is_read) in [("scheme", true), ("allow", is_read)] {
            if table.has(name) && is_read && !table.is_reported(name) {
                let hint = "take it out: the URL of `upstream` says where calls go";
                table.refuse(name, "is for `hosts`", hint);
            }
        }
        return None;
    };
    if table.has("upstream") {
        let hint = "an entry has one of them: one service, or those that calls name";
        table.refuse("hosts", "stands beside `upstream`", hint);
    }
    let written = texts(table, &found)?;
    if written.is_empty() {
        table.refuse("hosts", "names nobody", EXAMPLES);
    }
    let names = written.iter().filter_map(|written| {
        let title = format!("`egress.hosts` cannot have {:?}", masked(&written.text));
        let listed = listed(&written.text, usual_port(tls));
        let host = listed.iter().filter_map(|name| name.rsplit_once(':'));
        let mut addresses = host.filter_map(|(host, _)| host.trim_matches(['[', ']']).parse().ok());
        if addresses.any(AddressRange::has_metadata) {
            table.warn(&written.span, METADATA, "take it out");
        }
        listed
            .map_err(|hint| table.error(&written.span, title, hint))
            .ok()
    });
    let names = names.collect();
    Some(Arc::new(Hosts { names, tls, allow }))
}

/// What would be right in place of what is no host.
fn instead_of(text: &str) -> &'static str {
    match text {
        _ if text.contains("://") => "write the host alone: `scheme` says whether it speaks TLS",
        _ if text.parse::<Ipv6Addr>().is_ok() => {
            "write an address of IPv6 in brackets: \"[fd00::7]\""
        }
        _ if text.contains('/') => "write the host alone: an entry is for all paths of a service",
        _ if !text.is_ascii() => {
            "write the name as DNS has it: \"xn--bcher-kva.example\" for bücher.example"
        }
        _ => EXAMPLES,
    }
}

/// What stands in the list, by one spelling.
///
/// # Errors
/// What would be right.
fn listed(text: &str, usual: u16) -> Result<String, &'static str> {
    let (star, rest) = match text.strip_prefix("*.") {
        Some(rest) => ("*.", rest),
        None => ("", text),
    };
    let name = one_name(rest).ok_or_else(|| instead_of(rest))?;
    let host = name.split(':').next().unwrap_or_default();
    let is_address = name.starts_with('[') || host.parse::<IpAddr>().is_ok();
    let last = host.rsplit('.').next().unwrap_or_default();
    let is_number = last.starts_with("0x") || last.bytes().all(|byte| byte.is_ascii_digit());
    if !star.is_empty() && (is_address || !host.contains('.')) {
        return Err("write two names at least after the star: this would be far too many hosts");
    }
    if !is_address && is_number {
        return Err("write an address as four numbers: this is one in another spelling");
    }
    if rest.ends_with(if usual == 443 { ":80" } else { ":443" }) {
        return Err("leave that port out, or write the `scheme` that is spoken on it");
    }
    Ok([star, &with_port(&name, usual)].concat())
}
