//! Requests that stand on pages are made, and the replies that stand below them are what comes.

use std::collections::HashMap;
use std::sync::Arc;

use http::Method;
use ojs_throttle::store::memory::MemoryStore;
use ojs_throttle::told::events::frames;
use serde_json::json;

use super::page::{COLUMNS, must_be, read};
use crate::sidecar::NOON;
use crate::sidecar::client::{Client, Reply};
use crate::sidecar::listen::Listener;
use crate::sidecar::simulated::Pair;

/// What requests are made of.
struct Stage(Pair);

impl Stage {
    /// `config` is TOML that begins inside `[server]`.
    async fn with(config: &str) -> Stage {
        Stage(Pair::over(Arc::new(MemoryStore::new(NOON)), config).await)
    }

    /// Carries out what a block says.
    async fn run(&self, command: &Command) -> Reply {
        if command.url.contains("/events/stream") {
            return self.first_event(&command.url).await;
        }
        let (rest, client) = match command.url.split_once("127.0.0.1:8080") {
            Some((_, rest)) => (rest, self.0.sidecar.client()),
            None => (
                command.url.split_once("127.0.0.1:9091").unwrap().1,
                self.0.sidecar.admin(),
            ),
        };
        let headers = command.headers.iter();
        let headers: Vec<(&str, &str)> = headers.map(|(name, value)| (&**name, &**value)).collect();
        client
            .send(command.method.clone(), rest, &headers, command.body.clone())
            .await
    }
}

impl Stage {
    /// The data of the first event that a stream tells while a worker asks for jobs.
    async fn first_event(&self, url: &str) -> Reply {
        let client = self.0.sidecar.client();
        let (_, path) = url.split_once("127.0.0.1:8080").unwrap();
        let mut listener = Listener::open(&client, path, &[]).await;
        client.fetch("billing", 3).await;
        loop {
            let frame = listener.frame().await.unwrap();
            if let Some(data) = frames::data(frame.as_bytes()) {
                let (status, headers) = (listener.status, listener.headers);
                return Reply {
                    status,
                    headers,
                    body: data.into(),
                };
            }
        }
    }
}

/// A call of `curl`.
#[derive(Debug)]
pub struct Command {
    pub method: Method,
    pub url: String,
    headers: Vec<(String, String)>,
    pub body: String,
    /// Whether the head of the reply is shown too.
    shows_head: bool,
    /// The part of the reply that `jq` picks, as a pointer.
    pub part: String,
}

impl Command {
    /// Reads a block of one command.
    pub fn read(text: &str) -> Command {
        let mut words = words(&text.replace("\\\n", " ")).into_iter();
        assert_eq!(words.next().as_deref(), Some("curl"), "{text}");
        let mut command = Command {
            method: Method::GET,
            url: String::new(),
            headers: Vec::new(),
            body: String::new(),
            shows_head: false,
            part: String::new(),
        };
        let mut is_said = false;
        while let Some(word) = words.next() {
            match &*word {
                "-sS" | "-N" | "|" | "jq" | "-c" => {}
                path if path.starts_with('.') => {
                    command.part = path.replace(['.', '['], "/").replace(']', "");
                }
                "-i" => command.shows_head = true,
                "-X" => {
                    command.method = words.next().unwrap().parse().unwrap();
                    is_said = true;
                }
                "-d" => {
                    command.body = words.next().unwrap();
                    // What curl says of it, which backends refuse.
                    if !text.contains("Content-Type") {
                        let form = "application/x-www-form-urlencoded".to_owned();
                        command.headers.push(("Content-Type".to_owned(), form));
                    }
                }
                "-H" => {
                    let header = words.next().unwrap();
                    let (name, value) = header.split_once(": ").unwrap();
                    command.headers.push((name.to_owned(), value.to_owned()));
                }
                url => {
                    assert!(url.starts_with("http://127.0.0.1:"), "{text}: {url}");
                    command.url = url.to_owned();
                }
            }
        }
        if !is_said && !command.body.is_empty() {
            command.method = Method::POST;
        }
        command
    }
}

/// The words of a command, as a shell reads them; within quotes nothing is replaced.
fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    for letter in text.chars() {
        match (quote, letter) {
            (None, '\'' | '"') => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (Some(open), _) if open == letter => quote = None,
            (None, _) if letter.is_whitespace() => words.extend(word.take()),
            _ => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    words
}

/// What differs from run to run is written as the first of its kind, the second, and so on.
#[derive(Default)]
struct Masks(HashMap<String, String>);

impl Masks {
    fn mask(&mut self, text: &str) -> String {
        let inside = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let mut out = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(inside) {
            let (before, from) = rest.split_at(at);
            let end = from.find(|c| !inside(c)).unwrap_or(from.len());
            let (word, after) = from.split_at(end);
            out += before;
            out += &self.of(word);
            rest = after;
        }
        out + rest
    }

    fn of(&mut self, word: &str) -> String {
        let bare = word.trim_start_matches("req_").trim_start_matches("evt_");
        let digits = bare.chars().filter(char::is_ascii_hexdigit).count();
        let others = bare
            .chars()
            .filter(|&c| c != '-' && !c.is_ascii_hexdigit())
            .count();
        if digits != 32 || others > 0 {
            return word.to_owned();
        }
        let next = self.0.len() + 1;
        let begin = &word[..word.len() - bare.len()];
        let known = self.0.entry(word.to_owned());
        known
            .or_insert_with(|| format!("{begin}0190-{next}"))
            .clone()
    }
}

/// JSON as it came, in lines that are not too long: what does not fit goes on in the next one.
fn laid(json: &str, indent: usize) -> String {
    let is_short = indent + json.chars().count() <= COLUMNS;
    let open = json
        .find(['{', '['])
        .filter(|at| !json[..*at].contains(' '));
    let Some(at) = open.filter(|_| !is_short) else {
        return json.to_owned();
    };
    let (before, inside) = json.split_at(at + 1);
    let (inside, close) = inside.split_at(inside.len() - 1);
    let mut out = before.to_owned();
    let mut column = indent + before.chars().count();
    let all = members(inside);
    for (nth, member) in all.iter().enumerate() {
        let comma = if nth + 1 < all.len() { "," } else { close };
        let member = laid(member, indent + 1) + comma;
        let first = member.lines().next().unwrap_or_default();
        if nth > 0 && column + first.chars().count() > COLUMNS {
            out += &format!("\n{}", " ".repeat(indent + 1));
            column = indent + 1;
        }
        out += &member;
        let (lines, last) = (member.lines().count(), member.lines().last());
        let end = last.unwrap_or_default().chars().count();
        column = if lines > 1 { end } else { column + end };
    }
    out
}

/// What stands between the commas of an object or a list.
fn members(inside: &str) -> Vec<&str> {
    let (mut all, mut begin, mut depth) = (Vec::new(), 0, 0);
    let (mut quoted, mut escaped) = (false, false);
    for (at, letter) in inside.char_indices() {
        match letter {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => quoted = !quoted,
            _ if quoted => {}
            '{' | '[' => depth += 1,
            '}' | ']' => depth -= 1,
            ',' if depth == 0 => {
                all.push(&inside[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    all.push(&inside[begin..]);
    all
}

/// A reply as a page shows it.
fn shown(command: &Command, reply: &Reply, masks: &mut Masks) -> String {
    let mut body = reply.text().to_owned();
    if !command.part.is_empty() {
        body = reply.json().pointer(&command.part).unwrap().to_string();
    }
    let body = match body.starts_with(['{', '[']) {
        true => laid(&masks.mask(body.trim_end()), 0),
        false => body.trim_end().to_owned(),
    };
    if !command.shows_head {
        assert!(
            (200..300).contains(&reply.status),
            "{command:?}: {}: {body}",
            reply.status
        );
        return body;
    }
    let status = http::StatusCode::from_u16(reply.status).unwrap();
    let of_connection = ["date", "connection", "content-length"];
    let headers = reply
        .headers
        .iter()
        .filter(|(name, _)| !of_connection.contains(&name.as_str()));
    let headers = headers.map(|(name, value)| format!("{name}: {}\n", value.to_str().unwrap()));
    let headers = masks.mask(&headers.collect::<String>());
    format!("HTTP/1.1 {status}\n{headers}\n{body}")
}

/// Makes each request of the chapter that has its reply below, and compares that.
async fn replies_must_be(chapter: &str, stage: &Stage, at_least: usize) {
    let page = read(chapter);
    let mut masks = Masks::default();
    let mut text = String::new();
    let mut made = 0;
    let mut rest = &*page;
    while let Some((before, after)) = rest.split_once("\n```sh\n") {
        let (command, below) = after.split_once("\n```\n").unwrap();
        text += &format!("{before}\n```sh\n{command}\n```\n");
        rest = below;
        for language in ["json", "text"] {
            let Some(reply) = below.strip_prefix(&format!("\n```{language}\n")) else {
                continue;
            };
            let (_, below) = reply.split_once("```\n").unwrap();
            let command = Command::read(command);
            let reply = stage.run(&command).await;
            let shown = shown(&command, &reply, &mut masks);
            text += &format!("\n```{language}\n{shown}\n```\n");
            rest = below;
            made += 1;
        }
    }
    must_be(chapter, &(text + rest));
    assert!(made >= at_least, "{chapter}: {made} replies");
}

/// Enqueues jobs for a queue.
async fn enqueue(client: &Client, queue: &str, jobs: usize) {
    for _ in 0..jobs {
        client
            .enqueue(json!({"type": "charge", "args": [], "options": {"queue": queue}}))
            .await;
    }
}

const STRIPE: &str = "[[policy]]\nname = \"stripe\"\nmatch = { queue = \"billing\" }\n\
    concurrency = 2\nrate = { limit = 100, period = \"1m\" }\n";

const MONTH: &str = "[[egress]]\nname = \"model\"\nlisten = \"127.0.0.1:0\"\nupstream = \"http://127.0.0.1:9\"\n\
    [[egress.budget]]\nname = \"month\"\nkey = \"month:{header.X-Team}\"\n\
    rate = { limit = \"800 USD\", period = \"P1M\", window = \"calendar\" }\n\
    cost = { use = \"money\", max = \"2 USD\", prices = { m = { input = 1, output = 2 } } }\n";

#[tokio::test(start_paused = true)]
async fn the_manual_has_each_route_as_it_answers() {
    let token = "control_token = \"control-me\"\n";
    let stage = Stage::with(&format!("{token}{STRIPE}{MONTH}")).await;
    let client = stage.0.sidecar.client();
    enqueue(&client, "billing", 3).await;
    assert_eq!(client.fetch("billing", 3).await.len(), 2);
    replies_must_be("http", &stage, 17).await;
}

#[tokio::test(start_paused = true)]
async fn the_manual_has_a_429_as_it_is_answered() {
    let stage = Stage::with("[[queue]]\nname = \"email\"\nmax_depth = 1\n").await;
    enqueue(&stage.0.sidecar.client(), "email", 1).await;
    replies_must_be("producers", &stage, 1).await;
}

#[tokio::test(start_paused = true)]
async fn the_manual_has_an_event_as_it_is_sent() {
    let stage = Stage::with(STRIPE).await;
    enqueue(&stage.0.sidecar.client(), "billing", 3).await;
    replies_must_be("event-stream", &stage, 1).await;
}

/// What the source says of a route that takes any method is what the sidecar answers.
#[test]
fn the_manual_has_every_route_that_limits_and_bounds_are_set_by() {
    let source = super::read("src/wire/ojs.rs");
    let routes = source.split("/// Any method on `").skip(1);
    let routes = routes.map(|rest| rest.split('`').next().unwrap());
    let routes: Vec<&str> = routes.collect();
    assert!(routes.len() > 5, "{routes:?}");
    let page = read("http");
    for route in routes {
        let named = [
            ("{queue}", "NAME"),
            ("{key}", "KEY"),
            ("{id}", "ID"),
            ("…", "/ojs/v1/admin"),
        ];
        let route = named.iter().fold(route.to_owned(), |route, (from, to)| {
            route.replace(from, to)
        });
        assert!(page.contains(&format!("{route}`")), "{route}");
    }
}

#[test]
fn json_is_laid_out_in_short_lines() {
    let list = format!("[{}]", vec!["\"a,b\""; 30].join(","));
    let json = format!("{{\"a\":1,\"list\":{list},\"b\":{{\"c\":\"}}\\\"\"}}}}");
    let laid = laid(&json, 0);
    assert!(
        laid.lines().all(|line| line.chars().count() <= COLUMNS),
        "{laid}"
    );
    assert!(laid.lines().count() > 2, "{laid}");
    let joined: String = laid.lines().map(str::trim_start).collect();
    assert_eq!(joined, json);
}

#[test]
fn a_command_is_read_as_a_shell_does() {
    let command = Command::read(
        "curl -sS 'http://127.0.0.1:9091/a?b=c' \\\n  -H 'x: y z' -d '{\"a\": \"b c\"}'",
    );
    assert_eq!(command.url, "http://127.0.0.1:9091/a?b=c");
    assert_eq!(command.body, "{\"a\": \"b c\"}");
    assert_eq!(
        (command.method, command.headers[0].1.as_str()),
        (Method::POST, "y z")
    );
}
