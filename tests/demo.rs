//! `ojs-throttle demo` as people run it: the built program, its words, its exit status.

use std::path::Path;
use std::process::{ExitStatus, Output, Stdio};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::Command;
use tokio::time::timeout;

use crate::sidecar::process::program;

/// Longer than any run here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn demo(arguments: &[&str]) -> Command {
    let mut command = Command::from(program());
    command.arg("demo").args(arguments).kill_on_drop(true);
    command.stdout(Stdio::piped());
    command
}

async fn output(arguments: &[&str]) -> (Output, String) {
    let output = timeout(PATIENCE, demo(arguments).output()).await;
    let output = output.expect("it ends").unwrap();
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    (output, text)
}

/// The line of the closing table about one key: the word under `held`.
fn held<'a>(text: &'a str, key: &str) -> &'a str {
    let table = text.split("worst moment").nth(1).expect("a closing table");
    let line = table
        .lines()
        .find(|line| line.trim_start().starts_with(key));
    let words = line.expect(key).split_whitespace();
    words
        .into_iter()
        .find(|word| ["yes", "NO"].contains(word))
        .unwrap_or("-")
}

#[tokio::test]
async fn limits_are_held() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("demo.svg");
    let (output, text) = output(&["--seconds", "3", "--record", file.to_str().unwrap()]).await;
    assert_eq!(output.status.code(), Some(0), "{text}");
    for key in ["stripe", "render", "mail"] {
        assert_eq!(held(&text, key), "yes", "{text}");
    }
    assert_eq!(held(&text, "free"), "-", "{text}");
    assert!(
        text.contains("lost 0, doubled 0") && !text.contains("calls failed"),
        "{text}"
    );
    assert!(
        text.contains("HELD") && text.contains("ojs-throttle dev"),
        "{text}"
    );
    // Nobody looks at a terminal here: no escapes, and a line a second.
    assert!(!text.contains('\x1b'), "{text}");
    let lines = text.lines().filter(|line| line.contains(" s  stripe"));
    assert!(lines.count() > 1, "{text}");
    well_formed(&file, "HELD");
    assert_eq!(drawn_over(&file), [false; 3]);
}

#[tokio::test]
async fn without_limits_the_breach_is_seen() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("break.svg");
    let arguments = [
        "--break",
        "--seconds",
        "3",
        "--record",
        file.to_str().unwrap(),
    ];
    let (output, text) = output(&arguments).await;
    assert_eq!(output.status.code(), Some(1), "{text}");
    for key in ["stripe", "render", "mail"] {
        assert_eq!(held(&text, key), "NO", "{text}");
    }
    assert!(text.contains("BREACH: stripe, render, mail"), "{text}");
    assert!(text.contains("as --break asked for"), "{text}");
    assert!(
        text.contains("OVER") && text.contains("lost 0, doubled 0"),
        "{text}"
    );
    well_formed(&file, "BREACH");
    assert_eq!(drawn_over(&file), [true; 3]);
}

/// Of each panel with a limit, whether the plot crosses the line of the limit: to draw is not to break it.
fn drawn_over(file: &Path) -> Vec<bool> {
    let svg = std::fs::read_to_string(file).unwrap();
    let between = |text: &str, begin: &str, end: &str| {
        let (_, rest) = text.split_once(begin)?;
        Some(rest.split_once(end)?.0.to_owned())
    };
    let panels = svg.split("<g>").skip(1);
    let over = panels.filter_map(|panel| {
        let limit = between(panel, "class=\"limit\"", "/>")?;
        let limit: f64 = between(&limit, "y1=\"", "\"")?.parse().unwrap();
        let path = between(panel, "class=\"area\" d=\"", "Z\"")?;
        // Upwards is less. Each level of the plot is one step up or down.
        let heights = path.split('V').skip(1);
        let mut heights = heights.map(|to| to.split('H').next().unwrap().parse::<f64>().unwrap());
        Some(heights.any(|height| height < limit))
    });
    over.collect()
}

/// How a demo that would go on for minutes ends at a signal that comes after a line which `begins` it, and what it
/// said from there on.
async fn ended_by(
    signal: &str,
    arguments: &[&str],
    begins: impl Fn(&str) -> bool,
) -> (ExitStatus, String) {
    let mut child = demo(arguments).args(["--seconds", "300"]).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let ended = timeout(PATIENCE, async {
        let mut line = String::new();
        while !begins(&line) {
            line.clear();
            assert!(
                out.read_line(&mut line).await.unwrap() > 0,
                "it ended by itself"
            );
        }
        let id = child.id().unwrap().to_string();
        let sent = Command::new("kill")
            .args(["-s", signal, &id])
            .status()
            .await;
        assert!(sent.unwrap().success());
        let mut rest = String::new();
        out.read_to_string(&mut rest).await.unwrap();
        (child.wait().await.unwrap(), rest)
    });
    ended.await.expect("it ends")
}

#[tokio::test]
async fn it_ends_with_a_table_at_an_interrupt_and_at_what_ends_a_container() {
    // A machine that stalls skips some.
    let has_run_a_second = |line: &str| {
        let second = line.trim_start().split_once(" s ");
        second.is_some_and(|(second, _)| second.parse().is_ok_and(|second: u64| second > 0))
    };
    for signal in ["INT", "TERM"] {
        let (status, rest) = ended_by(signal, &[], has_run_a_second).await;
        assert_eq!(status.code(), Some(0), "{signal}: {rest}");
        assert!(rest.contains("lost 0, doubled 0"), "{signal}: {rest}");
    }
}

#[tokio::test]
async fn the_scene_of_backpressure_ends_with_a_verdict_at_what_ends_a_container() {
    // The bound is reached.
    let refused = |line: &str| refused_in(line).is_some_and(|refused| refused > 0);
    let (status, rest) = ended_by("TERM", &["backpressure"], refused).await;
    assert_eq!(status.code(), Some(0), "{rest}");
    assert!(rest.contains("accepted is stored          yes"), "{rest}");
}

/// The picture of the README: a run of the demo. `UPDATE=1` records another one.
#[tokio::test]
async fn the_picture_of_the_readme_shows_limits_that_were_held() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let file = root.join("src/manual/demo.svg");
    if std::env::var_os("UPDATE").is_some_and(|value| value == "1") {
        let (output, text) = output(&["--record", file.to_str().unwrap()]).await;
        assert!(output.status.success(), "{text}");
    }
    well_formed(&file, "HELD");
    assert_eq!(drawn_over(&file), [false; 3]);
    let svg = std::fs::read_to_string(file).unwrap();
    assert!(svg.starts_with("<svg ") && svg.len() < 100 << 10);
    let readme = std::fs::read_to_string(root.join("README.md")).unwrap();
    assert!(readme.contains("](src/manual/demo.svg)"));
}

/// Every element of the file is closed in order, and its text has `word`.
fn well_formed(file: &Path, word: &str) {
    let svg = std::fs::read_to_string(file).unwrap();
    assert!(svg.contains(word));
    let mut open = Vec::new();
    for part in svg.split('<').skip(1) {
        let (tag, text) = part.split_once('>').expect("a tag ends");
        assert!(!text.contains('>'), "{part}");
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        let name = tag.split([' ', '/']).find(|name| !name.is_empty()).unwrap();
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "{part}");
        } else if !tag.ends_with('/') {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "{open:?}");
    for side in [" width=\"", " height=\""] {
        let size = svg.split_once(side).unwrap().1.split_once('"').unwrap().0;
        assert!(size.parse::<u32>().unwrap() > 0, "{side}{size}");
    }
    assert!(!svg.contains("NaN"));
}

/// How many enqueues were refused, as a line of the scene of backpressure tells.
fn refused_in(line: &str) -> Option<u64> {
    let (_, counts) = line.rsplit_once('|')?;
    counts.split_whitespace().last()?.parse().ok()
}

#[tokio::test]
async fn a_plot_that_nobody_draws_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("none.svg");
    let mut command = demo(&["backpressure", "--record", file.to_str().unwrap()]);
    let output = timeout(PATIENCE, command.stderr(Stdio::piped()).output());
    let output = output.await.expect("it ends").unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("leave out --record"), "{said}");
    assert!(!file.exists());
}

/// The other scenes: each holds what it says, and without its limits breaks it.
mod scenes {
    use super::{output, refused_in};

    /// The scene of backpressure: the queue stays within its bound, and without one it does not.
    #[tokio::test]
    async fn the_bounded_queue_stays_within_its_bound() {
        let (bounded, text) = output(&["backpressure", "--seconds", "4"]).await;
        assert!(bounded.status.success(), "{text}");
        assert!(text.contains("never more than 60 waiting  yes"), "{text}");
        assert!(text.contains("accepted is stored          yes"), "{text}");
        let refused = text.lines().filter_map(refused_in);
        assert!(refused.max().unwrap() > 10, "{text}");
        let (broken, text) = output(&["backpressure", "--seconds", "4", "--break"]).await;
        assert_eq!(broken.status.code(), Some(1), "{text}");
        assert!(text.contains("never more than 60 waiting  NO"), "{text}");
    }

    /// The scene of costs: tenants have their shares of the tokens, and without a limit they do not.
    #[tokio::test]
    async fn tokens_are_shared_by_weight_and_what_is_not_used_comes_back() {
        let (held, text) = output(&["cost", "--seconds", "5"]).await;
        assert!(held.status.success(), "{text}");
        assert_eq!(text.matches("  yes  ").count(), 4, "{text}");
        // As many tokens are used as the vendor allows, not the half that jobs are charged.
        let seconds = text.lines().filter_map(|line| line.split_once("| "));
        let used =
            seconds.filter_map(|(_, told)| told.split_whitespace().next()?.parse::<u64>().ok());
        assert!(used.max().is_some_and(|most| most > 700), "{text}");
        let (broken, text) = output(&["cost", "--seconds", "2", "--break"]).await;
        assert_eq!(broken.status.code(), Some(1), "{text}");
        assert!(text.contains("tokens a second  NO"), "{text}");
        assert!(text.contains("by its weight                 NO"), "{text}");
    }

    /// The scene of depth: nobody waits behind a tenant with thousands of jobs, and without subqueues the others stand.
    #[tokio::test]
    async fn a_deep_backlog_holds_up_no_other_tenant() {
        let (held, text) = output(&["depth", "--seconds", "4"]).await;
        assert!(held.status.success(), "{text}");
        assert_eq!(text.matches("  yes  ").count(), 4, "{text}");
        let (broken, text) = output(&["depth", "--seconds", "2", "--break"]).await;
        assert_eq!(broken.status.code(), Some(1), "{text}");
        assert_eq!(text.matches("NO  (most stand").count(), 2, "{text}");
    }

    /// The scene of the egress: nobody is banned and nearly all is used, and calls that go straight to the vendor are banned.
    #[tokio::test]
    async fn calls_through_the_egress_are_not_banned() {
        let (held, text) = output(&["egress", "--seconds", "6"]).await;
        assert!(held.status.success(), "{text}");
        assert_eq!(text.matches("  yes  ").count(), 3, "{text}");
        let (broken, text) = output(&["egress", "--seconds", "3", "--break"]).await;
        assert_eq!(broken.status.code(), Some(1), "{text}");
        assert!(
            text.contains("nobody was banned         NO  (banned after "),
            "{text}"
        );
    }

    /// The scene of tokens: nobody is banned, and what calls do not use is used by others; beyond the budget all are banned.
    #[tokio::test]
    async fn tokens_are_used_up_and_nobody_is_banned() {
        let (held, text) = output(&["tokens", "--seconds", "6"]).await;
        assert!(held.status.success(), "{text}");
        assert_eq!(text.matches("  yes  ").count(), 3, "{text}");
        let (broken, text) = output(&["tokens", "--seconds", "3", "--break"]).await;
        assert_eq!(broken.status.code(), Some(1), "{text}");
        assert!(
            text.contains("nobody was banned         NO  (banned after "),
            "{text}"
        );
    }
}
