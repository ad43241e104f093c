//! Vendors' own SDKs for Python, most of all OpenAI's, make their calls through the egress as the chapter says: by its base
//! URL.

use std::fs;
use std::path::Path;

use super::prelude::*;
use crate::servers::vendor::{Answer, Stops, Vendor, VendorCall};
use crate::servers::{only_on, port};
use crate::ship::files::example;
use crate::sidecar::process::Ran;

const BEGIN: &str = "
import sys, openai
def client(**more):
    return openai.OpenAI(api_key='sk-only-for-tests', base_url=sys.argv[1] + '/v1', **more)
def ask(client, **more):
    words = [{'role': 'user', 'content': 'hi'}]
    return client.chat.completions.create(model='small', messages=words, **more)
";

const REPLY: &str = r#"{"id":"c","object":"chat.completion","created":1,"model":"small","choices":
[{"index":0,"finish_reason":"stop","message":{"role":"assistant","content":"hello"}}]}"#;

/// A sidecar whose egress goes to this vendor under these limits, and what Python says of its calls there.
fn python(vendor: &Vendor, limits: &str, script: &str) -> (Sidecar, Ran) {
    let (listen, upstream) = (port::own(), vendor.addr);
    let entry = format!(
        "[[egress]]\nname = \"model\"\nlisten = \"{listen}\"\nupstream = \"http://{upstream}\"\n{limits}\n"
    );
    let backend = Backend::start(Lax::spec());
    let sidecar = Sidecar::run(&config(backend.addr, "", &entry));
    let ran = with_sdks(&sidecar, script, &[format!("http://{listen}")]);
    (sidecar, ran)
}

/// What Python says that has the SDKs.
fn with_sdks(sidecar: &Sidecar, script: &str, args: &[String]) -> Ran {
    only_on("openai");
    let packages = Path::new(env!("CARGO_TARGET_TMPDIR")).join("openai");
    let missing = "the SDK is missing: bash tests/run.sh fetches it, or --without openai";
    assert!(packages.join("openai").exists(), "{missing}");
    let mut python = Command::new("python3");
    python
        .env("PYTHONPATH", packages)
        .env_remove("OPENAI_BASE_URL");
    python.args(["-c", &format!("{BEGIN}{script}")]).args(args);
    let ran = ran(&mut python);
    assert_eq!(ran.status, Some(0), "{}\n{}", ran.err, sidecar.log());
    ran
}

fn answer(call: &VendorCall) -> Answer {
    assert_eq!(
        (call.method(), call.target()),
        ("POST", "/v1/chat/completions")
    );
    assert_eq!(
        call.header("authorization"),
        Some("Bearer sk-only-for-tests")
    );
    Answer::new(200, REPLY).header("Content-Type", "application/json")
}

#[test]
fn calls_wait_for_their_start_and_nobody_sees_an_error() {
    let vendor = Vendor::start(answer);
    let script = "
c = client()
for _ in range(4):
    print(ask(c).choices[0].message.content)
";
    let limits = "throttle = { limit = 4, period = \"1s\" }";
    let (sidecar, said) = python(&vendor, limits, script);
    assert_eq!(said.out, "hello\n".repeat(4), "{}", said.err);
    let calls = vendor.calls();
    assert_eq!(calls.len(), 4);
    // 250 ms apart, but for the way, on which the first may be slower than the last where the machine is busy.
    assert!(
        calls[3].at - calls[0].at >= Duration::from_millis(500),
        "{calls:?}"
    );
    for call in calls {
        assert_eq!(
            call.header("x-stainless-retry-count"),
            Some("0"),
            "{}",
            call.head
        );
        assert_eq!(call.header("host"), Some(&*vendor.addr.to_string()));
    }
    assert!(
        !sidecar.log().contains("sk-only-for-tests"),
        "{}",
        sidecar.log()
    );
}

#[test]
fn a_429_of_ours_is_understood_and_told_from_the_vendors() {
    let vendor = Vendor::start(|call| match call.nth {
        2 => Answer::new(429, "{}").header("X-Of-The-Vendor", "yes"),
        _ => answer(call),
    });
    let script = "
c = client()
print(ask(c).choices[0].message.content)
# The SDK waits as long as it is told, and asks again.
print(ask(c).choices[0].message.content)
import time; time.sleep(1.1)
hasty = client(max_retries=0)
for _ in range(2):
    try:
        ask(hasty)
    except openai.RateLimitError as refused:
        print(refused.response.headers.get('OJS-Throttle-Limited'), refused.code)
";
    let limits = "rate = { limit = 1, period = \"1s\" }\non_limit = \"reject\"\n";
    let (_sidecar, said) = python(&vendor, limits, script);
    assert_eq!(
        said.out, "hello\nhello\nNone None\nmodel rate_limited\n",
        "{}",
        said.err
    );
    let calls = vendor.calls();
    assert_eq!(calls.len(), 3, "{calls:?}");
    assert_eq!(calls[1].header("x-stainless-retry-count"), Some("1"));
    assert!(
        calls[1].at - calls[0].at >= Duration::from_millis(750),
        "{calls:?}"
    );
}

#[test]
fn a_stream_comes_piece_by_piece_and_has_its_slot_to_the_end() {
    const PIECE: &str = r#"{"id":"c","object":"chat.completion.chunk","created":1,"model":"small","choices":[{"index":0,"delta":{"content":"word"}}]}"#;
    let vendor = Vendor::start(|call| {
        answer(call);
        let piece = format!("data: {PIECE}\n\n");
        let all = piece.repeat(5) + "data: [DONE]\n\n";
        Answer::new(200, all)
            .header("Content-Type", "text/event-stream")
            .streamed(piece.len(), Duration::from_millis(200))
    });
    let script = "
import threading, time
def read():
    times = []
    for piece in ask(c, stream=True):
        times.append(time.monotonic())
    print(len(times), times[-1] - times[0] > 0.3)
c = client()
both = [threading.Thread(target=read) for _ in range(2)]
for one in both: one.start()
for one in both: one.join()
";
    let (_sidecar, said) = python(&vendor, "concurrency = 1", script);
    assert_eq!(said.out, "5 True\n5 True\n", "{}", said.err);
    assert_eq!((vendor.calls().len(), vendor.most_at_once()), (2, 1));
}

/// What it may have done it is not asked for again, and nobody waits within a job for what is minutes away.
#[test]
fn the_sdk_gives_up_where_it_shall() {
    let vendor = Vendor::start(|call| match call.nth {
        0 => Answer::ok().never(Stops::Closes),
        _ => answer(call),
    });
    let script = "
c = client()
try:
    ask(c)
except openai.InternalServerError as doubt:
    print(doubt.status_code, doubt.code)
import time; begun = time.monotonic()
for _ in range(2):
    try:
        ask(c)
    except openai.RateLimitError as refused:
        print(refused.response.headers.get('Retry-After') is None, refused.code)
print(time.monotonic() - begun < 5)
";
    let limits = "rate = { limit = 2, period = \"10m\" }";
    let (_sidecar, said) = python(&vendor, limits, script);
    assert_eq!(
        said.out, "500 in_doubt\nFalse rate_limited\nTrue\n",
        "{}",
        said.err
    );
    assert_eq!(vendor.calls().len(), 2, "{:?}", vendor.calls());
}

/// What a stream uses is read from its last piece, and a spent budget is an error at once, not a call that is made again.
#[test]
fn tokens_are_counted_and_a_spent_budget_is_told_at_once() {
    let vendor = Vendor::start(|call| {
        answer(call);
        let usage = r#"{"prompt_tokens":10,"completion_tokens":490,"total_tokens":500}"#;
        let piece = |choices: &str, usage: &str| {
            format!(
                "data: {{\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"small\",\
                 \"choices\":[{choices}],\"usage\":{usage}}}\n\n"
            )
        };
        let words = piece(r#"{"index":0,"delta":{"content":"word"}}"#, "null");
        let all = [words, piece("", usage), "data: [DONE]\n\n".to_owned()].concat();
        Answer::new(200, all).header("Content-Type", "text/event-stream")
    });
    let script = "
c = client()
for nth in range(2):
    parts = ask(c, stream=True, max_tokens=500, stream_options={'include_usage': True})
    print([part.usage.total_tokens for part in parts if part.usage])
try:
    ask(c, max_tokens=500)
except openai.RateLimitError as refused:
    print(refused.code, refused.response.headers.get('OJS-Throttle-Limited'))
";
    let budget = "[[egress.budget]]\nname = \"day\"\ncost = { use = \"tokens\", max = 600 }\n\
         rate = { limit = 1100, period = \"1d\" }\n";
    let (sidecar, said) = python(&vendor, budget, script);
    let refused = "budget_spent day\n";
    assert_eq!(said.out, format!("[500]\n[500]\n{refused}"), "{}", said.err);
    assert_eq!(vendor.calls().len(), 2);
    let state = get(sidecar.data, "/ojs/v1/rate-limits/day").json();
    assert_eq!(state["rate"]["current_count"], 1_000);
    // The SDK asked once.
    let metrics = get(sidecar.admin, "/metrics").body;
    let told = "ojs_throttle_responses_total{status=\"429\",code=\"budget_spent\"} 1";
    assert!(metrics.contains(told), "{metrics}");
}

/// SDKs of others raise their own error at once, and none takes a spent budget for a declined card.
#[test]
fn a_spent_budget_is_told_at_once_to_other_vendors_sdks() {
    let vendor = Vendor::start(|call| {
        let usage = r#"{"input_tokens":100,"output_tokens":400}"#;
        let reply = match call.target() {
            "/v1/messages" => format!(
                r#"{{"id":"m","type":"message","role":"assistant","model":"small","content":[],
                "stop_reason":"end_turn","stop_sequence":null,"usage":{usage}}}"#
            ),
            _ => r#"{"object":"list","data":[],"has_more":false,"url":"/v1/charges"}"#.to_owned(),
        };
        Answer::new(200, reply).header("Content-Type", "application/json")
    });
    let script = "
import anthropic, stripe
claude = anthropic.Anthropic(api_key='sk-only-for-tests', base_url=sys.argv[1])
def say():
    words = [{'role': 'user', 'content': 'hi'}]
    return claude.messages.create(model='small', max_tokens=500, messages=words)
print(say().usage.output_tokens)
try:
    say()
except anthropic.RateLimitError as refused:
    print(refused.body['error']['code'])
shop = stripe.StripeClient('sk-only-for-tests', base_addresses={'api': sys.argv[1]})
print(len(shop.v1.charges.list().data))
try:
    shop.v1.charges.list()
except stripe.RateLimitError as refused:
    print(type(refused).__name__, refused.http_status)
";
    let budget = "[[egress.budget]]\nname = \"day\"\ncost = { use = \"tokens\", max = 600 }\n\
         rate = { limit = 900, period = \"1d\" }\n\
         [[egress.budget]]\nname = \"charges\"\nonly = [\"* /v1/charges\"]\n\
         cost = { default = 2, max = 2 }\nrate = { limit = 3, period = \"1d\" }\n";
    let (sidecar, said) = python(&vendor, budget, script);
    assert_eq!(
        said.out, "400\nbudget_spent\n0\nRateLimitError 429\n",
        "{}",
        said.err
    );
    assert_eq!(vendor.calls().len(), 2);
    let metrics = get(sidecar.admin, "/metrics").body;
    let told = "ojs_throttle_responses_total{status=\"429\",code=\"budget_spent\"} 2";
    assert!(metrics.contains(told), "{metrics}");
}

/// What `ojs-throttle example calls` writes serves them as it stands, but for its ports and where the services are.
#[test]
fn the_example_serves_the_sdks() {
    let vendor = Vendor::start(|call| {
        let usage = r#"{"prompt_tokens":10,"completion_tokens":20,"total_tokens":30}"#;
        let reply = match call.target() {
            "/v1/chat/completions" => {
                REPLY.replace("\"created\"", &format!("\"usage\":{usage},\"created\""))
            }
            "/v1/messages" => format!(
                r#"{{"id":"m","type":"message","role":"assistant","model":"small","content":[],
                "stop_reason":"end_turn","stop_sequence":null,"usage":{usage}}}"#
            )
            .replace("prompt_tokens", "input_tokens")
            .replace("completion_tokens", "output_tokens"),
            _ => "{}".to_owned(),
        };
        Answer::new(200, reply).header("Content-Type", "application/json")
    });
    let (dir, admin) = (tempfile::tempdir().unwrap(), port::own());
    let listens = [(); 3].map(|()| port::own());
    let mut text = example("calls").replace(
        "upstream = \"none\"",
        &format!("upstream = \"none\"\nadmin_listen = \"{admin}\""),
    );
    for (nth, listen) in listens.iter().enumerate() {
        text = text.replace(&format!("127.0.0.1:{}", 8082 + nth), &listen.to_string());
    }
    let to = vendor.addr;
    for service in ["https://api.openai.com", "https://api.anthropic.com"] {
        text = text.replace(service, &format!("http://{to}"));
    }
    text = text.replace(
        "hosts = [\"*.myshopify.com\"]",
        &format!("hosts = [\"{to}\"]\nscheme = \"http\""),
    );
    let file = dir.path().join("throttle.toml");
    fs::write(&file, text).unwrap();
    let sidecar = Sidecar::spawn(run_at(&file), dir);
    let script = "
import anthropic, httpx2, time
print(ask(client(default_headers={'X-Team': 'a'}, max_retries=0), max_tokens=50).usage.total_tokens)
claude = anthropic.Anthropic(api_key='sk-only-for-tests', base_url=sys.argv[2])
words = [{'role': 'user', 'content': 'hi'}]
print(claude.messages.create(model='small', max_tokens=50, messages=words).usage.output_tokens)
shop = httpx2.Client(proxy=sys.argv[3])
begun = time.monotonic()
print([shop.get(sys.argv[4] + '/admin/api/shop.json').status_code for _ in range(3)])
print(time.monotonic() - begun > 0.5)
";
    let mut args = listens.map(|listen| format!("http://{listen}")).to_vec();
    args.push(format!("http://{to}"));
    let said = with_sdks(&sidecar, script, &args);
    assert_eq!(
        said.out,
        "30\n20\n[200, 200, 200]\nTrue\n",
        "{}\n{}",
        said.err,
        sidecar.log()
    );
    assert_eq!(vendor.calls().len(), 5);
    let metrics = get(admin, "/metrics").body;
    for budget in [
        "openai-tokens",
        "openai-month",
        "anthropic-input",
        "anthropic-output",
    ] {
        let how = if budget == "openai-month" {
            "unpriced"
        } else {
            "told"
        };
        let told =
            format!("ojs_throttle_egress_settled_total{{budget=\"{budget}\",how=\"{how}\"}} 1");
        assert!(metrics.contains(&told), "{told}\n{metrics}");
    }
}
