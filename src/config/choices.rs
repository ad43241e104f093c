//! The values that a setting may be chosen from, where a type of its own says them.

use std::path::PathBuf;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use ojs_reader::Secret;

/// How log lines look.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LogFormat {
    /// For people.
    #[default]
    Human,
    /// One JSON object a line.
    Json,
}

impl LogFormat {
    pub(super) const WORDS: [(&str, LogFormat); 2] =
        [("human", LogFormat::Human), ("json", LogFormat::Json)];
}

/// Where usage is kept.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum StoreUrl {
    /// `memory:`: in this process.
    #[default]
    Memory,
    /// `redis://` and the like: one budget for all sidecars that share it. It may have a password.
    Redis(Secret),
    /// `postgres://`: one budget for a fleet that has only Postgres. It may have a password.
    Postgres(Secret),
    /// `sqlite:PATH`: a file that the sidecars of one host share.
    Sqlite(PathBuf),
}

impl StoreUrl {
    /// This store with that password; `None`: it has one, or takes none.
    pub(super) fn with_password(&self, password: &Secret) -> Option<StoreUrl> {
        let with = |url: &Secret| {
            let (scheme, rest) = url.expose().split_once("://")?;
            let place = rest.split(['/', '?']).next().unwrap_or_default();
            let user = place.rsplit_once('@').map_or("", |(user, _)| user);
            let rest = rest.strip_prefix(user)?.trim_start_matches('@');
            let password = utf8_percent_encode(password.expose(), NON_ALPHANUMERIC);
            let url = format!("{scheme}://{user}:{password}@{rest}");
            (!user.contains(':')).then(|| Secret::new(url))
        };
        match self {
            StoreUrl::Memory | StoreUrl::Sqlite(_) => None,
            StoreUrl::Redis(url) => with(url).map(StoreUrl::Redis),
            StoreUrl::Postgres(url) => with(url).map(StoreUrl::Postgres),
        }
    }

    /// The kind of store, in a word.
    pub fn kind(&self) -> &'static str {
        match self {
            StoreUrl::Memory => "memory",
            StoreUrl::Redis(_) => "redis",
            StoreUrl::Postgres(_) => "postgres",
            StoreUrl::Sqlite(_) => "sqlite",
        }
    }
}

/// When replies are labelled `application/json`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum MediaType {
    /// For clients known to read nothing else.
    #[default]
    Auto,
    /// For all.
    Always,
    /// Never.
    Off,
}

impl MediaType {
    pub(super) const WORDS: [(&str, MediaType); 3] = [
        ("auto", MediaType::Auto),
        ("always", MediaType::Always),
        ("off", MediaType::Off),
    ];
}

#[cfg(test)]
mod tests {
    use crate::Settings;

    #[test]
    fn a_secret_is_not_printed() {
        let text = "[server]\nupstream = 'http://ojs'\n[upstream]\ntoken = 'hunter2'";
        let settings = Settings::parse(text, "t").unwrap();
        let token = settings.upstream.token.as_ref().unwrap();
        assert_eq!(token.expose(), "hunter2");
        assert!(!format!("{settings:?}").contains("hunter2"));
    }
}
