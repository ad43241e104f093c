//! README.md and the chapter `start`, as somebody new follows them: every block in order, in an empty folder, with
//! the program and the tools that the pages name.

use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin};

use super::prelude::*;
use super::rig::LONG;
use crate::docs::blocks::{self, Block};
use crate::servers::port;

/// The ports of the pages. Each run has others, so that tests run side by side.
const PORTS: [&str; 3] = ["8080", "9090", "9091"];
/// What is written otherwise than it is run: where the program comes from, and where `dev` listens if nobody says.
const WRITTEN: [(&str, &str); 2] = [
    ("cargo run --release -- ", "ojs-throttle "),
    (
        "ojs-throttle dev ",
        "ojs-throttle dev --listen 127.0.0.1:8080 --admin-listen 127.0.0.1:9091 --backend-listen 127.0.0.1:9090 ",
    ),
];
/// A block that is not run begins so; why follows.
const NOT_RUN: &str = "# Not run by the tests";
/// In what is shown: something that is left out. On a line of its own: any lines.
const LEFT_OUT: &str = "…";
/// What the terminal says when a block is done.
const DONE: &str = "=== the block is done ===";

/// A shell in an empty folder. What it starts ends with it.
struct Terminal {
    shell: Child,
    keys: ChildStdin,
    lines: Arc<Mutex<Vec<String>>>,
    ports: Vec<(&'static str, String)>,
    folder: tempfile::TempDir,
    /// The program, and the block that runs.
    bin: tempfile::TempDir,
}

impl Terminal {
    fn open() -> Terminal {
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
        let ports = PORTS.map(|page| (page, port::own().port().to_string()));
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
        // A command that fails is seen, also where its output is as it should be.
        writeln!(
            keys,
            "exec 2>&1; set -o pipefail; trap 'echo \"$BASH_COMMAND: exit status $?\"' ERR"
        )
        .unwrap();
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
            ports: ports.to_vec(),
            folder,
            bin,
        }
    }

    /// What a page has, with the ports of this run.
    fn with_own_ports(&self, text: &str) -> String {
        let ports = self.ports.iter();
        ports.fold(text.to_owned(), |text, (page, own)| text.replace(page, own))
    }

    /// Runs a block. Its output must be what is shown; log lines are shown or not.
    fn run(&mut self, block: &Block, shown: &str) {
        let begun = self.lines.lock().unwrap().len();
        let text = WRITTEN
            .iter()
            .fold(block.text.clone(), |text, (page, own)| {
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
        until(&block.place, || {
            let lines = self.lines.lock().unwrap();
            lines[begun..].iter().any(|line| line == DONE).then_some(())
        });
        let shown = masked(self.with_own_ports(shown).lines());
        let has_log = shown.iter().any(|line| is_log(line));
        // What runs on behind the block may say the last of it a moment later.
        let deadline = Instant::now() + LONG;
        loop {
            let lines = self.lines.lock().unwrap()[begun..].to_vec();
            let mut said = masked(lines.iter().map(String::as_str));
            said.retain(|line| line != DONE && (has_log || !is_log(line)));
            if is_shown(&said, &shown) {
                break;
            }
            assert!(
                has_log && Instant::now() < deadline,
                "{}: the page shows\n{}\nbut it is\n{}",
                block.place,
                shown.join("\n"),
                said.join("\n")
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Writes what is no command into the file that the text above it names; what is no settings file needs a name.
    fn write(&self, block: &Block) {
        let named = block.above.split_once("Write `");
        let named = named.map(|(_, name)| name.split('`').next().unwrap());
        let name = named.unwrap_or("nameless.toml");
        assert!(
            named.is_some() || block.language == "toml",
            "{}: which file?",
            block.place
        );
        let file = self.folder.path().join(name);
        std::fs::write(&file, self.with_own_ports(&block.text)).unwrap();
        if block.language == "toml" {
            let mut check = program();
            check.arg("check").arg(&file);
            let said = ran(check);
            assert_eq!(said.status, Some(0), "{}: {}", block.place, said.out);
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
        match (is_time, is_id) {
            (true, _) => word.replace(bare, "TIME"),
            (_, true) => word.replace(bare, "ID"),
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

/// Whether a page that shows `shown` tells what was said, but for what it leaves out.
fn is_shown(said: &[String], shown: &[String]) -> bool {
    let Some((line, others)) = shown.split_first() else {
        return said.is_empty();
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
    said.split_first()
        .is_some_and(|(first, rest)| is_line(first) && is_shown(rest, others))
}

fn is_run(block: &Block) -> bool {
    block.language == "sh" && !block.text.starts_with(NOT_RUN)
}

/// Follows a page. It must run at least so many blocks, and show so many outputs.
fn follow(page: &str, at_least: (usize, usize)) {
    let mut terminal = Terminal::open();
    let (mut runs, mut outputs) = (0, 0);
    let blocks = blocks::of(page);
    for (nth, block) in blocks.iter().enumerate() {
        match block.language.as_str() {
            "sh" if is_run(block) => {
                let below = blocks.get(nth + 1).filter(|below| below.language == "text");
                terminal.run(block, below.map_or("", |below| &below.text));
                runs += 1;
                outputs += usize::from(below.is_some());
            }
            // What another block shows, or is not run; a job is judged by the tests of all pages.
            "sh" | "text" | "json" => {}
            _ => terminal.write(block),
        }
    }
    assert!(
        (runs, outputs) >= at_least,
        "{page}: {runs} blocks ran, {outputs} outputs"
    );
}

#[test]
fn the_readme_does_what_it_says_on_tools() {
    follow("README.md", (7, 7));
}

#[test]
fn the_chapter_start_does_what_it_says_on_tools() {
    follow("src/manual/start.md", (5, 5));
}

#[test]
fn at_most_five_blocks_are_not_run_and_each_says_why() {
    let pages = ["README.md", "src/manual/start.md"];
    let commands = pages.iter().flat_map(|page| blocks::of(page));
    let commands = commands.filter(|block| block.language == "sh");
    let (run, not_run): (Vec<_>, Vec<_>) = commands.partition(is_run);
    assert!(
        run.len() > 2 * not_run.len() && not_run.len() <= 5,
        "{not_run:?}"
    );
    for block in not_run {
        let why = block
            .text
            .lines()
            .next()
            .unwrap()
            .strip_prefix(NOT_RUN)
            .unwrap();
        assert!(why.split_whitespace().count() > 3, "{}: {why}", block.place);
    }
}
