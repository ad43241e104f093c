use std::path::Path;

use super::*;
use crate::config::CommandLine;
use crate::desk::BackendFacts;
use crate::equipment::lines::Lines;
use crate::store::Store;
use crate::store::memory::MemoryStore;
use crate::told::metrics::Metrics;

const HEAD: &str = "[server]\nupstream = 'http://ojs'\n";

fn slots(slots: u32) -> String {
    format!("{HEAD}[[policy]]\nname = 'k'\nconcurrency = {slots}\n")
}

/// Puts another file in its place: nobody sees it half written, nor open.
fn save(path: &Path, text: impl AsRef<[u8]>) {
    let beside = path.with_extension("new");
    std::fs::write(&beside, text).unwrap();
    std::fs::rename(&beside, path).unwrap();
}

/// A sidecar that serves nothing, following `path`.
fn following(path: &Path, text: &str) -> Following {
    save(path, text);
    let settings = Arc::new(Settings::parse(text, "t").unwrap());
    let metrics = Metrics::new(1);
    let sidecar = Sidecar::new(
        ProxySettings::new(Arc::clone(&settings), false).unwrap(),
        Arc::clone(&settings.policies),
        Store::from(Arc::new(MemoryStore::new(1_800_000_000_000_000))),
        BackendFacts::default(),
        metrics.clone(),
        "t",
    );
    let reload = Reload::new(sidecar, false);
    let file = ConfigFile {
        path: path.to_owned(),
        overrides: CommandLine::default(),
    };
    // There is no log that it would change.
    let (_, level) = tracing_subscriber::reload::Layer::new(LevelFilter::INFO);
    Following::new(file, reload, metrics, Arc::default(), level)
}

impl Following {
    fn in_force(&self) -> Option<u32> {
        let settings = self.reload.settings();
        settings.policies.policies()[0].limits.concurrency
    }

    /// How often a result was counted.
    fn counted(&self, result: &str) -> u32 {
        let page = self.metrics.render();
        let series = format!("ojs_throttle_config_reloads_total{{result=\"{result}\"}} ");
        let line = page.lines().find_map(|line| line.strip_prefix(&series));
        line.map_or(0, |count| count.parse().unwrap())
    }

    fn shows(&self, line: &str) -> bool {
        self.metrics.render().lines().any(|shown| shown == line)
    }
}

#[tokio::test(start_paused = true)]
async fn a_bad_file_is_named_each_minute_until_it_is_mended() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.toml");
    let mut file = following(&path, &slots(1));
    file.read_file(Occasion::Time);
    assert_eq!(file.counted("unchanged"), 0);
    assert!(file.shows("ojs_throttle_config_file_matches 1"));
    assert!(file.shows("ojs_throttle_config_last_reload_success_timestamp_seconds 1800000000"));
    let (lines, _logged) = Lines::listen();
    let bad = || lines.with("config not reloaded").len();
    save(&path, "[server\n");
    file.read_file(Occasion::Time);
    let mut said = vec![(0, bad())];
    for looks in 1..=75 {
        tokio::time::advance(EVERY).await;
        file.read_file(Occasion::Time);
        said.push((looks * EVERY.as_secs(), bad()));
    }
    said.dedup_by_key(|(_, lines)| *lines);
    assert_eq!(said, [(0, 1), (60, 2), (120, 3)], "seconds, lines");
    assert_eq!(file.counted("invalid"), 1, "nobody saved it again");
    file.read_file(Occasion::Asked);
    assert_eq!(file.counted("invalid"), 2);
    assert!(file.shows("ojs_throttle_config_file_matches 0"));
    assert!(file.shows("ojs_throttle_config_last_reload_successful 0"));
    save(&path, slots(2));
    file.read_file(Occasion::Time);
    assert_eq!((file.counted("applied"), file.in_force()), (1, Some(2)));
    assert!(file.shows("ojs_throttle_config_file_matches 1"));
    assert!(file.shows("ojs_throttle_config_last_reload_success_timestamp_seconds 1800000150"));
}

#[tokio::test(start_paused = true)]
async fn each_outcome_has_its_word() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.toml");
    let mut file = following(&path, &slots(1));
    file.read_file(Occasion::Time);
    let comment = format!("# the same\n{}", slots(1));
    let fixed = slots(5).replace("[server]", "[server]\nthreads = 3");
    let texts = [
        (comment.as_str(), "unchanged"),
        ("[server]\n", "invalid"),
        (" \n", "refused"),
        (&fixed, "refused"),
    ];
    for (text, word) in texts {
        save(&path, text);
        let before = file.counted(word);
        file.read_file(Occasion::Time);
        assert_eq!(file.counted(word), before + 1, "{text}");
        assert_eq!(file.in_force(), Some(1));
    }
    std::fs::remove_file(&path).unwrap();
    file.read_file(Occasion::Time);
    assert_eq!(file.counted("unreadable"), 1);
    file.read_file(Occasion::Time);
    assert_eq!(file.counted("unreadable"), 1, "that was said");
    save(&path, &comment);
    file.read_file(Occasion::Asked);
    assert_eq!(file.counted("unchanged"), 2);
}

/// One that was empty from the start says nothing, and holds no reload up.
#[tokio::test(start_paused = true)]
async fn only_a_file_that_had_text_is_taken_for_half_written() {
    let dir = tempfile::tempdir().unwrap();
    let [base, late] = ["base.toml", "late.toml"].map(|name| dir.path().join(name));
    save(&late, "");
    let mut folder = following(&base, &slots(1));
    folder.file.path = dir.path().to_owned();
    folder.read_file(Occasion::Time);
    save(&base, slots(2));
    folder.read_file(Occasion::Time);
    assert_eq!((folder.counted("applied"), folder.in_force()), (1, Some(2)));
    save(&late, "[[policy]]\nname = 'late'\nconcurrency = 1\n");
    folder.read_file(Occasion::Time);
    let (lines, _logged) = Lines::listen();
    save(&late, "");
    folder.read_file(Occasion::Time);
    assert_eq!(
        (folder.counted("applied"), folder.counted("refused")),
        (2, 1)
    );
    assert_eq!(folder.reload.settings().policies.policies().len(), 2);
    let log = lines.text();
    assert!(log.contains("late.toml is empty now"), "{log}");
}

#[tokio::test(start_paused = true)]
async fn what_is_retired_goes_when_nobody_uses_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.toml");
    let file = following(&path, &slots(1));
    let used = Arc::clone(&file.reload.settings().policies);
    for slots in 2..50 {
        let outcome = file
            .reload
            .apply(Settings::parse(&self::slots(slots), "t").unwrap());
        assert_eq!(outcome.word(), "applied");
    }
    assert!(file.reload.0.retired.lock().is_empty());
    // Two owners are left: this test and nobody else.
    assert_eq!(Arc::strong_count(&used), 1);
}
