//! The files of certificates that settings name: when they end.

use serde_json::{Value, json};

use super::kinds::MOST_PEM;
use super::settings::{SETTINGS, Settings};
use ojs_duration as duration;
use ojs_reader::content;
use ojs_tls::{self as tls, Lifetime};

/// What to do about a certificate that ends.
pub const RENEW: &str = "renew it: a changed file counts without a restart";

/// A file of certificates that a setting names, by the first of them.
#[derive(Clone, Debug)]
pub struct CertificateFile {
    /// The setting.
    pub setting: String,
    /// When the certificate is good.
    pub lifetime: Lifetime,
}

impl CertificateFile {
    /// What is to be said of it, if it is not good now, or for 14 days more at most, and of one that is made for less
    /// than six weeks for a third of its life.
    pub fn concern(&self) -> Option<String> {
        let Lifetime { begins, ends } = self.lifetime;
        let soon = (ends.saturating_sub(begins) / 3)
            .min(1_209_600)
            .cast_signed();
        let (what, when) = match self.lifetime.left() {
            _ if tls::now() < begins => ("is not good before", begins),
            ..0 => ("was good until", ends),
            left if left <= soon => ("ends at", ends),
            _ => return None,
        };
        let when = duration::rfc3339(when.saturating_mul(1_000_000));
        let setting = &self.setting;
        Some(format!("the certificate of `{setting}` {what} {when}"))
    }
}

impl Settings {
    /// The files of certificates that these settings name, as far as they can be read now.
    pub fn certificates(&self) -> Vec<CertificateFile> {
        let of_settings = SETTINGS.iter().flat_map(|of| match (of.shown)(self) {
            Value::Object(table) => table
                .into_iter()
                .map(|(name, value)| (format!("{}.{name}", of.name), value))
                .collect(),
            value => vec![(of.name.to_owned(), value)],
        });
        let of_egress = self.egress.iter();
        let of_egress =
            of_egress.map(|of| (format!("egress.{}.ca_file", of.name), json!(of.ca_file)));
        let read = |(setting, path): (String, Value)| {
            let is_one = setting.ends_with("cert_file") || setting.ends_with("ca_file");
            let path = path.as_str().filter(|_| is_one)?;
            let lifetime = Lifetime::of_first(&content(path.as_ref(), MOST_PEM).ok()?)?;
            Some(CertificateFile { setting, lifetime })
        };
        of_settings.chain(of_egress).filter_map(read).collect()
    }

    /// The setting of a listener's certificate that is not good now and would take the place of a good one of `last`.
    pub fn ends_a_certificate(&self, last: &Settings) -> Option<&'static str> {
        let (next, last) = (&self.server, &last.server);
        let pairs = [
            ("server.tls.cert_file", &next.tls, &last.tls),
            (
                "server.admin_tls.cert_file",
                &next.admin_tls,
                &last.admin_tls,
            ),
        ];
        let mut pairs = pairs.into_iter();
        pairs.find_map(|(setting, next, last)| {
            let (next, last) = next.as_ref().zip(last.as_ref())?;
            (last.listener().is_good() && !next.listener().is_good()).then_some(setting)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Many certificates are made for a week: to tell of each from its first day on would be to tell of nothing.
    #[test]
    fn a_short_life_is_of_no_concern_until_its_last_third() {
        const DAY: i64 = 86_400;
        let concern = |lasts: i64, left: i64| {
            let ends = tls::now().saturating_add_signed(left);
            let begins = ends.saturating_add_signed(-lasts);
            let file = CertificateFile {
                setting: "store.ca_file".to_owned(),
                lifetime: Lifetime { begins, ends },
            };
            file.concern().is_some()
        };
        assert!(concern(365 * DAY, 13 * DAY) && !concern(365 * DAY, 15 * DAY));
        assert!(concern(6 * DAY, DAY) && !concern(6 * DAY, 3 * DAY));
        assert!(concern(6 * DAY, -1));
    }
}
