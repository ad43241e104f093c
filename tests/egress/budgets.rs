//! Budgets: what calls use up beside their number, judged from the vendor's record and from what it counts itself.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use ojs_throttle::backend::Lax;
use ojs_throttle::net::{Net, sim};
use ojs_throttle::store::memory::MemoryStore;
use serde_json::Value;
use tokio::io::AsyncReadExt;
use tokio::task::JoinSet;

use super::prelude::*;
use crate::harness::lines::Lines;
use crate::servers::vendor::VendorCall;
use crate::sidecar::BEGIN;
use crate::sidecar::simulated::{Pair, Start, backend};

const JSON: (&str, &str) = ("content-type", "application/json");
const CHAT: &str = "/v1/chat/completions";

async fn ask(by: &Client, path: &str, body: &Value) -> crate::sidecar::client::Reply {
    let method = http::Method::POST;
    by.send(method, path, &[JSON, ("x-team", "a")], body.to_string())
        .await
}

/// The status of such a call.
async fn pays(by: &Client, path: &str, body: Value) -> u16 {
    ask(by, path, &body).await.status
}

/// What a key counts in its first window.
async fn counts(world: &World, key: &str) -> Value {
    let path = format!("/ojs/v1/rate-limits/{key}");
    world.pair.sidecar.client().get(&path).await.json()["rate"]["current_count"].clone()
}

/// What a caller tells the vendor beside its body, which the vendor reads later.
fn said(call: &VendorCall) -> Value {
    serde_json::from_str(call.header("x-said").unwrap()).unwrap()
}

fn events(texts: &[&str]) -> Answer {
    let lines: String = texts
        .iter()
        .map(|text| format!("data: {text}\n\n"))
        .collect();
    Answer::new(200, lines)
        .header("Content-Type", "text/event-stream; charset=utf-8")
        .streamed(7, millis(1))
}

const TOKENS: &str = "
[[egress.budget]]
name = 'tokens'
cost = { use = 'tokens', max = 5000 }
rate = { limit = 100000, period = '24h' }
counted = 'start'
";

/// What answers of models say, in the shapes of their vendors, takes the place of what was paid.
#[tokio::test(start_paused = true)]
async fn what_an_answer_tells_takes_the_place_of_what_was_paid() {
    let chat = r#"{"usage":{"prompt_tokens":100,"completion_tokens":23,"total_tokens":123,"prompt_tokens_details":{"cached_tokens":64}}}"#;
    let message = r#"{"type":"message","usage":{"input_tokens":7,"cache_creation_input_tokens":100,"cache_read_input_tokens":4000,"output_tokens":16}}"#;
    let begins = r#"{"type":"message_start","message":{"usage":{"input_tokens":7,"cache_creation_input_tokens":100,"cache_read_input_tokens":4000,"output_tokens":1}}}"#;
    let response = r#"{"type":"response.completed","response":{"usage":{"input_tokens":100,"output_tokens":23,"total_tokens":123}}}"#;
    let embedded = r#"{"usage":{"prompt_tokens":9,"total_tokens":9}}"#;
    let delta = r#"{"choices":[{"delta":{"content":"usage"}}],"usage":null}"#;
    let ends = r#"{"type":"message_delta","usage":{"output_tokens":16}}"#;
    let fails = r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#;
    let stop = "event: message_stop\ndata: {\"type\":\"message_stop\"   }\n\n";
    let quoted = "data: {\"text\":\"data: [DONE]\"}\n\n";
    let huge = message.replace("100", "18446744073709551616");
    let json =
        |status, body: &str| Answer::new(status, body).header("Content-Type", "application/json");
    let total = |total: &str| json(200, &format!(r#"{{"usage":{{"total_tokens":{total}}}}}"#));
    let cut_behind = |last: &str| {
        let text = format!("data: {chat}\n\n{last}");
        Answer::new(200, format!("{text}: more"))
            .header("Content-Type", "text/event-stream")
            .cut(text.len(), Stops::Closes)
    };
    let called = |kind: &str| Answer::new(200, chat).header("Content-Type", kind);
    let zipped = json(200, chat).header("Content-Encoding", "gzip");
    let cut = json(200, chat).cut(chat.len() - 1, Stops::Closes);
    // The last event of a response has all of it again.
    let response_ends = |how: &str| {
        let output = "word ".repeat(100);
        let usage = r#""usage":{"input_tokens":100,"output_tokens":23,"total_tokens":123}"#;
        format!(
            "event: response.{how}\ndata: {{\"type\":\"response.{how}\",\"response\":{{\"model\":\"a\",{usage},\"output\":\"{output}\"}}}}\n\n"
        )
    };
    let begun = "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"model\":\"a\",\"usage\":null}}\n\n";
    let hung_up = |text: &str, sent: usize| {
        let answer = Answer::new(200, format!("{begun}{text}: more"));
        let answer = answer.header("Content-Type", "text/event-stream");
        let answer = answer.streamed(7, millis(1));
        answer.cut(begun.len() + sent, Stops::Closes)
    };
    let response_cut = |how: &str| hung_up(&response_ends(how), response_ends(how).len());
    let table: Vec<(&str, Answer, u64)> = vec![
        ("chat", json(200, chat), 123),
        ("message", json(200, message), 123),
        ("a type in capitals", called("Application/JSON"), 123),
        ("embeddings", json(200, embedded), 9),
        ("an error with usage", json(400, chat), 123),
        ("a stream of chat", events(&[delta, chat, "[DONE]"]), 123),
        ("a stream of a message", events(&[begins, ends]), 123),
        ("a stream of a response", events(&["{}", response]), 123),
        ("a stream that fails", events(&[begins, fails]), 1_016),
        ("more than max", total("1000000000"), 5_000),
        ("more than any number", json(200, &huge), 5_000),
        // Nothing is told: the estimate stays.
        ("a stream without usage", events(&["{}", "[DONE]"]), 1_016),
        ("compressed", zipped, 1_016),
        ("JSON that is called a text", called("text/plain"), 123),
        ("JSON that is called nothing", Answer::new(200, chat), 123),
        ("no JSON", called("text/html"), 1_016),
        ("negative", total("-5"), 1_016),
        ("a text", total(r#""5""#), 1_016),
        ("cut", cut, 1_016),
        // SDKs hang up when the last event has come, before the stream has ended.
        ("cut after a chat", cut_behind("data: [DONE]\n\n"), 123),
        ("cut after a message", cut_behind(stop), 123),
        ("cut before the end of a chat", cut_behind(quoted), 1_016),
        ("cut behind a response", response_cut("completed"), 123),
        (
            "cut behind half a response",
            response_cut("incomplete"),
            123,
        ),
        ("cut behind no response", response_cut("failed"), 123),
        (
            "cut behind another event",
            response_cut("in_progress"),
            1_016,
        ),
        (
            "cut within the last event",
            hung_up(
                &response_ends("completed"),
                response_ends("completed").len() - 9,
            ),
            1_016,
        ),
        (
            "not compressed",
            json(200, chat).header("Content-Encoding", "Identity"),
            123,
        ),
        (
            "compressed by nothing",
            json(200, chat).header("Content-Encoding", ""),
            123,
        ),
        ("400", json(400, "{}"), 1_016),
        ("500", json(500, "{}"), 1_016),
        // The vendor has not done these.
        ("401", json(401, "{}"), 0),
        ("404", json(404, "{}"), 0),
        ("413", json(413, "{}"), 0),
    ];
    let answers = table.clone();
    let world = World::start("", TOKENS, move |call| {
        let nth = said(call).as_u64().unwrap();
        answers[usize::try_from(nth).unwrap()].1.clone()
    })
    .await;
    let mut before = 0;
    for (nth, (what, _, used)) in table.iter().enumerate() {
        // 52 bytes, of which a third counts, and 1,000 that may be written.
        let body = r#"{"model":"a","messages":["hello"],"max_tokens":1000}"#;
        assert_eq!(body.len(), 52);
        let method = http::Method::POST;
        let path = match *what {
            "embeddings" => "/v1/embeddings",
            _ => CHAT,
        };
        let caller = world.caller.clone();
        let sent = async move {
            let headers = [JSON, ("x-said", &*nth.to_string())];
            caller.send(method, path, &headers, body).await.status
        };
        // The caller of an answer that is cut fails.
        assert_eq!(tokio::spawn(sent).await.is_err(), what.starts_with("cut"));
        sleep(millis(50)).await;
        let now = counts(&world, "tokens").await.as_u64().unwrap();
        assert_eq!(now - before, *used, "{what}");
        before = now;
    }
    let asked = world.vendor.calls();
    assert_eq!(asked[0].header("accept-encoding"), Some("identity"));
}

/// A call that has not reached the vendor has used nothing, and other calls than those of a model pay nothing.
#[tokio::test(start_paused = true)]
async fn what_is_no_call_of_a_model_pays_nothing() {
    let (log, _guard) = Lines::listen();
    let world = World::start("", TOKENS, |_| Answer::ok()).await;
    assert_eq!(world.statuses("/v1/models", 2).await, [200; 2]);
    assert_eq!(world.vendor.calls()[0].header("accept-encoding"), None);
    let path = "/bot7:s3cret/s3cret?s3cret=1";
    assert_eq!(pays(&world.caller, path, json!({})).await, 200);
    let told = log.with("call_unpaid");
    assert!(told.len() == 1 && told[0].contains("127.0.0.1"), "{told:?}");
    assert!(!log.text().contains("s3cret"), "{}", log.text());
    assert_eq!(counts(&world, "tokens").await, 0);
    // It might have asked a model in another way, and somebody is told so. A GET asks none.
    let unpaid = "ojs_throttle_egress_settled_total{budget=\"tokens\",how=\"unpaid\"}";
    let admin = world.pair.sidecar.admin();
    assert_eq!(admin.metric(unpaid).await, Some(1.0));
    // A slash at the end makes no other call of it, and servers read the rest as the same path.
    let mut counted = Vec::new();
    for path in [
        "/v1/chat/completions/",
        "/v1/chat/%63ompletions",
        "/v1//chat/completions",
        "/v1/chat/completions;x",
    ] {
        let body = json!({"max_tokens": 9});
        assert_eq!(pays(&world.caller, path, body).await, 200, "{path}");
        sleep(millis(50)).await;
        counted.push(counts(&world, "tokens").await.as_u64().unwrap());
    }
    let one = counted[0];
    assert!(
        one > 0 && counted == [one, 2 * one, 3 * one, 4 * one],
        "{counted:?}"
    );

    let nowhere = format!(
        "listen = '127.0.0.1:0'\n{TOKENS}[[egress]]\nname = 'nowhere'\nlisten = '127.0.0.1:0'\nupstream = 'http://127.0.0.1:9'{TOKENS}"
    );
    let world = World::start("", &nowhere, |_| Answer::ok()).await;
    let caller = Client::new(&world.net, world.pair.sidecar.egress[1]);
    assert_eq!(pays(&caller, CHAT, json!({"max_tokens": 9})).await, 502);
    sleep(millis(50)).await;
    assert_eq!(counts(&world, "tokens").await, 0);
}

/// Nobody is billed for a call that was not begun.
#[tokio::test(start_paused = true)]
async fn a_refusal_costs_no_money() {
    let prices = "prices = { m = { input = 10, output = 100 } }";
    let config = format!(
        "[[egress.budget]]\nname = 'money'\ncost = {{ use = 'money', max = '1 USD', {prices} }}\n\
         rate = {{ limit = '9 USD', period = '24h' }}"
    );
    let world = World::start("", &config, |call| {
        Answer::new(u16::try_from(said(call).as_u64().unwrap()).unwrap(), "{}")
    })
    .await;
    for status in ["400", "422", "503"] {
        let headers = [JSON, ("x-said", status)];
        let body = r#"{"model":"unknown","max_tokens":50}"#;
        let sent = world.caller.send(http::Method::POST, CHAT, &headers, body);
        assert_eq!(sent.await.status.to_string(), status);
        sleep(millis(50)).await;
        assert_eq!(counts(&world, "money").await, "0.00 USD", "{status}");
    }
}

/// Who cannot be counted pays all that a call may.
#[tokio::test(start_paused = true)]
async fn an_estimate_is_never_under_what_nobody_knows() {
    let world = World::start("", TOKENS, |_| Answer::ok()).await;
    let picture = format!("data:image/png;base64,{}", "A".repeat(60_000));
    let words = format!("data: ;base64,{}", "lorem ipsum ".repeat(123));
    let table = [
        // Of 2 bytes one is read, and a model may write 4,096.
        (json!({}), 4_097),
        (json!({"max_output_tokens": 100, "n": 3}), 310),
        (json!({"max_tokens": 10, "prompt": "text"}), 20),
        (json!({"max_tokens": 10, "image": picture}), 1_519),
        // Words that begin like a picture are words: 1,520 bytes.
        (json!({"max_tokens": 10, "prompt": words}), 466),
        (json!({"max_tokens": 9, "previous_response_id": "r"}), 5_000),
        (json!({"max_tokens": 9, "conversation": {"id": "c"}}), 5_000),
        (json!({"max_tokens": 9, "prompt": {"id": "p"}}), 5_000),
        (json!({"max_tokens": 9, "input": [{"file_id": "f"}]}), 5_000),
        (json!({"max_tokens": 1e30}), 5_000),
        (json!({"max_tokens": -1}), 4_102),
    ];
    let mut before = 0;
    for (body, pays) in table {
        let short: String = body.to_string().chars().take(80).collect();
        assert_eq!(self::pays(&world.caller, CHAT, body).await, 200);
        sleep(millis(50)).await;
        let now = counts(&world, "tokens").await.as_u64().unwrap();
        assert_eq!(now - before, pays, "{short}");
        before = now;
    }
}

/// Files, stores of them and what is packed pay the most; pictures have a price of their own, and words are words.
#[tokio::test(start_paused = true)]
async fn what_a_model_reads_beside_words_is_paid() {
    let world = World::start("", TOKENS, |_| Answer::ok()).await;
    let packed = "A".repeat(9_000);
    let data = |kind: &str| format!("data:{kind};base64,{packed}");
    let with = |part: Value| json!({"max_tokens": 10, "input": [{"content": [part]}]});
    let source = |kind: &str, source: Value| with(json!({"type": kind, "source": source}));
    let in_body = |media: &str| json!({"type": "base64", "media_type": media, "data": packed});
    let unknown = [
        with(json!({"type": "input_file", "file_url": "https://h/a.pdf"})),
        with(json!({"type": "input_file", "file_id": "f"})),
        with(json!({"file": {"file_data": data("application/pdf")}})),
        with(json!({"type": "input_file", "file_data": data("text/plain")})),
        with(json!({"type": "input_audio", "data": data("audio/wav")})),
        with(json!({"type": "image_url", "image_url": {"url": data("application/pdf")}})),
        source("document", json!({"type": "url", "url": "https://h/a.pdf"})),
        source("document", in_body("application/pdf")),
        json!({"max_tokens": 10, "tools": [{"type": "file_search", "vector_store_ids": ["v"]}]}),
    ];
    let link = "https://h/a.png";
    let (image, as_php) = (data("image/png"), data("image\\/png"));
    // How many pictures, and how many bytes of the body are theirs.
    let pictures = [
        (
            with(json!({"type": "image_url", "image_url": {"url": link}})),
            1,
            0,
        ),
        (
            with(json!({"type": "input_image", "image_url": link})),
            1,
            0,
        ),
        (source("image", json!({"type": "url", "url": link})), 1, 0),
        (source("image", in_body("image/png")), 1, 9_000),
        (with(json!({"image_url": image})), 1, image.len()),
        (
            with(json!([{"image_url": {"url": image}}, {"image_url": link}])),
            2,
            image.len(),
        ),
    ];
    let schema = json!({"type": "object", "properties": {
        "file_id": {"type": "string"}, "file_url": {"type": "string"},
        "image_url": {"type": "string"}, "source": {"type": "object"},
        "vector_store_ids": {"type": "array"},
    }});
    let words = [
        with(json!({"text": format!("\"file_id\": \"f\" or \"{image}\"")})),
        with(json!({"text": "data:text/plain,hello"})),
        with(json!({"text": "file_url", "image_url": null})),
        source(
            "document",
            json!({"type": "text", "media_type": "text/plain", "data": "words"}),
        ),
        json!({"max_tokens": 10, "tools": [{"parameters": schema}]}),
        json!({"max_tokens": 10, "tools": [{"vector_store_ids": []}]}),
    ];
    let read = |body: &Value, pictures: u64, packed: usize| {
        let text = body.to_string().len() - packed;
        (text as u64 * 3).div_ceil(10) + pictures * 1_500 + 10
    };
    let as_php = with(json!({"image_url": "X"}))
        .to_string()
        .replace('X', &as_php);
    let mut table: Vec<(String, u64)> = vec![(as_php, 1_500 + 18 + 10)];
    table.extend(unknown.iter().map(|body| (body.to_string(), 5_000)));
    table.extend(
        words
            .iter()
            .map(|body| (body.to_string(), read(body, 0, 0))),
    );
    let pictures = pictures
        .iter()
        .map(|(body, pictures, packed)| (body.to_string(), read(body, *pictures, *packed)));
    table.extend(pictures);
    let best = json!({"max_tokens": 100, "n": 2, "best_of": 20});
    table.push((best.to_string(), 2_000 + 12));
    let mut before = 0;
    for (body, pays) in table {
        let sent = world
            .caller
            .send(http::Method::POST, CHAT, &[JSON], body.clone());
        assert_eq!(sent.await.status, 200);
        sleep(millis(50)).await;
        let now = counts(&world, "tokens").await.as_u64().unwrap();
        let short: String = body.chars().take(120).collect();
        assert_eq!(now - before, pays, "{short}");
        before = now;
    }
}

const POINTS: &str = "
[[egress.budget]]
name = 'points'
cost = { from = 'json.items.1.points', default = 10, max = 100 }
rate = { limit = 100000, period = '24h' }
";

/// A call whose body says the cost pays the most if that is not read, and nothing of that if there is none.
#[tokio::test(start_paused = true)]
async fn a_body_that_is_not_read_pays_the_most() {
    let world = World::start("", POINTS, |_| Answer::ok()).await;
    let long = json!({"text": "x".repeat(1 << 20)}).to_string();
    let points = |items: Value| json!({"items": items}).to_string();
    let packed = ("content-encoding", "gzip");
    let mut before = 0;
    for (what, headers, body, pays) in [
        ("none", &[JSON][..], "", 10),
        ("said", &[JSON], &points(json!([{}, {"points": 7}])), 7),
        ("unsaid", &[JSON], &points(json!([{"points": 7}])), 10),
        ("a member", &[JSON], &points(json!({"1": {"points": 8}})), 8),
        ("long", &[JSON], &long, 100),
        ("no JSON", &[JSON], "points=7", 100),
        ("compressed", &[JSON, packed], "{}", 100),
        (
            "not compressed",
            &[JSON, ("content-encoding", " Identity, ")],
            "{}",
            10,
        ),
    ] {
        let method = http::Method::POST;
        let sent = world.caller.send(method, "/", headers, body.to_owned());
        assert_eq!(sent.await.status, 200, "{what}");
        let now = counts(&world, "points").await.as_u64().unwrap();
        assert_eq!(now - before, pays, "{what}");
        before = now;
    }
    let chunked = "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n";
    let reply = raw(&world.net, world.pair.sidecar.egress[0], chunked).await;
    assert!(reply.starts_with("HTTP/1.1 200 "), "{reply}");
    assert_eq!(counts(&world, "points").await, before + 100);
}

/// No key depends on how long a body is, or how it comes.
#[tokio::test(start_paused = true)]
async fn a_key_that_cannot_be_read_is_refused() {
    let by_model = "key = 'm:{json.model}'\nrate = { limit = 100, period = '1m' }";
    let world = World::start("", by_model, |_| Answer::ok()).await;
    let long = json!({"model": "a", "text": "x".repeat(1 << 20)}).to_string();
    for (what, headers, body) in [
        ("long", &[JSON][..], &*long),
        ("no JSON", &[JSON], "model=a"),
        ("compressed", &[JSON, ("content-encoding", "gzip")], "{}"),
    ] {
        let sent = (world.caller).send(http::Method::POST, "/", headers, body.to_owned());
        let reply = sent.await;
        assert_eq!(reply.status, 413, "{what}");
        assert_eq!(reply.json()["error"]["code"], "key_unreadable", "{what}");
    }
    let chunked = "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\nd\r\n{\"model\":\"a\"}\r\n0\r\n\r\n";
    let reply = raw(&world.net, world.pair.sidecar.egress[0], chunked).await;
    assert!(reply.starts_with("HTTP/1.1 200 "), "{reply}");
    let first = r#"{"model":"a","items":[{"id":"b"}]}"#;
    let by_item = by_model.replace("json.model", "json.items.0.id");
    let of_items = World::start("", &by_item, |_| Answer::ok()).await;
    let sent = of_items
        .caller
        .send(http::Method::POST, "/", &[JSON], first);
    assert_eq!(sent.await.status, 200);
    assert_eq!(counts(&of_items, "m:b").await, 1);
    // The last of two names counts, and letters matter, as for the vendor.
    let twice = r#"{"model":"b","model":"a","MODEL":"b"}"#;
    let sent = (world.caller).send(http::Method::POST, "/", &[JSON], twice);
    assert_eq!(sent.await.status, 200);
    assert_eq!(counts(&world, "m:a").await, 2);
    assert_eq!(world.statuses("/", 1).await, [200]);
    assert_eq!(counts(&world, "m:x_none").await, 1);
    // A file comes in parts, and has no member.
    let parts = "--x\r\nContent-Disposition: form-data; name=\"f\"\r\n\r\n1\r\n--x--\r\n";
    let headers = [("content-type", "multipart/form-data; boundary=x")];
    let upload = (world.caller).send(http::Method::POST, "/", &headers, parts.to_owned());
    assert_eq!(upload.await.status, 200);
}

/// Points of any kind: calls say them, and answers, in headers or in bodies.
#[tokio::test(start_paused = true)]
async fn anything_that_calls_and_answers_name_is_counted() {
    let budgets = "
        [[egress.budget]]
        name = 'told'
        only = ['POST /graphql', 'GET /v2/*']
        cost = { from = 'json.points', default = 10, max = 100, settle = 'header.X-Used' }
        rate = { limit = 1000, period = '24h' }
        [[egress.budget]]
        name = 'kept'
        cost = { from = 'header.X-Points', default = 7, max = 50, settle = 'json.cost.actual' }
        rate = { limit = 1000, period = '24h' }
        [[egress.budget]]
        name = 'calls'
        rate = { limit = 1000, period = '24h' }
    ";
    let world = World::start("", budgets, |call| match call.target() {
        "/graphql" => Answer::ok().header("X-Used", "3"),
        "/gone" => Answer::new(404, "{}"),
        "/v2/empty" => Answer::new(204, "").header("X-Used", "4"),
        "/dear" => Answer::json(r#"{"cost":{"actual":999}}"#),
        _ => Answer::ok(),
    })
    .await;
    let table = [
        // The answer of the first says 3 to one, and nothing to the other.
        ("/graphql", json!({"points": 80}), "5", [3, 5, 1]),
        ("/v2/a", json!({}), "0", [0, 1, 1]),
        ("/v1", json!({"points": 5}), "1e9", [0, 50, 1]),
        ("/v1", json!({"points": 5}), "x", [0, 7, 1]),
        ("/dear", json!({}), "1", [0, 50, 1]),
        // A call that is refused there is one all the same.
        ("/gone", json!({}), "1", [0, 0, 1]),
    ];
    let mut before = [0; 3];
    for (path, body, points, pays) in table {
        let headers = [JSON, ("x-points", points)];
        let method = http::Method::POST;
        let sent = world.caller.send(method, path, &headers, body.to_string());
        assert!([200, 404].contains(&sent.await.status));
        sleep(millis(50)).await;
        for (nth, key) in ["told", "kept", "calls"].into_iter().enumerate() {
            let now = counts(&world, key).await.as_u64().unwrap();
            let more = now - before[nth];
            assert_eq!(more, pays[nth], "{path} {body} {points}: {key}");
            before[nth] = now;
        }
    }
    assert_eq!(world.statuses("/v2/a", 1).await, [200]);
    sleep(millis(50)).await;
    let told = counts(&world, "told").await;
    assert_eq!(told, 3 + 10, "GET is one of its calls");
    assert_eq!(world.statuses("/v2/empty", 1).await, [204]);
    sleep(millis(50)).await;
    assert_eq!(counts(&world, "told").await, 3 + 10 + 4);
}

/// What is read, written, and comes from a cache is counted as its use says.
#[tokio::test(start_paused = true)]
async fn each_use_counts_its_own() {
    let of = |name: &str, what: &str| {
        format!("[[egress.budget]]\nname = '{name}'\ncost = {{ use = {what} }}\n")
    };
    let prices = "prices = { m = { input = 10, cached = 1, cache_write = 12.5, output = 100 } }";
    let budgets = ["tokens", "input", "output"].map(|name| {
        let rate = "rate = { limit = 100000, period = '24h' }\n";
        of(name, &format!("'{name}', max = 9000")) + rate
    });
    let money = of("money", &format!("'money', max = '1 USD', {prices}"));
    let rate = "rate = { limit = '9 USD', period = '24h' }";
    let config = [&budgets.concat(), &money, rate].concat();
    let world = World::start("", &config, |call| {
        let usage = match call.header("x-said") {
            // Of 100 that were read 64 came from the cache.
            Some("openai") => json!({
                "prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120,
                "prompt_tokens_details": {"cached_tokens": 64},
            }),
            Some("voyage") => json!({"total_tokens": 120}),
            // The sum has what stands beside, too.
            Some("sum") => json!({
                "input_tokens": 100, "output_tokens": 20, "cache_read_input_tokens": 64,
                "cache_creation_input_tokens": 8, "total_tokens": 192,
            }),
            // Of 172 that were read 64 came from the cache, and 8 went into it.
            Some("litellm") => json!({
                "prompt_tokens": 172, "completion_tokens": 20, "total_tokens": 192,
                "prompt_tokens_details": {"cached_tokens": 64},
                "cache_read_input_tokens": 64, "cache_creation_input_tokens": 8,
            }),
            Some("litellm, in short") => json!({
                "prompt_tokens": 172, "completion_tokens": 20,
                "cache_read_input_tokens": 64, "cache_creation_input_tokens": 8,
            }),
            // What it thought is in the sum alone.
            Some("xai") => json!({
                "prompt_tokens": 20, "completion_tokens": 100, "total_tokens": 2120,
                "completion_tokens_details": {"reasoning_tokens": 2000},
            }),
            // Beside 100 that were read 64 came from the cache, and 8 went into it.
            _ => json!({
                "input_tokens": 100, "output_tokens": 20, "cache_read_input_tokens": 64,
                "cache_creation_input_tokens": 8,
            }),
        };
        Answer::json(json!({"usage": usage}).to_string())
    })
    .await;
    let mut before = [0.0; 4];
    for (vendor, counted) in [
        ("openai", [120.0, 100.0, 20.0, 0.002_424]),
        ("voyage", [120.0, 120.0, 120.0, 0.012]),
        ("anthropic", [128.0, 108.0, 20.0, 0.003_164]),
        ("sum", [192.0, 108.0, 20.0, 0.003_164]),
        ("litellm", [192.0, 172.0, 20.0, 0.003_164]),
        ("litellm, in short", [192.0, 172.0, 20.0, 0.003_164]),
        ("xai", [2_120.0, 20.0, 2_100.0, 0.210_2]),
    ] {
        let headers = [JSON, ("x-said", vendor)];
        let body = r#"{"model":"m","max_tokens":50}"#;
        let sent = world.caller.send(http::Method::POST, CHAT, &headers, body);
        assert_eq!(sent.await.status, 200);
        sleep(millis(50)).await;
        let keys = ["tokens", "input", "output", "money"];
        for (nth, key) in keys.into_iter().enumerate() {
            let now = counts(&world, key).await;
            let now = now.as_f64().unwrap_or_else(|| {
                let amount = now.as_str().unwrap();
                amount.strip_suffix(" USD").unwrap().parse().unwrap()
            });
            let more: f64 = now - before[nth];
            let is_it = (more - counted[nth]).abs() < 1e-9;
            assert!(is_it, "{vendor}, {key}: {more}");
            before[nth] = now;
        }
    }
}

const MONEY: &str = "
max_wait = '10s'
max_waiting = 2000
[[egress.budget]]
name = 'month'
key = 'month:{header.X-Team}'
cost = { use = 'money', max = '0.01 USD', prices = { m = { input = 0, output = 10 } } }
rate = { limit = '1 USD', period = 'P1M', window = 'calendar', tz = 'UTC' }
";

/// A thousand calls at once want the last dollar. Half of what each may cost is used. What comes back of a budget wakes
/// the calls that it has refused: eight times, within ten seconds.
#[tokio::test(start_paused = true)]
async fn the_last_dollar_is_spent_and_not_a_unit_more() {
    let world = World::start("", MONEY, |_| {
        let used = json!({"usage": {"prompt_tokens": 1, "completion_tokens": 500}});
        Answer::json(used.to_string()).after(Duration::from_secs(1))
    })
    .await;
    let mut all = JoinSet::new();
    for _ in 0..1_000 {
        let caller = world.caller.clone();
        let body = json!({"model": "m", "max_tokens": 1_000});
        all.spawn(async move { ask(&caller, CHAT, &body).await });
    }
    let replies = all.join_all().await;
    let started = replies.iter().filter(|reply| reply.status == 200).count();
    assert_eq!(started, world.vendor.calls().len());
    // 0.005 each: the last one may cost 0.01.
    assert_eq!(started, 199);
    assert_eq!(counts(&world, "month:a").await, "0.995 USD");
    for refused in replies.iter().filter(|reply| reply.status != 200) {
        assert_eq!(refused.status, 429);
        let error = &refused.json()["error"];
        assert_eq!(error["code"], "budget_spent");
        assert_eq!(error["retryable"], false);
        assert_eq!(error["details"]["left"], "0.005 USD");
        assert_eq!(error["details"]["next_start"], "2026-03-01T00:00:00.005Z");
        assert!(!refused.headers.contains_key("retry-after"));
        for name in ["x-should-retry", "stripe-should-retry"] {
            assert_eq!(refused.headers[name], "false");
        }
    }
}

/// One team's money is not another's, although their calls stand in one line; and what somebody sets is an amount.
#[tokio::test(start_paused = true)]
async fn money_is_of_its_key_and_is_set_as_an_amount() {
    let world = World::start("", MONEY, |_| Answer::ok()).await;
    let team = |team: &'static str, tokens: u64| {
        let caller = world.caller.clone();
        let body = json!({"model": "m", "max_tokens": tokens}).to_string();
        async move {
            let headers = [JSON, ("x-team", team)];
            let sent = caller.send(http::Method::POST, CHAT, &headers, body);
            sent.await
        }
    };
    for _ in 0..100 {
        assert_eq!(team("a", 1_000).await.status, 200);
    }
    assert_eq!(team("a", 1_000).await.status, 429);
    assert_eq!(team("b", 1_000).await.status, 200);
    // What is advised can be done.
    let admin = world.pair.sidecar.admin();
    let why = admin.get("/throttle/v1/why?key=month:a").await.json();
    let advice = why["do"].as_str().unwrap();
    let (_, limit) = advice.split_once("limit month:a --override '").unwrap();
    let (limit, lasts) = limit.split_once('\'').unwrap();
    assert_eq!(lasts, " --for 1h`");
    let limit = limit.replace("N USD", "1.25 USD");
    let (client, path) = (world.pair.sidecar.client(), "/ojs/v1/rate-limits/month:a");
    let limit = serde_json::from_str(&limit).unwrap();
    let set = client.set(path, limit).await;
    assert_eq!(set["rate"]["limit"], "1.25 USD");
    assert_eq!(set["rate"]["current_count"], "1.00 USD");
    let rate = |limit: Value| json!({"rate": {"limit": limit, "period": "P1M", "window": "calendar", "tz": "UTC"}});
    for wrong in [json!(2), json!("2"), json!("2 EUR"), json!("0.0000001 USD")] {
        let put = client.put(path, rate(wrong.clone())).await;
        assert_eq!(put.status, 400, "{wrong}");
    }
    let set = client.set(path, rate(json!("1.5 USD"))).await;
    assert_eq!(set["override"]["rate"]["limit"], "1.50 USD");
    assert_eq!(set["unit"], "money");
    assert_eq!(set["rate"]["current_count"], "1.00 USD");
    assert_eq!(team("a", 1_000).await.status, 200);
    client.set(path, rate(json!("0.005 USD"))).await;
    let dear = team("a", 1_000).await;
    assert_eq!(dear.status, 429, "it costs more than there is");
    assert_eq!(dear.headers["ojs-throttle-limited"], "month:a");
    assert_eq!(dear.json()["error"]["details"]["asks"], "0.01 USD");
    let refused =
        "ojs_throttle_decisions_total{policy=\"month\",kind=\"call\",verdict=\"limited\"}";
    let admin = world.pair.sidecar.admin();
    assert_eq!(admin.metric(refused).await, Some(2.0));
    // A model without a price may cost anything.
    let unknown = json!({"model": "other"});
    assert_eq!(pays(&world.caller, CHAT, unknown).await, 429);
}

/// The model is not read in a body that is compressed, too long or without a length. The answer names it, too.
#[tokio::test(start_paused = true)]
async fn money_is_settled_by_the_model_that_the_answer_names() {
    let used = r#""usage":{"input_tokens":1,"output_tokens":500}"#;
    let of = |model: &str| format!("{{{model}{used}}}");
    let named = of(r#""model":"m","#);
    let json = |body: &str| Answer::json(body);
    let message = events(&[&format!(r#"{{"type":"message_start","message":{named}}}"#)]);
    let response = events(&[r#"{"model":7}"#, &format!(r#"{{"response":{named}}}"#)]);
    let version = json(&of(r#""model":"m-2026-01-31","#));
    let other = json(&of(r#""model":"m-mini","#));
    let (five, ten) = ("0.005 USD", "0.01 USD");
    for (name, answer, paid, how) in [
        ("json", json(&named), five, "told"),
        ("a version", version, five, "told"),
        ("a message", message, five, "told"),
        ("a response", response, five, "told"),
        ("another", other, ten, "unpriced"),
        ("none", json(&of("")), ten, "unnamed"),
        ("no usage", json(r#"{"model":"m"}"#), ten, "kept"),
    ] {
        let world = World::start("", MONEY, move |_| answer.clone()).await;
        let chunked = "Transfer-Encoding: chunked";
        for (team, head, body) in [
            ("gzip", "Content-Length: 2\r\nContent-Encoding: gzip", "{}"),
            ("chunks", chunked, "2\r\n{}\r\n0\r\n\r\n"),
        ] {
            let head = format!("Host: a\r\nX-Team: {team}\r\nConnection: close\r\n{head}");
            let call = format!("POST {CHAT} HTTP/1.1\r\n{head}\r\n\r\n{body}");
            let said = world.raw(&call).await;
            assert!(said.starts_with("HTTP/1.1 200"), "{name}: {said}");
            sleep(millis(50)).await;
            let key = format!("month:{team}");
            assert_eq!(counts(&world, &key).await, paid, "{name} {key}");
        }
        let settled = "ojs_throttle_egress_settled_total";
        let settled = format!("{settled}{{budget=\"month\",how=\"{how}\"}}");
        let admin = world.pair.sidecar.admin();
        assert_eq!(admin.metric(&settled).await, Some(2.0), "{name}");
    }
}

/// What a vendor says of its limits shuts the key of the entry, and no budget; also where the entry has budgets alone.
#[tokio::test(start_paused = true)]
async fn a_vendor_shuts_no_budget() {
    for limit in ["rate = { limit = 100, period = '1m' }", ""] {
        let world = World::start("", &format!("{limit}{TOKENS}"), |_| {
            Answer::new(429, "{}").header("Retry-After", "60")
        })
        .await;
        for _ in 0..3 {
            assert_eq!(ask(&world.caller, CHAT, &json!({})).await.status, 429);
        }
        assert_eq!(world.vendor.calls().len(), 1, "{limit}");
        let client = world.pair.sidecar.client();
        for (key, is_shut) in [("out", true), ("tokens", false)] {
            let told = client.get(&format!("/ojs/v1/rate-limits/{key}")).await;
            let is_it = told.json()["shut_until"].is_string();
            assert_eq!(is_it, is_shut, "{limit} {}", told.text());
        }
        sleep(Duration::from_secs(61)).await;
        assert_eq!(ask(&world.caller, CHAT, &json!({})).await.status, 429);
        assert_eq!(world.vendor.calls().len(), 2, "{limit}");
    }
}

/// Numbers from a seed.
struct Dice(u64);

impl Dice {
    fn within(&mut self, from: u64, to: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        from + self.0 % (to - from + 1)
    }
}

/// The most of `all`, each with its time, that is within any minute.
fn most_in_a_minute(mut all: Vec<(Instant, u64)>) -> u64 {
    all.sort_unstable_by_key(|(at, _)| *at);
    let (mut within, mut sum, mut most) = (VecDeque::new(), 0, 0);
    for (at, used) in all {
        within.push_back((at, used));
        sum += used;
        while within
            .front()
            .is_some_and(|(first, _)| at - *first >= Duration::from_secs(60))
        {
            sum -= within.pop_front().unwrap().1;
        }
        most = most.max(sum);
    }
    most
}

/// 64 callers at three sidecars of one store want all that a vendor allows: 60,000 tokens and 500 calls in any minute. A
/// third of the answers stream, calls take 2 to 8 s, and estimates are half as much again as what is used. Gives which
/// part of the tokens was used, after the first two minutes.
async fn at_a_hard_vendor(counted: &str, seed: u64) -> f64 {
    let net = Net::Sim(sim::Network::default());
    let any = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    let answers = |call: &VendorCall| {
        let said = said(call);
        let used = json!({"usage": {"total_tokens": said["used"]}}).to_string();
        let last = millis(said["millis"].as_u64().unwrap());
        match said["stream"] == true {
            true => {
                let text = format!("data: {{}}\n\ndata: {used}\n\n");
                let pieces = u32::try_from(text.len().div_ceil(16)).unwrap();
                let answer = Answer::new(200, text).header("Content-Type", "text/event-stream");
                answer.streamed(16, last / pieces)
            }
            false => Answer::json(used).after(last),
        }
    };
    let vendor = Arc::new(Vendor::in_runtime(&net, any, Arc::new(answers)).await);
    let entry = format!(
        "rate = {{ limit = 500, period = '1m' }}\nmax_wait = '50s'\n[[egress.budget]]\nname = 'tokens'\n\
         cost = {{ use = 'tokens', from = 'header.X-Tokens', max = 3000 }}\n\
         rate = {{ limit = 60000, period = '1m' }}\ncounted = '{counted}'\n"
    );
    let config = super::entry(vendor.addr, &entry);
    let behind = backend(&net, Lax::redis()).await;
    let store = Arc::new(MemoryStore::new(BEGIN));
    let mut sidecars = Vec::new();
    for nth in 0..3 {
        let start = Start::before(&net, &behind.base(), &config).store(Arc::clone(&store));
        sidecars.push(start.seed(nth).start().await);
    }
    let begin = Instant::now();
    let end = begin + Duration::from_secs(300);
    let refused = Arc::new(Mutex::new(0));
    let mut callers = JoinSet::new();
    for nth in 0..64 {
        let caller = sidecars[nth % 3].caller();
        let (mut dice, refused) = (Dice(seed + 1 + nth as u64 * 7_919), Arc::clone(&refused));
        callers.spawn(async move {
            while Instant::now() < end {
                let used = dice.within(100, 500);
                let (takes, streams) = (dice.within(2_000, 8_000), dice.within(1, 3) == 1);
                let said = json!({"used": used, "millis": takes, "stream": streams}).to_string();
                let tokens = (used + used / 2).to_string();
                let headers = [JSON, ("x-tokens", &*tokens), ("x-said", &*said)];
                let reply = caller.send(http::Method::POST, CHAT, &headers, "{}").await;
                if reply.status != 200 {
                    *refused.lock().unwrap() += 1;
                }
            }
        });
    }
    callers.join_all().await;
    let calls = vendor.calls();
    let used = |call: &VendorCall| said(call)["used"].as_u64().unwrap();
    let starts = calls.iter().map(|call| (call.at, used(call))).collect();
    let ends = calls
        .iter()
        .map(|call| (call.ended.unwrap_or(end), used(call)))
        .collect();
    let (at_start, at_end) = (most_in_a_minute(starts), most_in_a_minute(ends));
    let most = vendor.most_within(Duration::from_secs(60));
    assert!(most <= 500, "{most} calls in a minute");
    let counted_there = match counted {
        "start" => at_start,
        _ => at_start.max(at_end),
    };
    let told = format!("{counted}, seed {seed}: {at_start} at the start, {at_end} at the end");
    assert!(counted_there <= 60_000, "{told}");
    let steady = begin + Duration::from_secs(120)..end;
    let all = calls.iter().filter(|call| steady.contains(&call.at));
    let all = all.map(used).sum::<u64>();
    let part = all as f64 / (60_000.0 * 3.0);
    println!("{told}: {part:.3} used, {refused:?} refused");
    part
}

#[tokio::test(start_paused = true)]
async fn a_hard_limit_of_tokens_that_counts_at_the_start_is_used_and_never_passed() {
    for seed in 0..3 {
        let used = at_a_hard_vendor("start", seed).await;
        assert!(used >= 0.9, "seed {seed}: {used:.3}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_hard_limit_of_tokens_that_counts_at_the_end_is_used_and_never_passed() {
    for seed in 0..3 {
        let used = at_a_hard_vendor("end", seed).await;
        assert!(used >= 0.85, "seed {seed}: {used:.3}");
    }
}

const DAY: &str = "{ limit = 100000, period = 'P1D', window = 'calendar' }";
const SLIDING: &str = "{ limit = 100000, period = '24h' }";

/// Tokens within these windows. Each call pays 5,000, uses 50 and takes 5 s.
async fn slow_calls(rate: &str) -> (World, Client) {
    let budget = format!(
        "[[egress.budget]]\nname = 'tokens'\ncost = {{ use = 'tokens', max = 5000 }}\nrate = {rate}"
    );
    let world = World::start("control_token = \"s3cret\"\n", &budget, |_| {
        let used = r#"{"usage":{"prompt_tokens":40,"completion_tokens":10,"total_tokens":50}}"#;
        Answer::json(used).after(millis(5_000))
    })
    .await;
    let admin = world.pair.sidecar.admin().controlling("s3cret");
    (world, admin)
}

/// What each window of the key counts.
async fn each_counts(world: &World) -> Vec<u64> {
    let path = "/ojs/v1/rate-limits/tokens";
    let told = world.pair.sidecar.client().get(path).await.json();
    let names = ["rate", "rate_2"].into_iter();
    names
        .filter_map(|name| told[name]["current_count"].as_u64())
        .collect()
}

const USAGE: &str = "/throttle/v1/keys/tokens/usage";

/// What calls that are out have paid is no part of a number that is set: it is what was used without them.
#[tokio::test(start_paused = true)]
async fn calls_that_are_out_take_nothing_from_a_number_that_is_set() {
    for rate in [DAY, SLIDING, &format!("[{SLIDING}, {DAY}]")] {
        let (world, admin) = slow_calls(rate).await;
        let set = async {
            sleep(millis(1_000)).await;
            let body = json!({"used": 20_000}).to_string();
            let set = admin.send(http::Method::PUT, USAGE, &[JSON], body).await;
            assert_eq!(set.status, 200, "{}", set.text());
        };
        let unknown = json!({"previous_response_id": "r"});
        let call = || ask(&world.caller, CHAT, &unknown);
        let (.., first, second) = tokio::join!(set, call(), call());
        assert_eq!((first.status, second.status), (200, 200));
        sleep(millis(50)).await;
        let counted = each_counts(&world).await;
        let windows = rate.matches("limit").count();
        assert_eq!(counted, vec![20_100; windows], "{rate}");
    }
}

/// A cap for a while stands in place of the month, which counts all the same.
#[tokio::test(start_paused = true)]
async fn a_cap_by_the_hour_keeps_the_count_of_the_month() {
    let (world, _) = slow_calls("{ limit = 100000, period = 'P1M', window = 'calendar' }").await;
    let (client, path) = (
        world.pair.sidecar.client(),
        "/ojs/v1/rate-limits/tokens/override",
    );
    let set = client.set(path, json!({"limit": 20_000, "period": "PT1H"}));
    assert_eq!(set.await["rate"]["period"], "PT1H");
    let unknown = json!({"previous_response_id": "r"});
    assert_eq!(pays(&world.caller, CHAT, unknown).await, 200);
    sleep(millis(50)).await;
    assert_eq!(each_counts(&world).await, [50]);
    assert_eq!(client.delete(path).await.status, 200);
    assert_eq!(each_counts(&world).await, [50]);
}

/// What calls paid before a key was cleared is gone with it, and not taken from calls that began later.
#[tokio::test(start_paused = true)]
async fn calls_that_were_out_take_nothing_from_what_begins_after_a_clearing() {
    for rate in [DAY, SLIDING] {
        let (world, admin) = slow_calls(rate).await;
        let unknown = json!({"previous_response_id": "r"});
        let call = || ask(&world.caller, CHAT, &unknown);
        let later = async {
            sleep(millis(1_000)).await;
            assert_eq!(admin.delete(USAGE).await.status, 200);
            sleep(millis(1_000)).await;
            call().await;
        };
        let between = async {
            call().await;
            sleep(millis(50)).await;
            assert_eq!(each_counts(&world).await, [5_050], "{rate}");
        };
        tokio::join!(later, between);
        sleep(millis(50)).await;
        assert_eq!(each_counts(&world).await, [100], "{rate}");
    }
}

/// Who makes the key of a call has no way around its estimate: one key has one price.
#[tokio::test(start_paused = true)]
async fn a_call_whose_key_is_that_of_a_budget_pays_its_estimate() {
    let world = World::start(
        "",
        "key = '{header.X-Key}'\non_limit = 'reject'\nrate = { limit = 200000, period = '1h' }
        [[egress.budget]]
        name = 'tokens'
        cost = { use = 'tokens', max = 60000 }
        rate = { limit = 200000, period = '1m' }",
        |_| Answer::ok().after(millis(5_000)),
    )
    .await;
    let mut all = JoinSet::new();
    for _ in 0..10 {
        let caller = world.caller.clone();
        let headers = [JSON, ("x-key", "tokens")];
        let body = json!({"previous_response_id": "r"}).to_string();
        all.spawn(async move {
            let sent = caller.send(http::Method::POST, CHAT, &headers, body);
            sent.await.status
        });
    }
    let statuses = all.join_all().await;
    let started = statuses.iter().filter(|status| **status == 200);
    assert_eq!(started.count(), 3, "{statuses:?}");
}

const TWO: &str = "
[[egress.budget]]
name = 'money'
only = ['POST *']
cost = { use = 'money', max = '1 USD', prices = { m = { input = 10, output = 100 } } }
rate = { limit = '9 USD', period = '24h' }
[[egress.budget]]
name = 'points'
cost = { from = 'header.X-Points', max = 80, settle = 'header.X-Used' }
rate = { limit = 1000, period = '24h' }
";

/// What the vendor says is heard though nobody hears it on, where its call goes on without a caller.
#[tokio::test(start_paused = true)]
async fn a_call_whose_caller_has_gone_is_settled_by_the_head_of_its_answer() {
    for (status, money) in [(401, "0.00 USD"), (429, "0.00 USD"), (200, "1.00 USD")] {
        let world = World::start("", &format!("concurrency = 5{TWO}"), move |_| {
            let answer = Answer::new(status, "{}").header("X-Used", "3");
            answer.after(millis(500))
        })
        .await;
        let call = format!("POST {CHAT} HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{{}}");
        let caller = world.ring(&call).await;
        sleep(millis(100)).await;
        drop(caller);
        sleep(millis(500)).await;
        assert_eq!(world.vendor.calls().len(), 1);
        assert_eq!(counts(&world, "money").await, money, "{status}");
        assert_eq!(counts(&world, "points").await, 3, "{status}");
    }
}

/// Its vendor takes connections, and none is ever ready for a call.
#[tokio::test]
async fn a_call_whose_caller_went_before_there_was_a_connection_costs_nothing() {
    let any = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    let mut vendor = Net::Tcp.bind(any).await.unwrap();
    let entry = super::entry(vendor.local_addr().unwrap(), TWO);
    let entry = entry.replace("http://", "https://");
    let pair = Pair::start(Net::Tcp, Lax::redis(), &entry).await;
    let call = format!("POST {CHAT} HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{{}}");
    let caller = ring(&Net::Tcp, pair.sidecar.egress[0], &call).await;
    let (mut stream, _) = vendor.accept().await.unwrap();
    // TLS begins, and goes no further.
    stream.read_u8().await.unwrap();
    drop(caller);
    let admin = pair.sidecar.admin();
    for budget in ["money", "points"] {
        let how = async |how| {
            let series = format!("{{budget=\"{budget}\",how=\"{how}\"}}");
            let series = format!("ojs_throttle_egress_settled_total{series}");
            admin.metric(&series).await.unwrap_or(0.0)
        };
        while how("free").await + how("kept").await < 1.0 {
            sleep(millis(5)).await;
        }
        assert_eq!(how("free").await, 1.0, "{budget}");
    }
}
