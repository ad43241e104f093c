//! Puts other settings in force while the sidecar runs, all of them or none, and follows the file they are from.

use super::diff::{Changes, Diff};
use super::watch::FolderWatch;
use crate::config::{
    CertificateFile, ConfigFile, RENEW, Report, Settings, Sources, StoreUrl, digest_of,
};
use crate::desk::{FileRefusal, Live, ProxySettings, Sidecar};
use crate::inquiry::publish::publish;
use crate::life;
use crate::store::LedgerExt;
use crate::told::metrics::Metrics;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::{Registry, reload};

/// How often the file is read although nothing was seen: some mounts report nothing.
const EVERY: Duration = Duration::from_secs(2);
/// How often the log repeats that the file is bad.
const REMIND: Duration = Duration::from_secs(60);

/// Changes the level of the log.
pub type LogLevel = reload::Handle<LevelFilter, Registry>;

/// What became of new settings.
#[derive(Debug)]
pub enum ReloadOutcome {
    /// They are in force.
    Applied(Diff),
    /// They are in force already.
    Unchanged,
    /// These fields cannot change while running, so nothing did.
    Refused(Vec<&'static str>),
    /// These `[[egress]]` cannot come or go while running, so nothing changed.
    Ways(Changes),
    /// This file had text and is empty. It is taken for half written, because to lift all limits is rarely meant.
    Empty(String),
    /// A listener would show a certificate that is not good now in place of a good one; the setting.
    Ended(&'static str),
    /// They are wrong.
    Invalid(Report),
    /// The file could not be read; why.
    Unreadable(String),
}

impl ReloadOutcome {
    /// The word in metrics.
    pub fn word(&self) -> &'static str {
        match self {
            ReloadOutcome::Applied(_) => "applied",
            ReloadOutcome::Unchanged => "unchanged",
            ReloadOutcome::Refused(_) | ReloadOutcome::Ways(_) | ReloadOutcome::Empty(_) => {
                "refused"
            }
            ReloadOutcome::Invalid(_) | ReloadOutcome::Ended(_) => "invalid",
            ReloadOutcome::Unreadable(_) => "unreadable",
        }
    }

    /// Whether what runs is what the settings say.
    pub fn is_good(&self) -> bool {
        self.refusal().is_none()
    }

    /// Why what runs is not what the settings say.
    pub fn refusal(&self) -> Option<FileRefusal> {
        match self {
            ReloadOutcome::Applied(_) | ReloadOutcome::Unchanged => None,
            ReloadOutcome::Invalid(_) => Some(FileRefusal::Wrong),
            // `check` finds nothing wrong with such a file.
            other => Some(FileRefusal::Unfit(other.to_string().into())),
        }
    }
}

/// What is wrong and what to do, for the log.
impl fmt::Display for ReloadOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReloadOutcome::Applied(diff) => write!(f, "{diff}"),
            ReloadOutcome::Unchanged => f.write_str("unchanged"),
            ReloadOutcome::Refused(fields) => {
                let each = fields.iter().map(|field| format!("`{field}`"));
                let fields = each.collect::<Vec<_>>().join(", ");
                write!(
                    f,
                    "{fields} cannot change while running: restart, or put back what it was"
                )
            }
            ReloadOutcome::Ways(ways) => write!(
                f,
                "`[[egress]]`: {ways}: an entry cannot come or go while running: restart, or put back what was"
            ),
            ReloadOutcome::Empty(name) => write!(
                f,
                "{name} is empty now, as a file that is half written; \
                 to take out what it said leave its [server] table there, or a comment"
            ),
            ReloadOutcome::Ended(setting) => write!(
                f,
                "the certificate of `{setting}` has ended, or is not good yet, and the one that is shown is good"
            ),
            ReloadOutcome::Invalid(report) => write!(f, "{report}"),
            ReloadOutcome::Unreadable(why) => write!(f, "it cannot be read: {why}"),
        }
    }
}

/// Changes the settings of a running sidecar. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Reload(Arc<ReloadState>);

#[derive(Debug)]
struct ReloadState {
    sidecar: Arc<Sidecar>,
    reset: bool,
    /// Policies that requests may still be using. They are dropped here, because to drop thousands takes longer
    /// than a request may wait.
    retired: Mutex<Vec<Arc<Live>>>,
}

impl Reload {
    pub(super) fn new(sidecar: Arc<Sidecar>, reset: bool) -> Reload {
        Reload(Arc::new(ReloadState {
            sidecar,
            reset,
            retired: Mutex::default(),
        }))
    }

    /// The settings in force.
    pub fn settings(&self) -> Arc<Settings> {
        self.0.sidecar.config()
    }

    /// Drops what no request uses any more.
    fn let_go(&self) {
        let mut retired = self.0.retired.lock();
        retired.retain(|old| Arc::strong_count(old) > 1);
    }

    /// Puts other settings in force, all of them or none. Usage, slots, held jobs and connections stay: jobs over a
    /// lower limit run to their end. The level of the log stays too; `Following` changes it.
    ///
    /// It takes time for each policy and each held job, so it is not for a thread that serves requests.
    pub fn apply(&self, mut settings: Settings) -> ReloadOutcome {
        let mut retired = self.0.retired.lock();
        let running = self.settings();
        if keep_store_login(&mut settings, &running) {
            tracing::warn!(
                id = %"password_waits",
                "the login of the store has changed: the one of the start stays in use until a restart, and all else counts"
            );
        }
        let settings = Arc::new(settings);
        let diff = Diff::between(&running, &settings);
        if diff.ways != Changes::default() {
            return ReloadOutcome::Ways(diff.ways);
        }
        if !diff.fixed.is_empty() {
            return ReloadOutcome::Refused(diff.fixed);
        }
        if let Some(setting) = settings.ends_a_certificate(&running) {
            return ReloadOutcome::Ended(setting);
        }
        // What only stands in other lines is put in force too, so that they are shown.
        if diff.is_empty() && running.stands_as(&settings) {
            return ReloadOutcome::Unchanged;
        }
        let next = match ProxySettings::new(Arc::clone(&settings), self.0.reset) {
            Ok(next) => next,
            Err(field) => return ReloadOutcome::Refused(vec![field]),
        };
        // Nothing can fail from here on.
        tell_store(&self.0.sidecar, &settings);
        let last = publish(&self.0.sidecar, next, Arc::clone(&settings.policies));
        retired.push(last);
        drop(retired);
        self.let_go();
        match diff.is_empty() {
            true => ReloadOutcome::Unchanged,
            false => ReloadOutcome::Applied(diff),
        }
    }
}

/// Keeps the login of a store that is at the same place as the one that `running` uses. Returns whether another is written:
/// a password that was rotated in its file must not stop what else changes.
fn keep_store_login(next: &mut Settings, running: &Settings) -> bool {
    let (next, running) = (&mut next.store, &running.store);
    let is_same = next.url == running.url && next.password == running.password;
    let place = place_of(&running.url);
    if is_same || place.is_none() || place_of(&next.url) != place {
        return false;
    }
    (next.url, next.password) = (running.url.clone(), running.password.clone());
    true
}

/// A store's URL without who logs in there.
fn place_of(url: &StoreUrl) -> Option<(&str, &str)> {
    let (StoreUrl::Redis(url) | StoreUrl::Postgres(url)) = url else {
        return None;
    };
    let (scheme, rest) = url.expose().split_once("://")?;
    let place = rest.rsplit_once('@').map_or(rest, |(_, place)| place);
    Some((scheme, place))
}

/// Tells the store which policies have it act otherwise.
pub(super) fn tell_store(sidecar: &Sidecar, settings: &Settings) {
    let store = &sidecar.store;
    store.declare(settings.on_store_error_by_policy.clone());
    store.reserve_for(settings.reserved.clone());
}

/// Reads a file when it changes, and puts it in force.
#[derive(Debug)]
pub(super) struct Following {
    file: ConfigFile,
    reload: Reload,
    metrics: Metrics,
    ask: Arc<Notify>,
    level: LogLevel,
    watch: FolderWatch,
    /// What was last found in the file, and a digest of what was in those that it names.
    last: Option<(Result<Sources, String>, [u8; 32])>,
    /// Those: certificates, and tokens.
    beside: Vec<PathBuf>,
    /// The files that had text when all was last good; `None`: it was not looked at yet.
    written: Option<Vec<String>>,
    /// When the log last said that the file is bad; `None`: it is good.
    bad: Option<Instant>,
    /// What the log has said of certificates that end.
    said: Vec<String>,
}

/// Why the file is looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Occasion {
    /// Something happened in its folder, or it is time to.
    Time,
    /// Somebody asks.
    Asked,
}

impl Following {
    pub(super) fn new(
        file: ConfigFile,
        reload: Reload,
        metrics: Metrics,
        ask: Arc<Notify>,
        level: LogLevel,
    ) -> Following {
        Following {
            watch: FolderWatch::new(&file.path),
            beside: reload.settings().warnings.files.clone(),
            file,
            reload,
            metrics,
            ask,
            level,
            last: None,
            written: None,
            bad: None,
            said: Vec::new(),
        }
    }

    /// Follows the file until `stop`.
    pub(super) async fn follow(mut self, stop: CancellationToken) {
        // At once: it may have changed since it was read for the start.
        let mut why = Occasion::Time;
        loop {
            if why == Occasion::Asked {
                life::reloading();
            }
            let (metrics, sidecar) = (self.metrics.clone(), Arc::clone(&self.reload.0.sidecar));
            // A slow disk or thousands of policies must not stop the thread that serves.
            let look = tokio::task::spawn_blocking(move || {
                self.read_file(why);
                self
            });
            let Ok(back) = look.await else {
                tracing::error!(
                    id = %"config_not_followed",
                    "a bug: the config file is not followed any more; restart to change it"
                );
                metrics.config_looked_at(false, None);
                let why = Arc::from("it is not followed any more, by a fault of the program");
                sidecar.file.refused(Some(FileRefusal::Unfit(why)));
                return;
            };
            self = back;
            if why == Occasion::Asked {
                life::ready();
            }
            why = tokio::select! {
                () = stop.cancelled() => return,
                () = self.ask.notified() => Occasion::Asked,
                () = self.watch.change(EVERY) => Occasion::Time,
            };
        }
    }

    /// Puts into metrics for how long certificates are good, and says which of them end.
    fn look_at_certificates(&mut self) {
        let files = self.reload.settings().certificates();
        let concerns: Vec<String> = files.iter().filter_map(CertificateFile::concern).collect();
        for concern in concerns.iter().filter(|new| !self.said.contains(new)) {
            tracing::warn!(id = %"certificate_ends", "{concern}: {RENEW}");
        }
        self.said = concerns;
        let labels = |of: &CertificateFile| vec![("setting", of.setting.clone())];
        let left = files
            .iter()
            .map(|of| (labels(of), of.lifetime.left() as f64));
        let name = "ojs_throttle_tls_certificate_expiry_seconds";
        self.metrics.set_all(name, left);
        let lasts = |of: &CertificateFile| of.lifetime.ends.saturating_sub(of.lifetime.begins);
        let lasts = files.iter().map(|of| (labels(of), lasts(of) as f64));
        let name = "ojs_throttle_tls_certificate_lifetime_seconds";
        self.metrics.set_all(name, lasts);
    }

    /// Reads the file and puts it in force if it is another one.
    fn read_file(&mut self, why: Occasion) {
        self.reload.let_go();
        self.look_at_certificates();
        let text = self.file.read().map_err(|error| error.to_string());
        let found = (text, digest_of(&self.beside));
        let remind = self.bad.is_some_and(|since| since.elapsed() >= REMIND);
        let same = self.last.as_ref() == Some(&found);
        let reads_the_same = self.last.as_ref().is_some_and(|last| last.0 == found.0);
        if same && why != Occasion::Asked && !remind {
            return;
        }
        let begun = Instant::now();
        let was_bad = self.bad.is_some();
        let outcome = match &found.0 {
            Ok(texts) => self.outcome(texts),
            Err(why) => ReloadOutcome::Unreadable(why.clone()),
        };
        let is_first = self.last.replace(found).is_none();
        self.log(&outcome, begun.elapsed());
        // The look at the start and a reminder that the file is bad count as reloads only if they changed something.
        let counts = match outcome {
            ReloadOutcome::Applied(_) => true,
            ReloadOutcome::Unchanged => !is_first && (!reads_the_same || why == Occasion::Asked),
            _ => !same || why == Occasion::Asked,
        };
        let counted = counts.then(|| outcome.word());
        let sidecar = &self.reload.0.sidecar;
        sidecar.file.refused(outcome.refusal());
        self.metrics.config_looked_at(outcome.is_good(), counted);
        if !outcome.is_good() {
            return;
        }
        if let Some((Ok(texts), _)) = &self.last {
            let written = texts.iter().filter(|part| !part.is_blank());
            self.written = Some(written.map(|part| part.name.to_owned()).collect());
        }
        if is_first || was_bad || matches!(outcome, ReloadOutcome::Applied(_)) {
            let now = sidecar.store.now();
            let name = "ojs_throttle_config_last_reload_success_timestamp_seconds";
            self.metrics.set_time(name, now);
            sidecar.file.changed(now);
        }
        if why == Occasion::Asked && !was_bad && matches!(outcome, ReloadOutcome::Unchanged) {
            let file = self.file.path.display();
            tracing::info!(%file, "the config file was looked at as asked: it is what runs");
        }
    }

    fn outcome(&mut self, texts: &Sources) -> ReloadOutcome {
        let had_text = |name: &str| {
            let written = self.written.as_ref();
            written.is_none_or(|written| written.iter().any(|of| of == name))
        };
        let emptied = texts
            .iter()
            .find(|part| part.is_blank() && had_text(part.name));
        let emptied = emptied.map(|part| part.name.to_owned());
        let parsed = self.file.parse(texts.clone());
        let report = parsed.as_ref().map_or_else(|bad| bad, |new| &new.warnings);
        self.beside.clone_from(&report.files);
        match (parsed, emptied) {
            (Err(_), Some(name)) => ReloadOutcome::Empty(name),
            (Err(report), None) => ReloadOutcome::Invalid(report),
            (Ok(new), emptied) => {
                let running = self.reload.settings();
                let changes = || !Diff::between(&running, &new).is_empty();
                if let Some(name) = emptied.filter(|_| changes()) {
                    return ReloadOutcome::Empty(name);
                }
                let warnings = new.warnings.clone();
                let (level, before) = (new.server.log_level, running.server.log_level);
                let outcome = self.reload.apply(new);
                if matches!(outcome, ReloadOutcome::Applied(_)) {
                    // A level that logs less is set later, so that the lines of this reload are still there.
                    if level > before {
                        self.log_from(level);
                    }
                    if warnings.warnings() > 0 {
                        tracing::warn!(id = %"config_warnings", "the config has warnings\n{warnings}");
                    }
                }
                outcome
            }
        }
    }

    /// Sets the level of the log.
    fn log_from(&self, level: tracing::Level) {
        if let Err(error) = self.level.reload(LevelFilter::from_level(level)) {
            tracing::error!(id = %"log_level_kept", %error, "a bug: the log's level is as it was; restart to change it");
        }
    }

    /// Says in the log what happened.
    fn log(&mut self, outcome: &ReloadOutcome, took: Duration) {
        let file = self.file.path.display();
        match outcome {
            ReloadOutcome::Applied(diff) => {
                let ms = took.as_secs_f64() * 1_000.0;
                tracing::info!(%file, took_ms = format!("{ms:.1}"), "config reloaded: {diff}");
                self.log_from(self.reload.settings().server.log_level);
            }
            ReloadOutcome::Unchanged if self.bad.is_some() => {
                tracing::info!(%file, "the config file is good again, and as it runs");
            }
            ReloadOutcome::Unchanged => {}
            bad => {
                tracing::error!(id = %"config_refused", %file, "config not reloaded, the last good one runs on\n{bad}")
            }
        }
        self.bad = (!outcome.is_good()).then(Instant::now);
    }
}

#[cfg(test)]
mod tests;
