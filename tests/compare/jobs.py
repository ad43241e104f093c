"""Jobs: 20 free ones of 20 tenants behind 20,000 of a tenant that may start none. How long until the 20 have started?"""
import json
import os
import pathlib
import subprocess
import sys
import time
import urllib.request

import kit

SHUT, FREE, PATIENCE = 20_000, 20, 120
TENANTS = ["shut", *(f"t{n}" for n in range(FREE))]
HEAD = ["jobs", "first of 20", "all 20", "shut jobs given to workers", "CPU"]


def post(at, path, body):
    data, kind = json.dumps(body).encode(), {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{at}{path}", data, kind), timeout=60) as reply:
        return json.load(reply)


def judged(folder, go, measured, used):
    """Waits until the free jobs have started, and says when they did."""
    until = time.monotonic() + PATIENCE
    while True:
        told = [line.split() for file in folder.glob("started-*") for line in file.read_text().splitlines()]
        told = [words for words in told if len(words) == 2]
        free = sorted(int(at) for tenant, at in told if tenant != "shut")
        if len(free) >= FREE or time.monotonic() > until:
            break
        time.sleep(0.1)
    shut = sum(tenant == "shut" for tenant, _ in told)

    def after(nth):
        return f"{(free[nth] - go) / 1e9:.2f} s" if len(free) > nth else f"not in {PATIENCE} s"

    return [after(0), after(FREE - 1), f"{shut:,}", f"{kit.cpu(measured) - used:.1f} s"]


def with_workers(children, command, measured, **more):
    """Three workers. They are ready, and go at one moment."""
    folder = children.folder
    for n in range(3):
        env = {**more, "STARTED": str(folder / f"started-{n}"), "GO": str(folder / "go"), "READY": str(folder / f"ready-{n}")}
        measured.append(children.start(f"worker-{n}", command, **env))
    until = time.monotonic() + 60
    while len([*folder.glob("ready-*")]) < 3:
        assert time.monotonic() < until, "the workers are not ready"
        time.sleep(0.05)
    used, go = kit.cpu(measured), time.monotonic_ns()
    (folder / "go").touch()
    return judged(folder, go, measured, used)


def ours(subqueues):
    def work(program, children):
        front, behind, admin = kit.ports(3)
        conf = children.folder / "throttle.toml"
        conf.write_text(f"""
[server]
upstream = "http://127.0.0.1:{behind}"

[[policy]]
name = "crm"
match = {{ queue = "sync" }}
key = "crm:{{meta.tenant_id}}"
concurrency = 100

[[queue]]
name = "sync"
subqueues = {subqueues}
""")
        token = {"OJS_THROTTLE_TOKEN": "only-for-the-comparison"}
        listen = ["--listen", f"127.0.0.1:{front}", "--backend-listen", f"127.0.0.1:{behind}", "--admin-listen", f"127.0.0.1:{admin}"]
        measured = [children.start("dev", [program, "dev", *listen, "--config", conf], **token)]
        kit.reach(front)
        pause = [program, "pause", "crm:shut", "--for", "1h", "--admin", f"http://127.0.0.1:{admin}"]
        subprocess.run([str(word) for word in pause], check=True, capture_output=True, env={**os.environ, **token})
        jobs = [job("shut")] * SHUT + [job(tenant) for tenant in TENANTS[1:]]
        for at in range(0, len(jobs), 1000):
            post(front, "/ojs/v1/jobs/batch", {"jobs": jobs[at : at + 1000]})
        return with_workers(children, [sys.executable, kit.HERE / "jobs.py", front], measured)

    return work


def job(tenant):
    return {"type": "sync", "args": [tenant], "meta": {"tenant_id": tenant}, "options": {"queue": "sync"}}


def peer(name, command, queues):
    """A peer on Redis: `QUEUES` is one for all tenants, or one for each."""

    def work(_, children):
        redis, store = children.redis()
        more = {"REDIS": str(redis), "QUEUES": queues, "SHUT": str(SHUT), "TENANTS": ",".join(TENANTS)}
        more |= {"MODULES": str(kit.FOLDER / name), "PYTHONPATH": str(kit.FOLDER / name)}
        command_of = [command[0], kit.HERE / command[1]]
        filled = children.start("fill", [*command_of, "fill"], **more)
        assert filled.wait(300) == 0, (children.folder / "fill.log").read_text()
        return with_workers(children, [*command_of, "work"], [store], **more)

    return work


def worker(at):
    """A worker of OJS: it fetches, notes what started, and acknowledges it."""
    pathlib.Path(os.environ["READY"]).touch()
    while not os.path.exists(os.environ["GO"]):
        time.sleep(0.01)
    with open(os.environ["STARTED"], "w", buffering=1) as started:
        while True:
            ask = {"queues": ["sync"], "count": 10, "worker_id": f"w{os.getpid()}"}
            for job in post(at, "/ojs/v1/workers/fetch", ask)["jobs"]:
                started.write(f"{job['args'][0]} {time.monotonic_ns()}\n")
                post(at, "/ojs/v1/workers/ack", {"job_id": job["id"]})
            time.sleep(0.02)


NODE, PYTHON = ["node", "jobs_bullmq.js"], [sys.executable, "jobs_celery.py"]
# Name, what the row is called, how it is run, what must be fetched.
PEERS = [
    ("jobs-ours", "ojs-throttle, `subqueues`", ours("true"), []),
    ("jobs-ours-plain", "ojs-throttle, one queue", ours("false"), []),
    ("jobs-bullmq", "BullMQ, one queue", peer("bullmq", NODE, "one"), ["bullmq"]),
    ("jobs-bullmq-queues", "BullMQ, 21 queues", peer("bullmq", NODE, "each"), ["bullmq"]),
    ("jobs-celery", "Celery, one queue", peer("celery", PYTHON, "one"), ["celery"]),
    ("jobs-celery-queues", "Celery, 21 queues", peer("celery", PYTHON, "each"), ["celery"]),
]

if __name__ == "__main__":
    worker(int(sys.argv[1]))
