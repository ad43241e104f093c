//! GitHub's SDK for Node goes out by its base URL, and undici takes the way out for its HTTP proxy.

use std::path::Path;

use super::prelude::*;
use crate::servers::vendor::{Answer, Vendor, VendorCall};
use crate::servers::{only_on, port};

const SCRIPT: &str = r#"
import { Octokit } from "@octokit/rest";
import { EnvHttpProxyAgent, ProxyAgent, fetch } from "undici";
const [base, proxy, service] = process.argv.slice(1);
const log = { debug() {}, info() {}, warn() {}, error() {} };
const repo = { owner: "o", repo: "r" };
const github = new Octokit({ baseUrl: base, auth: "only-for-tests", log });
const search = async () => (await github.rest.search.issuesAndPullRequests({ q: "a" })).status;
console.log(await search());
try {
  console.log(await search());
} catch (refused) {
  const { headers } = refused.response;
  console.log(refused.status, headers["ojs-throttle-limited"], Number(headers["retry-after"]) > 60);
}
let core = 0;
for (let n = 0; n < 20; n += 1) core += (await github.rest.repos.get(repo)).status === 200;
console.log(core);
console.log((await github.paginate(github.rest.issues.listForRepo, { ...repo, per_page: 1 })).map(({ id }) => id).join());

const options = { uri: proxy, proxyTunnel: false };
const dispatcher = new ProxyAgent(options);
console.log((await fetch(service + "/proxy", { dispatcher })).status);
process.env.HTTP_PROXY = proxy;
console.log((await fetch(service + "/env", { dispatcher: new EnvHttpProxyAgent(options) })).status);
const through = (url, how) => fetch(url, { ...how, dispatcher });
const there = new Octokit({ baseUrl: service, request: { fetch: through }, log });
console.log((await there.paginate(there.rest.issues.listForRepo, repo)).map(({ id }) => id).join());
// What is asked for in a tunnel is refused, and its error says so.
for (const [agent, url] of [[dispatcher, service.replace("http:", "https:")], [new ProxyAgent(proxy), service]]) {
  try {
    console.log((await fetch(url + "/tunnel", { dispatcher: agent })).status);
  } catch (refused) {
    console.log(refused.cause?.cause?.message ?? refused.cause?.message);
  }
}
"#;

/// As GitHub: `search` is spent after one call, and issues have three pages.
fn answer(call: &VendorCall, own: SocketAddr) -> Answer {
    let (path, query) = call.target().split_once('?').unwrap_or((call.target(), ""));
    let page = query.split('&').find_map(|pair| pair.strip_prefix("page="));
    let page: u32 = page.map_or(1, |page| page.parse().unwrap());
    let (resource, left) = match path.starts_with("/search/") {
        true => ("search", "0"),
        false => ("core", "4000"),
    };
    let hour = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let reset = (hour.unwrap().as_secs() + 3_600).to_string();
    let body = match path {
        "/search/issues" => r#"{"total_count":0,"items":[]}"#.to_owned(),
        _ if path.ends_with("/issues") => format!("[{{\"id\":{page}}}]"),
        _ => "{}".to_owned(),
    };
    let mut answer = Answer::new(200, body).header("Content-Type", "application/json");
    if path.ends_with("/issues") && page < 3 && resource == "core" {
        let next = format!(
            "<http://{own}/repositories/1/issues?page={}>; rel=\"next\"",
            page + 1
        );
        answer = answer.header("Link", &next);
    }
    for (name, value) in [
        ("Limit", "5000"),
        ("Remaining", left),
        ("Reset", &reset),
        ("Resource", resource),
    ] {
        answer = answer.header(&format!("X-RateLimit-{name}"), value);
    }
    answer
}

#[test]
fn pages_of_github_stay_under_the_limit_and_a_spent_search_leaves_core_open() {
    only_on("octokit");
    let packages = Path::new(env!("CARGO_TARGET_TMPDIR")).join("octokit");
    let missing =
        "the SDK is missing: bash tests/run.sh --nightly fetches it, or --without octokit";
    assert!(packages.join("node_modules/undici").exists(), "{missing}");
    let own = Arc::<std::sync::OnceLock<SocketAddr>>::default();
    let known = Arc::clone(&own);
    let vendor = Vendor::start(move |call| answer(call, *known.get().unwrap()));
    own.set(vendor.addr).unwrap();
    let [base, proxy] = [(); 2].map(|()| port::own());
    let to = vendor.addr;
    let rate = "rate = { limit = 1000, period = \"1m\" }\nmax_wait = \"500ms\"\n";
    let ways = format!(
        "[[egress]]\nname = \"github\"\nlisten = \"{base}\"\nupstream = \"http://{to}\"\nvendor = \"github\"\n\
         key = \"github:{{path.0}}\"\n{rate}[[egress]]\nname = \"hosts\"\nlisten = \"{proxy}\"\nhosts = [\"{to}\"]\n\
         scheme = \"http\"\nkey = \"of:{{host}}\"\n{rate}"
    );
    let backend = Backend::start(Lax::spec());
    let sidecar = Sidecar::run(&config(backend.addr, "", &ways));
    let mut node = Command::new("node");
    node.current_dir(packages);
    node.args(["--input-type=module", "-e", SCRIPT]);
    node.args([base, proxy, to].map(|at| format!("http://{at}")));
    let said = ran(&mut node);
    let tunnel = "Proxy response (405) !== 200 when HTTP Tunneling\n".repeat(2);
    assert_eq!(
        said.out,
        format!("200\n429 github:search true\n20\n1,2,3\n200\n200\n1,2,3\n{tunnel}"),
        "{}\n{}",
        said.err,
        sidecar.log()
    );
    // Each came by the sidecar.
    let calls = vendor.calls();
    assert_eq!(calls.len(), 1 + 20 + 3 + 2 + 3);
    for call in calls {
        assert!(call.header("via").is_some(), "{}", call.head);
    }
}
