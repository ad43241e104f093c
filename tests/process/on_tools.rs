//! Clients that people use send large bodies and are answered before the end: each reads the answer.

use super::prelude::*;
use crate::servers::vendor::{Answer, FOREVER, Vendor};
use crate::servers::{only_on, port};

/// Sends all before it reads anything.
const PYTHON: &str = "
import http.client, sys
host, path, size, times = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
for _ in range(times):
    conn = http.client.HTTPConnection(host, timeout=25)
    try:
        conn.request('POST', path, body=b'x' * size, headers={'Content-Type': 'application/json'})
        reply = conn.getresponse()
        reply.read()
        print(reply.status)
    except Exception as error:
        print(repr(error))
    conn.close()
";

/// What SDKs call the network by, with a body in one piece and with one in a form.
const NODE: &str = "
const [host, path, size, times] = process.argv.slice(1);
const bytes = Buffer.alloc(+size, 'x');
for (let nth = 0; nth < +times; nth++) {
    const form = new FormData();
    form.append('file', new Blob([bytes]), 'file.bin');
    const body = nth % 2 ? form : bytes;
    try {
        const reply = await fetch(`http://${host}${path}`, { method: 'POST', body });
        await reply.text();
        console.log(reply.status);
    } catch (error) {
        console.log(String(error.cause ?? error));
    }
}
";

/// The older way of Node, which some SDKs use.
const NODE_HTTP: &str = "
const http = await import('node:http');
const [host, path, size, times] = process.argv.slice(1);
const [hostname, port] = host.split(':');
for (let nth = 0; nth < +times; nth++) {
    await new Promise((done) => {
        const call = http.request({ hostname, port, path, method: 'POST' }, (reply) => {
            reply.resume().on('close', done).on('end', () => console.log(reply.statusCode));
        });
        call.on('error', (error) => { console.log(String(error)); done(); });
        call.end(Buffer.alloc(+size, 'x'));
    });
}
";

const CURL: &str = "
head -c \"$3\" /dev/zero >\"$5\"
for _ in $(seq \"$4\"); do
    curl -sS -m 25 -o /dev/null -w '%{http_code}\\n' -H 'Expect:' --data-binary @\"$5\" \"http://$1$2\" 2>&1
done
";

fn client(name: &str, args: &[&str; 4]) -> Command {
    only_on("tools");
    let scratch = std::env::temp_dir().join(format!("early-{}", port::own().port()));
    let mut command = Command::new(name.split(' ').next().unwrap());
    match name {
        "python3" => command.args(["-c", PYTHON]),
        "node fetch" => command.args(["--input-type=module", "-e", NODE, "--"]),
        "node http" => command.args(["--input-type=module", "-e", NODE_HTTP, "--"]),
        _ => command.args(["-c", CURL, "curl"]),
    };
    command.args(args).arg(scratch);
    command
}

#[test]
fn an_answer_to_a_large_body_is_read_by_all() {
    let vendor = Vendor::start(|call| match call.target() {
        "/hasty" => Answer::new(429, "no")
            .without_reading()
            .after(Duration::from_millis(1)),
        _ => Answer::ok().after(FOREVER),
    });
    let backend = Backend::start(Lax::redis());
    let listens: [SocketAddr; 3] = [port::own(), port::own(), port::own()];
    let entries = [
        "token = \"sesame\"",
        "on_limit = \"reject\"\nconcurrency = 1",
        "",
    ];
    let entries: Vec<String> = std::iter::zip(listens, entries)
        .map(|(listen, more)| {
            let (nth, to) = (listen.port(), vendor.addr);
            format!("[[egress]]\nname = \"e{nth}\"\nlisten = \"{listen}\"\nupstream = \"http://{to}\"\n{more}\n")
        })
        .collect();
    let sidecar = Sidecar::run(&config(
        backend.addr,
        "max_body = \"64KiB\"",
        &entries.concat(),
    ));
    // It takes the slot.
    let mut first = Conn::open(listens[1]);
    first
        .write(b"GET /first HTTP/1.1\r\nHost: a\r\n\r\n")
        .unwrap();
    wait("it is out", || vendor.calls().len() == 1);
    let cases = [
        (sidecar.data, "/ojs/v1/jobs", "413"),
        (sidecar.data, "/ojs/v1//jobs", "400"),
        (sidecar.admin, "/nowhere", "405"),
        (listens[0], "/x", "401"),
        (listens[1], "/x", "429"),
        (listens[2], "/hasty", "429"),
    ];
    let mut failed = Vec::new();
    for name in ["python3", "node fetch", "node http", "bash"] {
        for (to, path, status) in cases {
            for size in ["300000", "1048576", "5242880"] {
                let said = ran(&mut client(name, &[&to.to_string(), path, size, "5"]));
                let broken = said.out.lines().filter(|line| *line != status);
                let mut broken: Vec<&str> = broken.collect();
                broken.dedup();
                if said.out.lines().count() != 5 || !broken.is_empty() {
                    failed.push(format!("{name} {path} {size} {status}: {broken:?}"));
                }
            }
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

/// As the chapter `egress` shows them.
const BY_PROXY: [(&str, &[&str], &str); 3] = [
    ("python3", &["-c"], "
import sys
from urllib.request import ProxyHandler, build_opener
proxy, url = sys.argv[1:]
to_shops = build_opener(ProxyHandler({'http': proxy}))
print(to_shops.open(url).read().decode())
"),
    ("node", &["--input-type=commonjs", "-e"], "
const http = require('node:http');
const [proxy, path] = process.argv.slice(1);
const { hostname: host, port } = new URL(proxy);
http.get({ host, port, path, headers: { host: new URL(path).host } }, (reply) => reply.pipe(process.stdout));
"),
    ("bash", &["-c"], "curl -sS -x \"$0\" \"$1\""),
];

#[test]
fn programs_take_an_entry_with_hosts_for_their_proxy() {
    only_on("tools");
    let vendor = Vendor::start(|_| Answer::ok());
    let (listen, at) = (port::own(), vendor.addr);
    let entry = "key = \"{host}\"\nconcurrency = 5\nscheme = \"http\"\n";
    let config = format!(
        "[server]\nupstream = \"none\"\nadmin_listen = \"127.0.0.1:0\"\n[[egress]]\nname = \"out\"\nlisten = \"{listen}\"\nhosts = [\"{at}\"]\n{entry}"
    );
    let sidecar = Sidecar::run(&config);
    for (program, options, script) in BY_PROXY {
        let mut command = Command::new(program);
        let url = format!("http://{at}/a%2Fb?c=%20d");
        command
            .args(options)
            .arg(script)
            .args([format!("http://{listen}"), url]);
        let said = ran(&mut command);
        assert_eq!(
            (said.status, said.out.trim()),
            (Some(0), "{}"),
            "{program}: {}\n{}",
            said.err,
            sidecar.log()
        );
        let seen = vendor.calls().pop().unwrap();
        assert_eq!(
            (seen.target(), seen.header("host")),
            ("/a%2Fb?c=%20d", Some(&*at.to_string()))
        );
    }
    assert_eq!(vendor.calls().len(), 3);
}
