"""What is limited, and how: the sidecars' file and the judge's numbers are both made from this."""

VISIBILITY = 6.0  # of claims, as workers ask for it
LEASE = 8.0  # of calls
TENANTS = [f"t{n}" for n in range(10)]
WEIGHTS = {"t0": 3}

# One line for each queue: how many jobs come in a second, and what limits them. `by` is the value in `meta` whose keys
# are limited each by itself; `closed` says that nothing starts while the store is lost.
QUEUES = {
    "free": {"a_second": 22},
    "mail": {"a_second": 14, "rate": 36, "period": 2.0},
    "crm": {"a_second": 18, "by": "tenant_id", "concurrency": 4, "max_depth": 150, "subqueues": True},
    "pay": {"a_second": 10, "interval": 0.05, "closed": True},
    "model": {"a_second": 5, "rate": 240, "period": 2.0, "cost": "tokens", "fair": True, "max_depth": 80},
    "lim": {"a_second": 14, "concurrency": 6, "max_depth": 60, "whole": True},
    "hot": {"a_second": 14, "rate": 40, "period": 1.0, "reserved": True},
    "seen": {"a_second": 9, "concurrency": 12, "shadow": True},
    "api": {"a_second": 9, "calls": True},
}
CALLS = {"concurrency": 3, "rate": 24, "period": 1.0, "accounts": ["a0", "a1"]}
# What the file says while it is the other one.
OTHER = {"mail": {"rate": 24}, "lim": {"concurrency": 9}}


def policy(name, q):
    key = f'"{name}:{{meta.{q["by"]}}}"' if "by" in q else f'"{name}"'
    lines = [f'[[policy]]\nname = "{name}"\nmatch = {{ queue = "{name}" }}\nkey = {key}']
    if "concurrency" in q:
        lines.append(f"concurrency = {q['concurrency']}")
    if "rate" in q:
        lines.append(f'rate = {{ limit = {q["rate"]}, period = "{q["period"]:g}s" }}')
    if "interval" in q:
        lines.append(f'throttle = {{ interval = "{q["interval"] * 1000:g}ms" }}')
    if "cost" in q:
        lines.append(f'cost = {{ from = "meta.{q["cost"]}", default = 10, max = 100 }}')
    if "fair" in q:
        weights = ", ".join(f"{name} = {weight}" for name, weight in WEIGHTS.items())
        lines.append(f'fair = {{ by = "{{meta.tenant_id}}", weights = {{ {weights} }} }}')
    lines += ['on_store_error = "closed"'] * ("closed" in q)
    lines += ['sync = "reserved"'] * ("reserved" in q)
    lines += ['mode = "shadow"'] * ("shadow" in q)
    return lines


def config(sidecar, store, other=False):
    """The file of one sidecar; `sidecar` has its ports."""
    queues = {name: {**q, **(OTHER.get(name, {}) if other else {})} for name, q in QUEUES.items()}
    tls = ""
    if sidecar["tls"]:
        tls = f'tls = {{ cert_file = "{sidecar["dir"]}/tls.crt", key_file = "{sidecar["dir"]}/tls.key" }}\n'
    lines = [
        f'[server]\nlisten = "127.0.0.1:{sidecar["listen"]}"\nadmin_listen = "127.0.0.1:{sidecar["admin"]}"',
        f'upstream = "http://127.0.0.1:{sidecar["to_backend"]}"\n{tls}drain_timeout = "3s"\ndrain_min = "0s"',
        f'upstream_timeout = "5s"\nlog = "json"\n[upstream]\nworker_id = "sidecar-{sidecar["nth"]}"',
        'requeue = "harmless"\nclaims_count = "no"\nliveness = "job"\nheartbeat = "from_now"',
        f'[store]\nurl = "{store}"\ntimeout = "1s"\n',
    ]
    for name, q in queues.items():
        if q.get("whole"):
            lines.append(f'[[queue]]\nname = "{name}"\nconcurrency = {q["concurrency"]}\nmax_depth = {q["max_depth"]}')
        elif q.keys() - {"a_second", "calls"}:
            lines += policy(name, q)
            if "max_depth" in q:
                lines.append(f'[[queue]]\nname = "{name}"\nmax_depth = {q["max_depth"]}')
                lines += ["subqueues = true"] * ("subqueues" in q)
    lines.append(
        f'[[egress]]\nname = "vendor"\nlisten = "127.0.0.1:{sidecar["egress"]}"\n'
        f'upstream = "http://127.0.0.1:{sidecar["to_vendor"]}"\nkey = "vendor:{{header.X-Account}}"\n'
        f'concurrency = {CALLS["concurrency"]}\nrate = {{ limit = {CALLS["rate"]}, period = "{CALLS["period"]:g}s" }}\n'
        f'lease = "{LEASE:g}s"\nmax_wait = "6s"\nvendor = "generic"\nfeedback = {{ max_pause = "3s" }}\n'
    )
    return "\n".join(lines) + "\n"
