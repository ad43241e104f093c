"""The peers of the comparison, each set up as its documentation says for this purpose."""
import json
import sys
from functools import partial

import kit

# What each is told. The vendor allows two more: calls that start apart may arrive together.
RATE, AT_ONCE, LIMIT = 48, 16, 50
THIRD = RATE // 3


class Rig:
    """One run's processes: what is measured, which of them is killed, and where HTTP callers go."""

    def __init__(self, children, vendor, program):
        self.children, self.vendor, self.program = children, vendor, program
        self.measured, self.three, self.targets, self.of_callers = [], [], [], []
        # Programs that call by themselves, and those that work off calls which others add.
        self.callers = self.workers = None

    def store(self):
        at, child = self.children.redis()
        self.measured.append(child)
        return at

    def proxy(self, name, at, command, **more):
        child = self.children.start(name, command, **more)
        self.measured.append(child)
        self.three.append(child)
        self.targets.append(at)
        return child

    def file(self, name, text):
        path = self.children.folder / name
        path.write_text(text)
        return path


def none(rig):
    """Callers go straight to the vendor."""
    rig.targets = [rig.vendor] * 3


def nginx(hosts, rig):
    """Three hosts have a third each, since they share nothing. On one host three workers share a zone."""
    folder = rig.children.folder
    for n, at in enumerate(kit.ports(hosts)):
        conf = rig.file(f"nginx{n}", f"""
daemon off; worker_processes {3 // hosts}; pid {folder}/nginx{n}.pid; error_log {folder}/nginx{n}.log;
events {{ worker_connections 1024; }}
http {{
  access_log off; client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  limit_req_zone vendor zone=calls:1m rate={RATE // hosts}r/s;
  upstream vendor {{ server 127.0.0.1:{rig.vendor}; keepalive 16; }}
  server {{
    listen 127.0.0.1:{at};
    location / {{
      limit_req zone=calls burst=100; limit_req_status 429;
      proxy_pass http://vendor; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
    }}
  }}
}}
""")
        rig.proxy(f"nginx-{n}", at, [kit.FOLDER / "debian/usr/sbin/nginx", "-c", conf])
    rig.targets *= 3 // hosts


def haproxy(limit, rig):
    lib = kit.FOLDER / "debian/usr/lib/x86_64-linux-gnu"
    for n, at in enumerate(kit.ports(3)):
        conf = rig.file(f"haproxy{n}", f"""
global
  maxconn 1000
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
  timeout queue 60s
frontend calls
  bind 127.0.0.1:{at}
  option httpclose
{limit}
  default_backend vendor
backend vendor
  server vendor 127.0.0.1:{rig.vendor} maxconn {AT_ONCE // 3}
""")
        command = [kit.FOLDER / "debian/usr/sbin/haproxy", "-db", "-f", conf]
        rig.proxy(f"haproxy-{n}", at, command, LD_LIBRARY_PATH=str(lib))


# Connections wait in the socket's backlog.
WAIT = f"  rate-limit sessions {THIRD}"
# A stick table counts the last second, and what is too much is denied.
DENY = f"""  stick-table type string len 8 size 10 expire 10s store http_req_rate(1s)
  http-request track-sc0 str(calls)
  http-request deny deny_status 429 if {{ sc_http_req_rate(0) gt {THIRD} }}"""


def envoy(rig):
    """Envoy asks its rate limit service, which counts in Redis."""
    redis, grpc = rig.store(), kit.port()
    rules = rig.children.folder / "rules/compare/config"
    rules.mkdir(parents=True)
    (rules / "config.yaml").write_text(f"""
domain: calls
descriptors:
  - key: vendor
    rate_limit: {{ unit: second, requests_per_unit: {RATE} }}
""")
    plain, debug = kit.ports(2)
    service = rig.children.start(
        "ratelimit", [kit.FOLDER / "ratelimit/service_cmd"], USE_STATSD="false", LOG_LEVEL="error", REDIS_SOCKET_TYPE="tcp",
        REDIS_URL=f"127.0.0.1:{redis}", RUNTIME_ROOT=str(rig.children.folder / "rules"), RUNTIME_SUBDIRECTORY="compare",
        RUNTIME_WATCH_ROOT="false", HOST="127.0.0.1", GRPC_HOST="127.0.0.1", GRPC_PORT=str(grpc), PORT=str(plain),
        DEBUG_HOST="127.0.0.1", DEBUG_PORT=str(debug))
    rig.measured.append(service)
    kit.reach(grpc)
    for n, at in enumerate(kit.ports(3)):
        conf = rig.file(f"envoy{n}.json", envoy_conf(at, rig.vendor, grpc))
        command = [kit.FOLDER / "envoy/envoy/_bin/envoy", "-c", conf, "--base-id", 7000 + at, "--concurrency", 1, "-l", "error"]
        rig.proxy(f"envoy-{n}", at, command)


def envoy_conf(at, vendor, grpc):
    """Envoy's file; it reads JSON as well as YAML."""
    kind = "type.googleapis.com/envoy.extensions."
    filters = kind + "filters."

    def address(of):
        return {"address": {"socket_address": {"address": "127.0.0.1", "port_value": of}}}

    def cluster(name, to, **more):
        ends = [{"lb_endpoints": [{"endpoint": address(to)}]}]
        return {"name": name, "type": "STATIC", "load_assignment": {"cluster_name": name, "endpoints": ends}, **more}

    limits = [{"actions": [{"generic_key": {"descriptor_key": "vendor", "descriptor_value": "all"}}]}]
    route = {"match": {"prefix": "/"}, "route": {"cluster": "vendor", "rate_limits": limits}}
    service = {"transport_api_version": "V3", "grpc_service": {"envoy_grpc": {"cluster_name": "limits"}}}
    limit = {"@type": filters + "http.ratelimit.v3.RateLimit", "domain": "calls", "timeout": "1s", "rate_limit_service": service}
    chain = [
        {"name": "envoy.filters.http.ratelimit", "typed_config": limit},
        {"name": "envoy.filters.http.router", "typed_config": {"@type": filters + "http.router.v3.Router"}},
    ]
    manager = {
        "@type": filters + "network.http_connection_manager.v3.HttpConnectionManager", "stat_prefix": "calls",
        "route_config": {"virtual_hosts": [{"name": "calls", "domains": ["*"], "routes": [route]}]}, "http_filters": chain,
    }
    listener = {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}
    options = "upstreams.http.v3.HttpProtocolOptions"
    http2 = {"@type": kind + options, "explicit_http_config": {"http2_protocol_options": {}}}
    clusters = [
        cluster("vendor", vendor),
        cluster("limits", grpc, typed_extension_protocol_options={"envoy.extensions." + options: http2}),
    ]
    listeners = [{**address(at), "filter_chains": [{"filters": [listener]}]}]
    return json.dumps({"static_resources": {"listeners": listeners, "clusters": clusters}})


def litellm(rig):
    """One key's `rpm_limit`, in windows of a second, and its `max_parallel_requests`; counted in Redis."""
    redis = rig.store()
    rig.file("auth.py", f"""
from litellm.proxy._types import UserAPIKeyAuth


async def check(request, api_key):
    return UserAPIKeyAuth(api_key=api_key, rpm_limit={RATE}, max_parallel_requests={AT_ONCE})
""")
    rig.file("litellm.yaml", f"""
model_list:
  - model_name: m
    litellm_params: {{ model: openai/m, api_base: "http://127.0.0.1:{rig.vendor}/v1", api_key: sk-vendor }}
litellm_settings:
  num_retries: 0
  cache: true
  cache_params: {{ type: redis, host: 127.0.0.1, port: {redis}, supported_call_types: [] }}
router_settings: {{ redis_host: 127.0.0.1, redis_port: {redis}, disable_cooldowns: true }}
general_settings: {{ custom_auth: auth.check }}
""")
    more = {"PYTHONPATH": str(kit.FOLDER / "litellm"), "LITELLM_RATE_LIMIT_WINDOW_SIZE": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "true"}
    more["LITELLM_MASTER_KEY"] = "sk-" + "6f3a91c2" * 8
    start = "import sys; from litellm import run_server; sys.exit(run_server())"
    for n, at in enumerate(kit.ports(3)):
        rig.proxy(f"litellm-{n}", at, [sys.executable, "-c", start, "--config", "litellm.yaml", "--host", "127.0.0.1", "--port", at, "--telemetry", "False"], **more)


def pyrate(rig):
    """Its bucket in Redis; callers wait in `try_acquire_async`."""
    redis = rig.store()
    ask = {"limiter": "pyrate", "redis": redis, "rate": RATE}
    rig.callers = ([sys.executable, kit.HERE / "caller.py"], ask, {"PYTHONPATH": str(kit.FOLDER / "pyrate")})
    rig.targets = [rig.vendor] * 3


def bottleneck(rig):
    """`minTime` and `maxConcurrent`, clustered over Redis."""
    ask = {"redis": rig.store(), "rate": RATE, "at_once": AT_ONCE, "modules": str(kit.FOLDER / "bottleneck"), "vendor": rig.vendor}
    rig.callers = (["node", kit.HERE / "bottleneck.js"], ask, {})


def bullmq(limiter, rig):
    """Workers with this `limiter`, and a global concurrency."""
    ask = {"redis": rig.store(), "at_once": AT_ONCE, "limiter": limiter, "modules": str(kit.FOLDER / "bullmq"), "vendor": rig.vendor}
    rig.workers = (["node", kit.HERE / "bullmq.js"], ask, {})


def celery(rig):
    """`rate_limit` holds in each worker, so each of three has a third; `acks_late`, prefetch of 1."""
    ask = {"redis": rig.store(), "rate": THIRD, "vendor": rig.vendor}
    rig.workers = ([sys.executable, kit.HERE / "celery_peer.py"], ask, {"PYTHONPATH": str(kit.FOLDER / "celery")})


def ours(limit, rig):
    """This limit, `concurrency` and `fair`, over one Redis."""
    redis = rig.store()
    for n, at in enumerate(kit.ports(3)):
        conf = rig.file(f"throttle{n}.toml", f"""
[server]
upstream = "none"
admin_listen = "127.0.0.1:0"

[store]
url = "redis://127.0.0.1:{redis}"

[[egress]]
name = "vendor"
listen = "127.0.0.1:{at}"
upstream = "http://127.0.0.1:{rig.vendor}"
{limit} = {{ limit = {RATE}, period = "1s" }}
concurrency = {AT_ONCE}
fair = {{ by = "{{header.X-Tenant}}" }}
""")
        rig.proxy(f"sidecar-{n}", at, [rig.program, "run", "--config", conf])


# Name, what the row is called, how it is set up, what must be fetched, whether a fleet shares slots, what CPU contains.
PEERS = [
    ("none", "no limiter", none, [], False, ""),
    ("ours", "ojs-throttle, `throttle`", partial(ours, "throttle"), [], True, "proxies, Redis"),
    ("ours-rate", "ojs-throttle, `rate`", partial(ours, "rate"), [], True, "proxies, Redis"),
    ("nginx", "nginx, three hosts", partial(nginx, 3), ["debian"], False, "proxies"),
    ("nginx-host", "nginx, one host", partial(nginx, 1), ["debian"], False, "proxy"),
    ("haproxy-wait", "HAProxy, `rate-limit`", partial(haproxy, WAIT), ["debian"], False, "proxies"),
    ("haproxy-deny", "HAProxy, stick table", partial(haproxy, DENY), ["debian"], False, "proxies"),
    ("envoy", "Envoy with ratelimit", envoy, ["envoy", "ratelimit"], False, "proxies, service, Redis"),
    ("litellm", "LiteLLM", litellm, ["litellm"], True, "proxies, Redis"),
    ("bottleneck", "Bottleneck", bottleneck, ["bottleneck"], True, "callers, Redis"),
    ("bullmq", "BullMQ, 48 in 1 s", partial(bullmq, {"max": RATE, "duration": 1000}), ["bullmq"], True, "workers, Redis"),
    ("bullmq-spaced", "BullMQ, 1 in 21 ms", partial(bullmq, {"max": 1, "duration": 21}), ["bullmq"], True, "workers, Redis"),
    ("pyrate", "pyrate-limiter", pyrate, ["pyrate"], False, "callers, Redis"),
    ("celery", "Celery", celery, ["celery"], False, "workers, Redis"),
]
