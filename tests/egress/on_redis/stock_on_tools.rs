//! Programs that know nothing of OJS call a vendor through three sidecars without a backend, by what their languages
//! bring along. The vendor's record is the judge.

use std::net::SocketAddr;
use std::process::Command;

use super::*;
use crate::servers::only_on;
use crate::sidecar::process::{Ran, program, ran};

/// Makes so many calls, one after the other, through the first of these addresses that serves. Prints each status, and
/// `lost` for a call without an answer.
const HTTP_CLIENT: &str = "
import http.client, sys
calls, ways = int(sys.argv[1]), sys.argv[2:]
conn = http.client.HTTPConnection(ways[0], timeout=60)
while calls:
    try:
        conn.request('POST', '/v1/charges', body=b'{}', headers={'Content-Type': 'application/json'})
        reply = conn.getresponse()
        reply.read()
        print(reply.status)
        calls -= 1
    except (OSError, http.client.HTTPException):
        print('lost')
        ways = ways[1:] + ways[:1]
        conn = http.client.HTTPConnection(ways[0], timeout=60)
";

const URLLIB: &str = "
import sys, urllib.request, urllib.error, http.client
calls, ways = int(sys.argv[1]), sys.argv[2:]
while calls:
    try:
        with urllib.request.urlopen(f'http://{ways[0]}/v1/customers?limit=3', timeout=60) as reply:
            reply.read()
            print(reply.status)
        calls -= 1
    except urllib.error.HTTPError as error:
        print(error.code)
        calls -= 1
    except (OSError, http.client.HTTPException):
        print('lost')
        ways = ways[1:] + ways[:1]
";

const NODE_FETCH: &str = "
let [calls, ...ways] = process.argv.slice(1);
while (calls > 0) {
    try {
        const reply = await fetch(`http://${ways[0]}/v1/refunds`, { method: 'PUT', body: '{}' });
        await reply.text();
        console.log(reply.status);
        calls--;
    } catch {
        console.log('lost');
        ways.push(ways.shift());
    }
}
";

/// One of them, which begins with the way of this number.
fn client(nth: usize, calls: usize, ways: &[SocketAddr]) -> Command {
    let (program, script) = match nth / ways.len() % 3 {
        0 => ("python3", vec!["-c", HTTP_CLIENT]),
        1 => ("python3", vec!["-c", URLLIB]),
        _ => ("node", vec!["--input-type=module", "-e", NODE_FETCH, "--"]),
    };
    let mut command = Command::new(program);
    command.args(script).arg(calls.to_string());
    let from = nth % ways.len();
    let own = ways[from..].iter().chain(&ways[..from]);
    command.args(own.map(SocketAddr::to_string));
    command
}

/// A sidecar as somebody starts it who has only a vendor and a Redis.
fn sidecar(vendor: SocketAddr, store: &RedisServer, limit: &[&str]) -> (Sidecar, SocketAddr) {
    let (mut command, calls) = (program(), port::own());
    command.args([
        "egress",
        "--to",
        &format!("http://{vendor}"),
        "--store",
        &store.url(),
    ]);
    command.args([
        "--listen",
        &calls.to_string(),
        "--admin",
        "127.0.0.1:0",
        "--max-wait",
        "1m",
    ]);
    command.args(limit);
    (Sidecar::spawn(command, tempfile::tempdir().unwrap()), calls)
}

/// So many calls, by twelve clients under 50 a second through three sidecars, of which one is killed in the middle.
/// Which part of what was allowed was used.
fn used(calls: usize, limit: &[&str]) -> f64 {
    only_on("tools");
    let (vendor, store) = (Vendor::start(|_| Answer::ok()), RedisServer::start());
    let mut sidecars = [(); 3].map(|()| sidecar(vendor.addr, &store, limit));
    let ways: Vec<_> = sidecars.iter().map(|(_, calls)| *calls).collect();
    let clients = 12;
    let (ended, said) = thread::scope(|threads| {
        let clients: Vec<_> = (0..clients)
            .map(|nth| client(nth, calls / clients, &ways))
            .map(|mut command| threads.spawn(move || (ran(&mut command), Instant::now())))
            .collect();
        wait("a half of the calls", || vendor.calls().len() >= calls / 2);
        sidecars[2].0.kill();
        let ended = clients.into_iter().map(|client| client.join().unwrap());
        let (said, ended): (Vec<Ran>, Vec<Instant>) = ended.unzip();
        (ended, said)
    });
    let words: Vec<&str> = said.iter().flat_map(|ran| ran.out.lines()).collect();
    let lost = words.iter().filter(|word| **word == "lost").count();
    let done = words.iter().filter(|word| **word == "200").count();
    assert_eq!(done, calls / clients * clients, "{words:?}");
    // A third of the clients had a call there, and found nobody there for the next.
    assert!((1..=2 * clients / 3).contains(&lost), "{lost}");
    assert_eq!(words.len(), done + lost, "no answer but the vendor's");
    let mut times: Vec<_> = vendor.calls().iter().map(|call| call.at).collect();
    times.sort_unstable();
    // Until the first client has nothing more to do: from then on fewer want a start.
    let first = ended.into_iter().min().unwrap();
    let until = times.iter().filter(|at| **at < first).count();
    let allowed = (times[until - 1] - times[0]).as_secs_f64() * 50.0;
    let over = most_over(&times, 50.0);
    eprintln!("{limit:?}: {until} of {allowed:.0}, {over:.1} over, {lost} lost");
    // Of a rate as many as it says may come at once; the way and this machine's other work bring some together.
    let at_once = if limit[0] == "--rate" { 50.0 } else { 1.0 };
    assert!(over <= at_once + 0.1 * 50.0, "{over}");
    until as f64 / allowed
}

/// Calls are few where this runs with all others; `STARTS` says how many else, and then all of the bar must be reached. The
/// limit holds however busy the machine is; whether it is used is seen in one of three tries.
fn is_used(limit: &str) {
    let starts = std::env::var("STARTS").ok().and_then(|of| of.parse().ok());
    let least = if starts.is_some() { 0.97 } else { 0.9 };
    let is_used = (0..3).any(|_| used(starts.unwrap_or(360), &[limit, "50/1s"]) >= least);
    assert!(is_used, "less than {least} of it each time");
}

#[test]
fn stock_clients_keep_a_throttle() {
    is_used("--throttle");
}

#[test]
fn stock_clients_keep_a_rate() {
    is_used("--rate");
}
