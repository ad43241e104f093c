"""A backend of Open Job Spec, and a vendor: what jobs and calls are for. Both write down what happened.

The backend has the manners of the redis backend of 2026: an attempt counts when it fails, a claim that runs out makes
its job available again, a nack with `requeue` costs nothing. Each claim has a number in the job, `ext_claim`, so
that records of workers can be joined with its own.
"""

import asyncio
import heapq
import itertools
import json
import random
import sys
from urllib.parse import parse_qs, urlsplit

from web import Record, Server, now, orders

OJS = [("Content-Type", "application/openjobspec+json"), ("OJS-Version", "1.0")]
WAITING = ("available", "scheduled", "retryable")
ENDED = ("completed", "discarded", "cancelled")
COUNTED = (*WAITING, "active", *ENDED)


class Refused(Exception):
    def __init__(self, status, code, message):
        self.status, self.code, self.message = status, code, message


class Backend:
    def __init__(self, record):
        self.record = record
        self.jobs, self.queues, self.due, self.active = {}, {}, [], {}
        self.order, self.claims = itertools.count(), itertools.count(1)

    # ---- states ----

    def queue(self, name):
        if name not in self.queues:
            self.queues[name] = {"ready": [], "counts": dict.fromkeys(COUNTED, 0)}
        return self.queues[name]

    def move(self, job, state, until=None):
        """Puts a job into a state, at most until a time."""
        queue = self.queue(job["queue"])
        if job["state"]:
            queue["counts"][job["state"]] -= 1
        queue["counts"][state] += 1
        job["state"], job["turn"] = state, next(self.order)
        self.active.pop(job["id"], None)
        if state == "active":
            self.active[job["id"]] = job
        if state == "available":
            heapq.heappush(queue["ready"], (-job["priority"], job["turn"], job["id"]))
        if state in ENDED:
            job["sent"] = {"args": []}
        if until is not None:
            job["until"] = until
            heapq.heappush(self.due, (until, job["turn"], job["id"]))

    def tick(self):
        while self.due and self.due[0][0] <= now():
            _, turn, id = heapq.heappop(self.due)
            job = self.jobs[id]
            if job["turn"] != turn or job["state"] not in ("active", "retryable", "scheduled"):
                continue
            if job["until"] > now():
                heapq.heappush(self.due, (job["until"], turn, id))
                continue
            lapsed = job["state"] == "active"
            self.record.write("lapse" if lapsed else "due", job=id, n=job["claim"])
            self.move(job, "available")

    async def keep_ticking(self):
        while True:
            self.tick()
            await asyncio.sleep(0.1)

    # ---- operations ----

    def enqueue(self, sent):
        options = sent.get("options") or {}
        id = sent["id"]
        if id in self.jobs:
            raise Refused(409, "duplicate", "There is a job with this id.")
        job = {
            "id": id, "type": sent["type"], "queue": options.get("queue", "default"), "state": "", "turn": 0,
            "priority": options.get("priority", 0), "attempt": 0, "until": 0, "claim": 0, "sent": sent,
            "max": (options.get("retry") or {}).get("max_attempts", 3),
        }
        self.jobs[id] = job
        self.move(job, "available")
        self.record.write("stored", job=id, q=job["queue"])
        return 201, {"job": self.shown(job)}

    def shown(self, job):
        sent = job["sent"]
        others = {name: sent[name] for name in sent if name not in ("options", "queue", "state")}
        return {
            **others, "id": job["id"], "type": job["type"], "queue": job["queue"], "state": job["state"],
            "priority": job["priority"], "attempt": job["attempt"], "max_attempts": job["max"],
            "created_at": "2026-01-01T00:00:00.000Z", "ext_claim": job["claim"],
        }

    def fetch(self, sent):
        names, jobs = sent.get("queues") or [], []
        if not names:
            raise Refused(400, "invalid_request", "The field 'queues' must name at least one queue.")
        lease = (sent.get("visibility_timeout_ms") or 30000) / 1000
        for name in names:
            ready = self.queue(name)["ready"]
            while ready and len(jobs) < max(1, sent.get("count") or 1):
                _, turn, id = heapq.heappop(ready)
                job = self.jobs[id]
                if job["state"] != "available" or job["turn"] != turn:
                    continue
                job["claim"] = next(self.claims)
                self.move(job, "active", now() + lease)
                self.record.write("claim", job=id, n=job["claim"], by=sent.get("worker_id"))
                jobs.append(self.shown(job))
        return 200, {"jobs": jobs, **({"job": jobs[0]} if jobs else {})}

    def running(self, sent):
        job = self.found(sent.get("job_id"))
        if job["state"] != "active":
            raise Refused(409, "conflict", f"The job is not active. Current state: '{job['state']}'.")
        return job

    def found(self, id):
        if id not in self.jobs:
            raise Refused(404, "not_found", "Job not found.")
        return self.jobs[id]

    def ack(self, sent):
        job = self.running(sent)
        self.record.write("ack", job=job["id"], n=job["claim"])
        self.move(job, "completed")
        return 200, {"acknowledged": True, "id": job["id"], "state": "completed"}

    def nack(self, sent):
        job = self.running(sent)
        if sent.get("requeue"):
            self.record.write("requeue", job=job["id"], n=job["claim"])
            self.move(job, "available")
        else:
            job["attempt"] += 1
            fatal = (sent.get("error") or {}).get("retryable") is False or job["attempt"] >= job["max"]
            self.record.write("discard" if fatal else "nack", job=job["id"], n=job["claim"])
            self.move(job, "discarded") if fatal else self.move(job, "retryable", now() + 0.5)
        return 200, {"id": job["id"], "state": job["state"], "attempt": job["attempt"], "max_attempts": job["max"]}

    def heartbeat(self, sent):
        if not sent.get("worker_id"):
            raise Refused(400, "invalid_request", "The field 'worker_id' is required.")
        lease = (sent.get("visibility_timeout_ms") or 30000) / 1000
        extended = []
        for id in [*(sent.get("active_jobs") or []), *filter(None, [sent.get("job_id")])]:
            if id in self.active:
                job, until = self.active[id], now() + lease
                if until < job["until"]:
                    heapq.heappush(self.due, (until, job["turn"], id))
                job["until"] = until
                extended.append(id)
        return 200, {"state": "running", "directive": "continue", "jobs_extended": extended}

    # ---- views ----

    def stats(self, name):
        return 200, {"queue": {"name": name, "paused": False, **self.queue(name)["counts"]}}

    def admin_queue(self, name):
        return {"name": name, "paused": False, "counts": dict(self.queue(name)["counts"])}

    def admin_jobs(self, query):
        jobs = self.active.values() if query.get("state") == "active" else self.jobs.values()
        items = [self.shown(job) for job in jobs if query.get("queue", job["queue"]) == job["queue"]]
        page, size = int(query.get("page", 1)), min(100, int(query.get("per_page", 20)))
        total = {"total": len(items), "page": page, "per_page": size}
        return 200, {"items": items[(page - 1) * size : page * size], "pagination": total}

    def left(self):
        ended = sum(queue["counts"][state] for queue in self.queues.values() for state in ENDED)
        return 200, {"left": len(self.jobs) - ended, "jobs": len(self.jobs)}

    MANIFEST = {
        "specversion": "1.0", "implementation": {"name": "soak-backend", "version": "1", "backend": "memory"},
        "conformance_level": 1, "protocols": ["http"], "extensions": {"official": []},
        "capabilities": {"batch_enqueue": True, "delayed_jobs": True, "priority_queues": True, "dead_letter": True},
    }

    def route(self, method, path, query, message):
        match (method, *path.strip("/").split("/")):
            case ("GET", "ojs", "manifest"):
                return 200, self.MANIFEST
            case ("GET", "soak", "left"):
                return self.left()
            case ("GET", "ojs", "v1", "health"):
                return 200, {"status": "ok", "version": "1", "backend": {"type": "memory", "status": "connected"}}
            case ("POST", "ojs", "v1", "jobs"):
                return self.enqueue(message.json())
            case ("POST", "ojs", "v1", "workers", "fetch" | "ack" | "nack" | "heartbeat" as name):
                return getattr(self, name)(message.json())
            case ("GET", "ojs", "v1", "jobs", id):
                return 200, {"job": self.shown(self.found(id))}
            case ("GET", "ojs", "v1", "queues", name, "stats"):
                return self.stats(name)
            case ("GET", "ojs", "v1", "admin", "queues", name):
                return 200, self.admin_queue(name)
            case ("GET", "ojs", "v1", "admin", "jobs"):
                return self.admin_jobs(query)
        raise Refused(404, "not_found", "There is no such route.")

    async def handle(self, message, writer):
        self.tick()
        url = urlsplit(message.first[1])
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        try:
            status, body = self.route(message.first[0], url.path, query, message)
        except Refused as no:
            error = {"code": no.code, "message": no.message, "retryable": no.status >= 500}
            status, body = no.status, {"error": error}
        except (ValueError, KeyError, TypeError) as error:
            status, body = 400, {"error": {"code": "invalid_request", "message": str(error), "retryable": False}}
        return status, json.dumps(body, separators=(",", ":")).encode(), OJS


class Vendor:
    """A service with limits that somebody else set: it writes down which calls came, and until when it worked."""

    def __init__(self, record, seed):
        self.record, self.random = record, random.Random(seed)

    async def handle(self, message, writer):
        arrived = now()
        until = arrived + self.random.uniform(0.01, 0.12)
        while now() < until and not writer.is_closing():
            await asyncio.sleep(min(0.02, max(0, until - now())))
        account, id = message.headers.get("x-account"), message.headers.get("x-call")
        self.record.write("call", t=arrived, end=round(now(), 5), account=account, id=id)
        return 200, b'{"ok":true}', [("Content-Type", "application/json")]


async def main(folder, port, vendor_port, seed):
    record = Record(f"{folder}/backend.jsonl")
    backend, vendor = Backend(record), Vendor(record, seed)
    servers = {
        "backend": Server(int(port), backend.handle, f"{seed} backend"),
        "vendor": Server(int(vendor_port), vendor.handle, f"{seed} vendor"),
    }
    for server in servers.values():
        await server.start()
    tasks = [asyncio.create_task(record.keep()), asyncio.create_task(backend.keep_ticking())]

    async def obey(order):
        server = servers[order["who"]]
        if order["mode"] == "heal":
            server.modes.clear()
        else:
            await server.mode(order["mode"], order["for"], order.get("part", 1.0))

    await orders(obey)
    for task in tasks:
        task.cancel()
    record.file.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
