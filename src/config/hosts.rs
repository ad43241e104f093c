//! Names of services: by one spelling each.

use std::net::{IpAddr, Ipv6Addr};

use ojs_wire::upstream::BaseUrl;

/// A host with its port as all spellings of it are written here: in small letters, without a dot at the end, and without
/// the port where that is 80 or 443. `None`: it is no host.
pub fn one_name(authority: &str) -> Option<String> {
    let url: BaseUrl = format!("http://{authority}").parse().ok()?;
    let host = url.host.to_ascii_lowercase();
    let host = host.strip_suffix('.').unwrap_or(&host);
    let of_names = |byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_');
    let is_label = |label: &str| !label.is_empty() && label.bytes().all(of_names);
    let host = match host.parse::<IpAddr>() {
        Ok(address) => address.to_string(),
        Err(_) if host.split('.').all(is_label) => host.to_owned(),
        Err(_) => return None,
    };
    let is_plain =
        url.base.is_empty() && authority.starts_with('[') == host.parse::<Ipv6Addr>().is_ok();
    let tls = url.port == 443;
    is_plain.then(|| BaseUrl { tls, host, ..url }.authority())
}
