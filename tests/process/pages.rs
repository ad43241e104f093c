//! README.md and the chapter `start`, as somebody new follows them: every block in order, in an empty folder, with
//! the program and the tools that the pages name.

use super::prelude::*;
use super::terminal::Terminal;
use crate::docs::blocks::{self, Block};
use crate::servers::port;
use crate::servers::vendor::{Answer, Vendor};

/// A block that is not run begins so; why follows.
const NOT_RUN: &str = "# Not run by the tests";

fn is_run(block: &Block) -> bool {
    block.language == "sh" && !block.text.starts_with(NOT_RUN)
}

/// Writes what is no command into the file that the text above it names. A settings file passes `check`.
fn write(terminal: &Terminal, block: &Block) {
    let named = block.above.split_once("Write `");
    let name = named.map(|(_, name)| name.split('`').next().unwrap());
    let is_toml = block.language == "toml";
    assert!(name.is_some() || is_toml, "{}: which file?", block.place);
    let file = terminal.write(name.unwrap_or("nameless.toml"), &block.text);
    if is_toml {
        let said = ran(program().arg("check").arg(&file));
        assert_eq!(said.status, Some(0), "{}: {}", block.place, said.out);
    }
}

/// How long somebody reads between two blocks.
#[derive(Clone, Copy, PartialEq)]
enum Reader {
    Quick,
    /// After a FETCH, for longer than a job without a word of its worker is left to it.
    Slow,
}

/// A job that no worker keeps is the backend's again: the visibility timeout is over.
fn read_for_a_visibility(data: SocketAddr) {
    enqueue(data, "nobody-keeps", json!({}));
    let jobs = fetch(data, "nobody-keeps", 1, "reader").jobs();
    let [job] = &jobs[..] else {
        panic!("{jobs:?}");
    };
    wait("its visibility timeout is over", || {
        let known = get(data, &format!("/ojs/v1/jobs/{job}")).json();
        known.to_string().contains("\"available\"")
    });
}

/// Follows a page. It must run at least so many blocks, and show so many outputs. Returns the service that it calls.
fn follow(page: &str, reader: Reader, at_least: (usize, usize)) -> Vendor {
    let own = [(); 3].map(|()| port::own().port());
    let data = SocketAddr::from(([127, 0, 0, 1], own[0]));
    let mut terminal = Terminal::open(own);
    let vendor = Vendor::start(|_| Answer::ok());
    terminal.stands_for("8082", port::own().port().to_string());
    terminal.stands_for("https://example.com", format!("http://{}", vendor.addr));
    let (mut runs, mut outputs) = (0, 0);
    let blocks = blocks::of(page);
    for (nth, block) in blocks.iter().enumerate() {
        match block.language.as_str() {
            "sh" if is_run(block) => {
                let below = blocks.get(nth + 1).filter(|below| below.language == "text");
                terminal.run(
                    &block.place,
                    &block.text,
                    below.map_or("", |below| &below.text),
                );
                if reader == Reader::Slow && block.text.contains("workers/fetch") {
                    read_for_a_visibility(data);
                }
                runs += 1;
                outputs += usize::from(below.is_some());
            }
            // What another block shows, or is not run; a job is judged by the tests of all pages.
            "sh" | "text" | "json" => {}
            _ => write(&terminal, block),
        }
    }
    assert!(
        (runs, outputs) >= at_least,
        "{page}: {runs} blocks ran, {outputs} outputs"
    );
    vendor
}

#[test]
fn the_readme_does_what_it_says_on_tools() {
    let vendor = follow("README.md", Reader::Quick, (9, 8));
    // One call a second: three take two of them by the service's own record, less what a busy machine was late at first.
    let calls = vendor.calls();
    let [first, _, last] = &calls[..] else {
        panic!("{calls:?}");
    };
    let took = last.at - first.at;
    assert!(took >= Duration::from_secs(1), "{took:?}");
}

#[test]
fn the_readme_does_what_it_says_for_who_reads_slowly_on_tools() {
    follow("README.md", Reader::Slow, (9, 8));
}

#[test]
fn the_chapter_start_does_what_it_says_on_tools() {
    follow("src/manual/start.md", Reader::Quick, (6, 6));
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
