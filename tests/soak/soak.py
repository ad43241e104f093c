"""Starts a fleet and all around it, hurts it by a seed, and leaves records for the judge."""

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import faults
import judge
from services import STORES, Certificates, Given, Sidecar, free_port
from web import Client, Cut, Record, now

HERE = Path(__file__).parent
# One fault each so many seconds; while the store is left alone in peace, others go on.
EACH = 1.5
NOISY, QUIET = 25.0, 30.0


class Soak:
    def __init__(self, folder, wanted):
        self.folder, self.random = folder, random.Random(wanted.seed)
        self.record = Record(f"{folder}/soak.jsonl")
        self.certificates, self.pair = Certificates(folder), "one"
        self.store = Given(wanted.store) if "://" in wanted.store else STORES[wanted.store](folder)
        # Limits of memory are each sidecar's own, so there is one.
        count = 1 if wanted.store == "memory" else 3
        self.sidecars = [Sidecar(nth, folder, wanted.program, self.record) for nth in range(count)]
        # The first one lives from the beginning to the end, so that its memory can be judged.
        self.mortal = self.sidecars[1:] or self.sidecars
        self.busy, self.open, self.number, self.children = set(), {}, 0, {}
        self.minutes, self.seed, self.no_faults = wanted.minutes, wanted.seed, wanted.no_faults
        self.leave = wanted.leave_out.split(",")

    # ---- what faults need ----

    def begin(self, name, on):
        self.number += 1
        self.open[self.number] = (now(), name, on)
        return self.number

    def ended(self, number):
        since, name, on = self.open.pop(number)
        self.record.write("fault", t=since, end=round(now(), 5), kind=name, on=on)

    def tell(self, child, **order):
        self.children[child].stdin.write((json.dumps(order) + "\n").encode())

    # ---- the run ----

    async def child(self, name, *words):
        self.children[name] = await asyncio.create_subprocess_exec(
            sys.executable, HERE / f"{name}.py", self.folder, *map(str, words), stdin=subprocess.PIPE
        )

    async def run(self):
        backend, vendor = free_port(), free_port()
        self.address = backend
        await self.child("backend", backend, vendor, self.seed)
        await self.store.start()
        for sidecar in self.sidecars:
            await sidecar.wire(backend, vendor, self.store)
            self.certificates.give(sidecar, self.pair)
            sidecar.write(sidecar.text())
            sidecar.start()
        await self.ready()
        await self.child("clients", self.seed, json.dumps([s.ports() for s in self.sidecars]))
        watches = [self.record.keep(), self.measure(), self.look(), *(self.control(s) for s in self.sidecars)]
        watch = [asyncio.create_task(task) for task in watches]
        self.record.write("begun", minutes=self.minutes, seed=self.seed)
        await self.hurt(now() + self.minutes * 60)
        self.tell("clients", do="stop")
        self.record.write("healed")
        # At the limits' own pace.
        await self.drained()
        self.record.write("over")
        await self.close()
        for task in watch:
            task.cancel()
        self.record.file.close()

    async def ready(self):
        for sidecar in self.sidecars:
            client = Client(sidecar.admin)
            for _ in range(200):
                try:
                    if (await client.call("GET", "/readyz"))[0] == 200:
                        break
                except Cut:
                    pass
                await asyncio.sleep(0.1)
            else:
                raise OSError(f"sidecar {sidecar.nth} is not ready: see {sidecar.dir}/log")

    async def hurt(self, until):
        begun, running, decks = now(), set(), {True: [], False: []}
        while now() < until:
            await asyncio.sleep(min(self.random.expovariate(1 / EACH), max(0, until - now())))
            if self.no_faults:
                continue
            noisy = (now() - begun) % (NOISY + QUIET) < NOISY
            wants_store = noisy and self.random.random() < 0.55
            for _ in range(60):
                if not (cards := decks[wants_store]):
                    cards += [name for name in faults.deck(self, wants_store) if name not in self.leave]
                    if not cards:
                        break
                name = cards.pop()
                task = asyncio.create_task(faults.strike(self, name))
                await asyncio.sleep(0)
                if not task.done():
                    running.add(task)
                    task.add_done_callback(running.discard)
                    break
                if not isinstance(task.exception(), faults.Busy):
                    break
                cards.insert(0, name)
        if running:
            await asyncio.wait(running)

    async def look(self):
        while True:
            for sidecar in self.sidecars:
                sidecar.watch()
            await asyncio.sleep(0.25)

    async def control(self, sidecar):
        """Writes down how late a sidecar answers what asks nothing of it: as late may be all that it does."""
        client = Client(sidecar.admin)
        while True:
            await asyncio.sleep(0.1)
            sent = now()
            try:
                await client.call("GET", "/livez", timeout=5)
            except Cut:
                continue
            if (late := now() - sent) > 0.02:
                self.record.write("late", ms=round(late * 1000), who=f"sidecar {sidecar.nth}")

    async def measure(self):
        keys = -1
        for turn in range(1 << 30):
            if turn % 3 == 0 and "store" not in self.busy:
                keys = await self.store.keys()
            for sidecar in self.sidecars:
                if sizes := sidecar.sizes():
                    self.record.write("size", s=sidecar.nth, pid=sidecar.child.pid, kib=sizes[0], fds=sizes[1], keys=keys)
            await asyncio.sleep(2)

    async def drained(self):
        """Waits until the backend has nothing left, or nothing has ended for a minute: what is left then is stuck."""
        client, least, moved = Client(self.address), None, now()
        while now() < moved + 60:
            try:
                _, reply = await client.call("GET", "/soak/left")
                left = reply.json()["left"]
                if left == 0:
                    return
                if least is None or left < least:
                    least, moved = left, now()
            except Cut:
                pass
            await asyncio.sleep(0.5)

    async def close(self):
        """Lets everything end that was started here."""
        for sidecar in self.sidecars:
            sidecar.signal(signal.SIGTERM)
        for sidecar in self.sidecars:
            self.record.write("exit", s=sidecar.nth, code=await sidecar.gone())
        for child in self.children.values():
            child.stdin.close()
            await child.wait()
        self.store.end()

    def abandon(self):
        """After an error of its own: ends what still runs."""
        for sidecar in self.sidecars:
            if sidecar.child and sidecar.child.poll() is None:
                sidecar.child.kill()
        for child in self.children.values():
            if child.returncode is None:
                child.kill()
        try:
            self.store.end()
        except (AttributeError, OSError):
            pass


def main():
    parse = argparse.ArgumentParser(prog="tests/soak.sh", description=__doc__)
    parse.add_argument("--minutes", type=float, default=1)
    parse.add_argument("--store", default="redis", help="redis, postgres, sqlite, memory: or a URL")
    parse.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parse.add_argument("--program", required=True, help="default: built by cargo")
    parse.add_argument("--records", help="a new folder for records; default: a temporary one")
    parse.add_argument("--leave-out", default="", help="kinds of faults, with commas between")
    parse.add_argument("--no-faults", action="store_true")
    wanted = parse.parse_args()
    wanted.store = wanted.store.rstrip(":")
    if "://" not in wanted.store and wanted.store not in STORES:
        parse.error(f"--store is one of {', '.join(STORES)}, or a URL")
    folder = wanted.records or tempfile.mkdtemp(prefix="soak-")
    os.makedirs(folder, exist_ok=True)
    os.chmod(folder, 0o755)
    print(f"soak: {wanted.minutes:g} minutes, store {wanted.store}, seed {wanted.seed}, records in {folder}", flush=True)
    judge.write_plan(folder, wanted.store)
    soak = Soak(folder, wanted)
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, lambda *_: sys.exit(1))
    try:
        asyncio.run(soak.run())
    except BaseException:
        soak.abandon()
        raise
    return judge.main(folder)


if __name__ == "__main__":
    sys.exit(main())
