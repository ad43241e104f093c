"""Producers and workers: they send and take jobs through the sidecars, and write down what they were told."""

import asyncio
import itertools
import json
import random
import ssl
import sys
import time
import zlib

import plan
from web import Client, Cut, Record, now, orders

WORKERS, WIDTH = 30, 4
# Which queues a worker asks for, in turn.
MENUS = [
    ["free", "mail", "crm"],
    ["lim", "hot", "seen"],
    ["pay", "model", "api"],
    ["crm", "api", "lim"],
    ["seen", "hot", "free", "mail"],
    ["model", "pay", "crm"],
]
# How many of a thousand jobs are done in each way, the others at once.
MANNERS = {"slow": 4, "long": 25, "hang": 2, "die": 1, "fail": 20}


def uuid7(random):
    number = (time.time_ns() // 1_000_000 << 80) | random.getrandbits(80)
    number = number & ~(0xF << 76) | (7 << 76)
    number = number & ~(0x3 << 62) | (2 << 62)
    text = f"{number:032x}"
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


class Stage:
    """What producers and workers share: the ways to the sidecars, and the record."""

    def __init__(self, folder, seed, sidecars):
        self.record, self.random, self.sidecars = Record(f"{folder}/clients.jsonl"), random.Random(seed), sidecars
        self.tls = ssl.create_default_context(cafile=f"{folder}/ca.crt")
        self.tls.check_hostname = False
        self.producing, self.burst, self.tasks = True, 1.0, set()

    def clients(self):
        return [Client(s["listen"], self.tls if s["tls"] else None) for s in self.sidecars]

    def spawn(self, coroutine):
        task = asyncio.create_task(coroutine)
        self.tasks.add(task)
        task.add_done_callback(self.ended)
        return task

    def ended(self, task):
        self.tasks.discard(task)
        if not task.cancelled() and task.exception():
            self.record.write("broken", what=repr(task.exception()))

    # ---- producers ----

    async def produce(self, queue, q):
        ways, sizes = self.clients(), itertools.count()
        while self.producing:
            await asyncio.sleep(self.random.expovariate(q["a_second"] * self.burst))
            if next(sizes) and len(self.tasks) < 600:
                self.spawn(self.enqueue(queue, q, ways))

    async def enqueue(self, queue, q, ways):
        pick, id = self.random.random(), uuid7(self.random)
        manner, least = "quick", 0
        for name, share in MANNERS.items():
            if least <= pick * 1000 < least + share:
                manner = name
            least += share
        # Half of the jobs are of the first two tenants.
        tenant = self.random.choice(plan.TENANTS[: 2 if self.random.random() < 0.4 else None])
        meta = {"tenant_id": tenant, "tokens": self.random.choice([5, 10, 15, 40]), "manner": manner}
        text = "x" * self.random.choice([10, 100, 1000]) + id
        job = {
            "id": id, "type": f"soak.{queue}", "args": [text, zlib.crc32(text.encode())], "meta": meta,
            "options": {"queue": queue, "retry": {"max_attempts": 50}},
        }
        key = f"{queue}:{meta[q['by']]}" if "by" in q else queue
        cost = meta[q["cost"]] if "cost" in q else 1
        self.record.write("made", job=id, q=queue, k=key, cost=cost)
        first = self.random.randrange(len(ways))
        for n in range(60):
            try:
                status, _ = await ways[(first + n) % len(ways)].call("POST", "/ojs/v1/jobs", job, timeout=8)
            except Cut:
                status = 0
            self.record.write("enq", job=id, st=status)
            if status in (201, 400, 409, 429):
                return
            await asyncio.sleep(self.random.uniform(0.3, 1))

    # ---- workers ----

    async def staff(self, nth):
        """One worker after another: who dies is replaced."""
        for life in itertools.count():
            worker = Worker(self, f"w{nth}.{life}", nth)
            await worker.live()
            await asyncio.sleep(1)


class Worker:
    def __init__(self, stage, name, nth):
        self.stage, self.name, self.queues = stage, name, MENUS[nth % len(MENUS)]
        self.ways, self.home = stage.clients(), nth % len(stage.sidecars)
        self.calls = [Client(s["egress"]) for s in stage.sidecars]
        self.running, self.silent, self.dead = {}, set(), asyncio.Event()

    async def live(self):
        self.stage.crew[self.name] = self
        loops = [self.stage.spawn(self.take()), self.stage.spawn(self.beat())]
        await self.dead.wait()
        self.stage.record.write("died", w=self.name, jobs=len(self.running))
        for task in (*loops, *self.running.values()):
            task.cancel()
        for way in (*self.ways, *self.calls):
            way.abort()
        del self.stage.crew[self.name]

    async def take(self):
        while True:
            room = WIDTH - len(self.running)
            if room <= 0:
                await asyncio.sleep(0.03)
                continue
            sent, jobs, status, via = now(), [], 0, self.home
            body = {
                "queues": self.queues, "count": room, "worker_id": self.name,
                "visibility_timeout_ms": int(plan.VISIBILITY * 1000),
            }
            try:
                status, reply = await self.ways[via].call("POST", "/ojs/v1/workers/fetch", body, timeout=15)
                jobs = reply.json()["jobs"] if status == 200 else []
            except (Cut, ValueError, KeyError):
                status = 0
            self.stage.record.write("fetch", t=sent, end=round(now(), 5), w=self.name, s=via, st=status, n=len(jobs))
            for job in jobs:
                args = job["args"]
                whole = zlib.crc32(args[0].encode()) == args[1]
                self.stage.record.write("got", job=job["id"], n=job["ext_claim"], w=self.name, s=via, whole=whole)
                # A second delivery of the same job is written down, and run too.
                self.running[job["id"]] = self.stage.spawn(self.work(job))
            if status != 200:
                self.home = (self.home + 1) % len(self.ways)
                await asyncio.sleep(self.stage.random.uniform(0.2, 0.6))
            elif not jobs:
                await asyncio.sleep(self.stage.random.uniform(0.1, 0.4))

    async def beat(self):
        while True:
            await asyncio.sleep(1.5)
            if jobs := [id for id in self.running if id not in self.silent]:
                body = {
                    "worker_id": self.name, "active_jobs": jobs,
                    "visibility_timeout_ms": int(plan.VISIBILITY * 1000),
                }
                try:
                    await self.ways[self.home].call("POST", "/ojs/v1/workers/heartbeat", body, timeout=4)
                except Cut:
                    pass

    async def work(self, job):
        random, id, manner = self.stage.random, job["id"], job["meta"]["manner"]
        # What fails, dies or hangs does so once, else it would never end.
        key = (id, manner)
        if manner in ("hang", "die", "fail", "slow") and key in self.stage.tried:
            manner = "quick"
        self.stage.tried.add(key)
        try:
            if job["queue"] == "api":
                await self.call(random.choice(plan.CALLS["accounts"]))
            match manner:
                case "slow":
                    await asyncio.sleep(random.uniform(6, 10))
                case "long":
                    await asyncio.sleep(random.uniform(2, 5))
                case "hang":
                    self.silent.add(id)
                    await asyncio.sleep(plan.VISIBILITY * 2)
                case "die":
                    await asyncio.sleep(0.05)
                    return self.dead.set()
                case _:
                    await asyncio.sleep(random.uniform(0.005, 0.08))
            await self.settle(job, manner != "fail")
        finally:
            self.running.pop(id, None)
            self.silent.discard(id)

    async def settle(self, job, good):
        body = {"job_id": job["id"], "result": {}} if good else {
            "job_id": job["id"], "error": {"code": "handler_error", "message": "no luck", "retryable": True}
        }
        for n in range(12):
            via = (self.home + n) % len(self.ways)
            way = self.ways[via]
            self.stage.record.write("settle", job=job["id"], n=job["ext_claim"], good=good, s=via)
            try:
                status, _ = await way.call("POST", f"/ojs/v1/workers/{'ack' if good else 'nack'}", body, timeout=12)
            except Cut:
                status = 0
            self.stage.record.write("settled", job=job["id"], n=job["ext_claim"], good=good, st=status)
            if status in (200, 404, 409):
                return
            await asyncio.sleep(self.stage.random.uniform(0.2, 0.5))

    async def call(self, account):
        id, sent = f"c{next(self.stage.numbers)}", now()
        headers = [("X-Account", account), ("X-Call", id)]
        try:
            status, _ = await self.calls[self.home].call("POST", "/v1/thing", {"a": 1}, headers, timeout=12)
        except Cut:
            status = 0
        self.stage.record.write("called", t=sent, end=round(now(), 5), id=id, st=status)


async def main(folder, seed, sidecars):
    stage = Stage(folder, seed, json.loads(sidecars))
    stage.crew, stage.tried, stage.numbers = {}, set(), itertools.count()
    keeping = asyncio.create_task(stage.record.keep())
    crews = [asyncio.create_task(stage.staff(nth)) for nth in range(WORKERS)]
    producers = [asyncio.create_task(stage.produce(name, q)) for name, q in plan.QUEUES.items()]

    async def obey(order):
        crew = list(stage.crew.values())
        match order["do"]:
            case "die":
                for worker in stage.random.sample(crew, len(crew) // 3):
                    worker.dead.set()
            case "hang":
                for worker in stage.random.sample(crew, len(crew) // 3):
                    worker.silent.update(worker.running)
            case "burst":
                stage.burst = 5.0
                await asyncio.sleep(order["for"])
                stage.burst = 1.0
            case "stop":
                stage.producing = False

    await orders(obey)
    for task in (keeping, *crews, *producers, *stage.tasks):
        task.cancel()
    stage.record.file.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
