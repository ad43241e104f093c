//! A terminal in which what a page says is typed.

use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin};

use super::prelude::*;
use crate::servers::only_on;
use crate::sidecar::process::LONG;

/// The ports of the pages. Each run has others, so that tests run side by side.
const PORTS: [&str; 3] = ["8080", "9090", "9091"];
/// What is run otherwise than it is written: where the program comes from, where `dev` and
/// `egress` listen if nobody says, and that
/// a refused request fails.
const WRITTEN: [(&str, &str); 4] = [
    ("cargo run --release -- ", "ojs-throttle "),
    ("curl -s", "curl --fail-with-body -s"),
    (
        "ojs-throttle dev ",
        "ojs-throttle dev --listen 127.0.0.1:8080 --admin-listen 127.0.0.1:9091 --backend-listen 127.0.0.1:9090 ",
    ),
    (
        "ojs-throttle egress ",
        "ojs-throttle egress --listen 127.0.0.1:8082 --admin-listen 127.0.0.1:9091 ",
    ),
];
/// In what is shown: something that is left out. On a line of its own: any lines.
const LEFT_OUT: &str = "…";
/// What the terminal says when a block is done.
const DONE: &str = "=== the block is done ===";
/// What it says before a command that failed.
const FAILED: &str = "=== failed: ";

/// Replaces each of these words by its own, in one pass: an own word may contain another that is to be replaced.
pub fn replaced(text: &str, words: &[(&str, impl AsRef<str>)]) -> String {
    let (mut all, mut rest) = (String::new(), text);
    let first = |rest: &str| {
        let found = words.iter().enumerate();
        let found = found.filter_map(|(nth, (word, _))| Some((rest.find(word)?, nth)));
        found.min()
    };
    while let Some((at, nth)) = first(rest) {
        let (word, own) = &words[nth];
        all += &rest[..at];
        all += own.as_ref();
        rest = &rest[at + word.len()..];
    }
    all + rest
}

/// A shell in an empty folder. What it starts ends with it.
pub struct Terminal {
    shell: Child,
    keys: ChildStdin,
    lines: Arc<Mutex<Vec<String>>>,
    /// What stands on a page, and what it is in this run.
    own: Vec<(&'static str, String)>,
    folder: tempfile::TempDir,
    /// The program, and the block that runs.
    bin: tempfile::TempDir,
}

impl Terminal {
    /// `own` are the ports that stand for those of the pages.
    pub fn open(own: [u16; 3]) -> Terminal {
        only_on("tools");
        for tool in ["bash", "curl", "jq", "python3", "node"] {
            let found = Command::new(tool).arg("--version").output();
            let is_there = found.is_ok_and(|run| run.status.success());
            assert!(
                is_there,
                "{tool} is missing: install it, or tests/run.sh --without tools"
            );
        }
        let (folder, bin) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let built = program().get_program().to_owned();
        std::os::unix::fs::symlink(built, bin.path().join("ojs-throttle")).unwrap();
        let ports = PORTS.into_iter().zip(own.map(|port| port.to_string()));
        let ports: Vec<_> = ports.collect();
        let path = std::env::var("PATH").unwrap();
        let mut shell = Command::new("bash")
            .current_dir(&folder)
            .env("PATH", format!("{}:{path}", bin.path().display()))
            .env(
                "OJS_THROTTLE_ADMIN",
                format!("http://127.0.0.1:{}", ports[2].1),
            )
            .env_remove("OJS_THROTTLE_CONFIG")
            .env_remove("OJS_THROTTLE_TOKEN")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        let mut keys = shell.stdin.take().unwrap();
        let begin = "exec 2>&1; set -o pipefail; trap 'echo \"FAILED$BASH_COMMAND\"' ERR";
        writeln!(keys, "{}", begin.replace("FAILED", FAILED)).unwrap();
        let lines = Arc::<Mutex<Vec<String>>>::default();
        let (noted, out) = (Arc::clone(&lines), shell.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                noted.lock().unwrap().push(line);
            }
        });
        Terminal {
            shell,
            keys,
            lines,
            own: ports,
            folder,
            bin,
        }
    }

    /// In this run something else stands for what the page has.
    pub fn stands_for(&mut self, page: &'static str, own: String) {
        self.own.push((page, own));
    }

    /// What a page has, with the ports of this run.
    fn with_own_ports(&self, text: &str) -> String {
        replaced(text, &self.own)
    }

    /// Writes a file into the folder.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let file = self.folder.path().join(name);
        std::fs::write(&file, self.with_own_ports(text)).unwrap();
        file
    }

    /// Where a file of the folder is.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs commands. Their output must be what is shown; log lines are shown or not. No command may fail.
    pub fn run(&mut self, place: &str, commands: &str, shown: &str) {
        let begun = self.lines.lock().unwrap().len();
        let text = WRITTEN
            .iter()
            .fold(commands.to_owned(), |text, (page, own)| {
                text.replace(page, own)
            });
        let file = self.bin.path().join("block");
        std::fs::write(&file, self.with_own_ports(&text)).unwrap();
        writeln!(
            self.keys,
            ". {} </dev/null; echo; echo '{DONE}'",
            file.display()
        )
        .unwrap();
        let so_far = || self.lines.lock().unwrap()[begun..].to_vec();
        let deadline = Instant::now() + LONG;
        while !so_far().iter().any(|line| line == DONE) {
            let said = || so_far().join("\n");
            assert!(
                Instant::now() < deadline,
                "{place}: not done within {LONG:?}: {}",
                said()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        let shown = masked(self.with_own_ports(shown).lines());
        let has_log = shown.iter().any(|line| is_log(line));
        // What runs on behind the block may say the last of it a moment later.
        let deadline = Instant::now() + LONG;
        loop {
            let lines = so_far();
            let mut said = masked(lines.iter().map(String::as_str));
            said.retain(|line| line != DONE && (has_log || !is_log(line)));
            let has_failed = said.iter().any(|line| line.contains(FAILED));
            if is_shown(&said, &shown) && !has_failed {
                break;
            }
            assert!(
                has_log && !has_failed && Instant::now() < deadline,
                "{place}: the page shows\n{}\nbut it is\n{}\nand all so far, with the log, is\n{}",
                shown.join("\n"),
                said.join("\n"),
                self.lines.lock().unwrap().join("\n")
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // The shell leads a group, in which is all that it started.
        let group = format!("-{}", self.shell.id());
        drop(
            Command::new("kill")
                .args(["-s", "KILL", "--", &group])
                .status(),
        );
        drop(self.shell.wait());
    }
}

/// The lines without what is different each time, and without empty ones.
fn masked<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<String> {
    let word = |word: &str| {
        let bare = word.trim_end_matches([' ', '"', ',']);
        let bytes = bare.as_bytes();
        let is_time = bytes.len() >= 20 && bytes[10] == b'T' && bytes.ends_with(b"Z");
        let is_id = bytes.len() == 36 && [8, 13, 18, 23].iter().all(|&at| bytes[at] == b'-');
        // As curl says how long it took.
        let took = bare.split_once('.').filter(|(_, micros)| micros.len() == 6);
        let took = took.is_some_and(|(seconds, micros)| {
            let mut digits = seconds.bytes().chain(micros.bytes());
            digits.all(|digit| digit.is_ascii_digit())
        });
        match (is_time, is_id, took) {
            (true, ..) => word.replace(bare, "TIME"),
            (_, true, _) => word.replace(bare, "ID"),
            (.., true) => word.replace(bare, "SECONDS"),
            _ => word.to_owned(),
        }
    };
    lines
        .filter(|line| !line.trim().is_empty())
        .map(|line| {
            line.split_inclusive([' ', '"', ','])
                .map(word)
                .collect::<String>()
        })
        .map(|line| {
            line.strip_prefix("TIME ")
                .map_or(line.clone(), |log| log.trim_start().into())
        })
        .collect()
}

fn is_log(line: &str) -> bool {
    ["INFO ", "WARN ", "ERROR "]
        .iter()
        .any(|level| line.starts_with(level))
}

/// Whether a page that shows `shown` tells what was said, but for what it leaves out. What runs behind a block may log the
/// last of it in the next one.
fn is_shown(said: &[String], shown: &[String]) -> bool {
    let comes_late = |line: &String| line.starts_with("INFO ");
    let Some((line, others)) = shown.split_first() else {
        return said.iter().all(comes_late);
    };
    if line == LEFT_OUT {
        return (0..=said.len()).any(|skipped| is_shown(&said[skipped..], others));
    }
    let is_line = |said: &String| match line.split_once(LEFT_OUT) {
        None => said == line,
        Some((begin, end)) => {
            said.len() >= begin.len() + end.len() && said.starts_with(begin) && said.ends_with(end)
        }
    };
    said.split_first().is_some_and(|(first, rest)| {
        (is_line(first) && is_shown(rest, others)) || (comes_late(first) && is_shown(rest, shown))
    })
}

#[test]
fn a_line_of_the_log_may_come_late_and_no_other() {
    let lines = |text: &str| -> Vec<String> { text.lines().map(str::to_owned).collect() };
    let shown = lines("INFO config reloaded: …\n[3]");
    for late in ["", "INFO ready\n"] {
        assert!(is_shown(
            &lines(&format!("{late}INFO config reloaded: x\n[3]\n{late}")),
            &shown
        ));
    }
    for wrong in [
        "INFO ready\n[3]",
        "INFO config reloaded: x\n[3]\n[4]",
        "WARN no\nINFO config reloaded: x\n[3]",
    ] {
        assert!(!is_shown(&lines(wrong), &shown), "{wrong}");
    }
}

#[test]
fn a_port_of_its_own_that_holds_one_of_the_pages_stays_whole_on_tools() {
    let terminal = Terminal::open([29_090, 29_091, 28_080]);
    let page = "at 127.0.0.1:8080, 127.0.0.1:9090 and 127.0.0.1:9091";
    let own = "at 127.0.0.1:29090, 127.0.0.1:29091 and 127.0.0.1:28080";
    assert_eq!(terminal.with_own_ports(page), own);
}
