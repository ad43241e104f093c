"""What a soak starts: stores, sidecars, and the relays between them. Each knows how to be hurt, and how to be well again."""

import asyncio
import os
import pwd
import resource
import shutil
import signal
import socket
import sqlite3
import subprocess
import time
from pathlib import Path
from urllib.parse import urlsplit

import plan
from web import Client, Cut, now

FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)


def free_port():
    """A port that nobody has; below the range from which the system gives its own."""
    for port in range(20000 + os.getpid() * 37 % 9000, 32000):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            if port not in free_port.given:
                free_port.given.add(port)
                return port
    raise OSError("no port is free")


free_port.given = set()


class Relay:
    """Passes bytes between a sidecar and what it talks to, until it is told to do that badly."""

    def __init__(self, target, answered=lambda seconds: None):
        self.target, self.port, self.mode, self.delay = target, free_port(), None, 0.0
        self.pairs, self.answered = set(), answered

    async def start(self):
        await asyncio.start_server(self.serve, "127.0.0.1", self.port, limit=1 << 18)

    async def serve(self, reader, writer):
        if self.mode == "cut":
            return writer.transport.abort()
        try:
            there, out = await asyncio.open_connection(*self.target)
        except OSError:
            return writer.transport.abort()
        pair = (writer, out)
        self.pairs.add(pair)
        # Since when there is a question without an answer.
        asked = []
        try:
            await asyncio.gather(
                self.pump(reader, out, lambda: asked.append(now())),
                self.pump(there, writer, lambda: asked and (self.answered(now() - asked[0]), asked.clear())),
            )
        except asyncio.CancelledError:
            pass
        self.pairs.discard(pair)
        for end in pair:
            end.transport.abort()

    async def pump(self, reader, writer, note):
        try:
            while data := await reader.read(1 << 16):
                note()
                if self.mode == "slow":
                    await asyncio.sleep(self.delay)
                while self.mode == "hung":
                    await asyncio.sleep(0.02)
                if self.mode == "torn" and len(data) > 8:
                    writer.write(data[: len(data) // 2])
                    break
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        writer.close()

    def set(self, mode, delay=0.0):
        self.mode, self.delay = mode, delay
        if mode == "cut":
            for pair in list(self.pairs):
                for end in pair:
                    end.transport.abort()


# ---- stores: each has a `url`, and says how many keys it has ----


class Memory:
    kinds, port = (), None

    def __init__(self, folder):
        pass

    def url(self, port):
        return "memory:"

    async def start(self):
        pass

    async def keys(self):
        return 0

    def end(self):
        pass


class Given(Memory):
    """A store that somebody else runs, by its URL: only the way to it is hurt."""

    def __init__(self, url):
        self.parts = urlsplit(url)
        self.host, self.port = self.parts.hostname, self.parts.port or (5432 if "postgres" in url else 6379)

    def url(self, port):
        login, at, _ = self.parts.netloc.rpartition("@")
        return self.parts._replace(netloc=f"{login}{at}127.0.0.1:{port}").geturl()

    async def keys(self):
        return -1


class Redis:
    host, kinds = "127.0.0.1", ("kill", "stop", "wipe", "readonly", "full", "drop", "forget_scripts")

    def __init__(self, folder):
        self.folder, self.port, self.child = folder, free_port(), None

    def url(self, port):
        return f"redis://127.0.0.1:{port}"

    async def start(self):
        self.child = subprocess.Popen(
            ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
             "--dir", self.folder, "--logfile", f"{self.folder}/redis.log"],
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        while await self.ask("PING") is None:
            await asyncio.sleep(0.05)

    async def ask(self, *words):
        """The first line of the answer, or `None`."""
        try:
            async with asyncio.timeout(2):
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                writer.write((" ".join(words) + "\r\n").encode())
                line = await reader.readline()
                writer.close()
                return line.decode().strip() or None
        except (OSError, TimeoutError):
            return None

    async def keys(self):
        return int((await self.ask("DBSIZE") or ":-1")[1:])

    async def kill(self, seconds):
        self.child.kill()
        self.child.wait()
        await asyncio.sleep(seconds)
        await self.start()

    async def stop(self, seconds):
        self.child.send_signal(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        self.child.send_signal(signal.SIGCONT)

    async def wipe(self, seconds):
        await self.ask("FLUSHALL")

    async def readonly(self, seconds):
        await self.ask("CONFIG", "SET", "min-replicas-to-write", "1")
        await asyncio.sleep(seconds)
        await self.ask("CONFIG", "SET", "min-replicas-to-write", "0")

    async def full(self, seconds):
        await self.ask("CONFIG", "SET", "maxmemory", "1")
        await asyncio.sleep(seconds)
        await self.ask("CONFIG", "SET", "maxmemory", "0")

    async def drop(self, seconds):
        await self.ask("CLIENT", "KILL", "TYPE", "normal")
        await self.ask("CLIENT", "KILL", "TYPE", "pubsub")

    async def forget_scripts(self, seconds):
        await self.ask("SCRIPT", "FLUSH")

    def end(self):
        self.child.kill()
        self.child.wait()


class Postgres:
    host, kinds = "127.0.0.1", ("kill", "stop", "wipe", "readonly", "drop", "locked")

    def __init__(self, folder):
        self.folder, self.port, self.child = f"{folder}/postgres", free_port(), None
        bins = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda bin: float(bin.parent.name))
        self.bin = bins[-1]
        self.user = pwd.getpwnam("postgres") if os.getuid() == 0 else pwd.getpwuid(os.getuid())
        # Its user must reach it, whoever made the folder above.
        os.makedirs(self.folder)
        os.chown(self.folder, self.user.pw_uid, self.user.pw_gid)

    def url(self, port):
        return f"postgres://postgres@127.0.0.1:{port}/postgres"

    def run(self, program, *words):
        who = {"user": self.user.pw_uid, "group": self.user.pw_gid} if os.getuid() == 0 else {}
        return subprocess.Popen(
            [self.bin / program, *words], cwd=self.folder, **who,
            stdout=subprocess.DEVNULL, stderr=open(f"{self.folder}/log", "a"),
        )  # fmt: skip

    async def start(self):
        if not os.path.exists(f"{self.folder}/data"):
            self.run("initdb", "-D", "data", "-U", "postgres", "-A", "trust", "--no-sync", "--locale=C").wait()
        while True:
            self.child = self.run(
                "postgres", "-D", "data", "-h", "127.0.0.1", "-p", str(self.port), "-k", self.folder,
                "-c", "fsync=off", "-c", "max_connections=50",
            )  # fmt: skip
            for _ in range(100):
                if await self.ask("select 1") is not None:
                    return
                if self.child.poll() is not None:
                    break  # A process of the one before is not gone yet.
                await asyncio.sleep(0.1)

    async def ask(self, text):
        """What it answers, or `None`."""
        process = await asyncio.create_subprocess_exec(
            "psql", "-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres", "-qAtX", "-c", text,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={**os.environ, "PGCONNECT_TIMEOUT": "2"},
        )  # fmt: skip
        out, _ = await process.communicate()
        return out.decode().strip() if process.returncode == 0 else None

    async def keys(self):
        if (await self.ask("analyze")) is None:
            return -1
        rows = await self.ask(
            "select coalesce(sum(greatest(reltuples, 0)), 0)::bigint from pg_class c join pg_namespace n"
            " on n.oid = relnamespace where relkind = 'r' and nspname not in ('pg_catalog', 'information_schema')"
        )
        return int(rows or -1)

    async def kill(self, seconds):
        self.child.kill()
        self.child.wait()
        await asyncio.sleep(seconds)
        await self.start()

    def pids(self):
        children = Path(f"/proc/{self.child.pid}/task/{self.child.pid}/children").read_text().split()
        return [self.child.pid, *map(int, children)]

    async def stop(self, seconds):
        pids = self.pids()
        for sign in (signal.SIGSTOP, signal.SIGCONT):
            for pid in pids:
                try:
                    os.kill(pid, sign)
                except ProcessLookupError:
                    pass
            if sign == signal.SIGSTOP:
                await asyncio.sleep(seconds)

    async def wipe(self, seconds):
        await self.ask(
            "do $$ declare s text; begin for s in select nspname from pg_namespace where nspname !~ '^pg_|^inf|^public'"
            " loop execute format('drop schema %I cascade', s); end loop;"
            " for s in select tablename from pg_tables where schemaname = 'public'"
            " loop execute format('drop table public.%I cascade', s); end loop; end $$"
        )

    async def readonly(self, seconds):
        await self.ask("alter database postgres set default_transaction_read_only = on")
        await self.drop(0)
        await asyncio.sleep(seconds)
        await self.ask("begin read write; alter database postgres reset default_transaction_read_only; commit")
        await self.drop(0)

    async def drop(self, seconds):
        await self.ask("select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid()")

    async def locked(self, seconds):
        await self.ask(
            "do $$ declare t regclass; begin for t in select c.oid from pg_class c join pg_namespace n on n.oid ="
            " relnamespace where relkind = 'r' and nspname not in ('pg_catalog', 'information_schema') order by 1"
            f" loop execute format('lock table %s', t); end loop; perform pg_sleep({seconds:.2f}); end $$"
        )

    def end(self):
        self.child.send_signal(signal.SIGINT)
        self.child.wait()


class Sqlite:
    def __init__(self, folder):
        self.folder, self.port = f"{folder}/sqlite", None
        os.makedirs(self.folder)
        small = ["mount", "-t", "tmpfs", "-o", "size=96m", "none", self.folder]
        self.is_small = os.getuid() == 0 and subprocess.run(small, stderr=subprocess.DEVNULL).returncode == 0
        self.kinds = ("wipe", "locked", *(["full"] if self.is_small else []))

    def url(self, port):
        return f"sqlite:{self.folder}/store"

    async def start(self):
        pass

    def ask(self, text, seconds=0.0):
        """Asks it in this thread; holds what it has locked for a while."""
        try:
            with sqlite3.connect(f"{self.folder}/store", timeout=2) as db:
                rows = db.execute(text).fetchall()
                time.sleep(seconds)
                db.rollback()
                return rows
        except sqlite3.Error:
            return []

    async def keys(self):
        tables = await asyncio.to_thread(self.ask, "select name from sqlite_master where type = 'table' and name <> 'news'")
        counts = [await asyncio.to_thread(self.ask, f'select count(*) from "{name}"') for (name,) in tables]
        return sum(rows[0][0] for rows in counts if rows) if tables else -1

    async def wipe(self, seconds):
        for end in ("", "-wal", "-shm"):
            Path(f"{self.folder}/store{end}").unlink(missing_ok=True)

    async def locked(self, seconds):
        await asyncio.to_thread(self.ask, "begin exclusive", seconds)

    async def full(self, seconds):
        with open(f"{self.folder}/filler", "wb", buffering=0) as filler:
            for size in (1 << 20, 4096):
                try:
                    while filler.write(bytes(size)):
                        pass
                except OSError:
                    pass
        await asyncio.sleep(seconds)
        os.unlink(f"{self.folder}/filler")

    def end(self):
        if self.is_small:
            subprocess.run(["umount", "-l", self.folder])


STORES = {"memory": Memory, "redis": Redis, "postgres": Postgres, "sqlite": Sqlite}


# ---- sidecars ----


class Sidecar:
    """One process after another, with the same ports and the same file."""

    def __init__(self, nth, folder, program, record):
        self.nth, self.dir, self.program, self.record = nth, f"{folder}/sidecar-{nth}", program, record
        os.makedirs(self.dir)
        self.file = Path(f"{self.dir}/throttle.toml")
        self.listen, self.admin, self.egress = free_port(), free_port(), free_port()
        self.tls = nth == 2
        self.relays, self.child, self.is_meant = {}, None, False

    async def wire(self, backend, vendor, store):
        targets = {"backend": backend, "vendor": vendor, **({"store": store.port} if store.port else {})}
        for name, port in targets.items():
            is_store = name == "store"
            relay = Relay((store.host, port), self.store_took) if is_store else Relay(("127.0.0.1", port))
            self.relays[name] = relay
            await relay.start()
        self.store = store.url(self.relays["store"].port if store.port else None)

    def store_took(self, seconds):
        """What the store granted is so late at the sidecar."""
        if seconds > 0.03:
            self.record.write("late", ms=round(seconds * 1000), who=f"store of {self.nth}")

    def ports(self):
        return {
            "nth": self.nth, "dir": self.dir, "listen": self.listen, "admin": self.admin, "egress": self.egress,
            "tls": self.tls, "to_backend": self.relays["backend"].port, "to_vendor": self.relays["vendor"].port,
        }  # fmt: skip

    def text(self, other=False):
        return plan.config(self.ports(), self.store, other)

    def write(self, text):
        """As an editor that knows how: at once."""
        new = self.file.with_suffix(".new")
        new.write_text(text)
        new.rename(self.file)

    def start(self, ahead=0):
        env = dict(os.environ)
        if ahead:
            env |= {"LD_PRELOAD": str(FAKETIME), "FAKETIME": f"{ahead:+}s", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
        log = open(f"{self.dir}/log", "a")
        words = [self.program, "run", "--config", self.file]
        self.child = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env)
        self.is_meant = False
        self.record.write("life", s=self.nth, pid=self.child.pid)

    def signal(self, sign):
        self.is_meant |= sign in (signal.SIGKILL, signal.SIGTERM)
        self.child.send_signal(sign)

    async def gone(self, seconds=20):
        """Waits for its end; one that does not end is killed, and that is written down."""
        until = now() + seconds
        while self.child.poll() is None:
            if now() > until:
                self.record.write("stuck", s=self.nth)
                self.child.kill()
            await asyncio.sleep(0.02)
        return self.child.returncode

    async def answers(self, seconds):
        """Waits until it answers, for so long."""
        client, until = Client(self.admin), now() + seconds
        while now() < until and self.child.poll() is None:
            try:
                return await client.call("GET", "/livez", timeout=1)
            except Cut:
                await asyncio.sleep(0.05)

    def watch(self):
        """Whether it ended though nobody told it to; then it is started again."""
        if self.child is None or self.child.poll() is None or self.is_meant:
            return
        self.record.write("crash", s=self.nth, code=self.child.returncode)
        self.start()

    def sizes(self):
        """Its memory in KiB and its descriptors, while it lives."""
        try:
            pages = int(Path(f"/proc/{self.child.pid}/statm").read_text().split()[1])
            return pages * resource.getpagesize() // 1024, len(os.listdir(f"/proc/{self.child.pid}/fd"))
        except (OSError, IndexError):
            return None

    async def few_descriptors(self, more, seconds):
        """For a while it may have only so many more than it has."""
        pid, before = self.child.pid, resource.prlimit(self.child.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (self.sizes()[1] + more, before[1]))
        await asyncio.sleep(seconds)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


class Certificates:
    """One CA, and pairs of certificate and key that it signed."""

    def __init__(self, folder):
        self.folder = folder
        self.openssl("req", "-x509", "-nodes", *self.new("ca"), "-days", "30", "-subj", "/CN=soak")
        with open(f"{folder}/names", "w") as file:
            file.write("subjectAltName=IP:127.0.0.1\n")
        for name in ("one", "two"):
            self.openssl("req", "-nodes", *self.new(name, ".csr"), "-subj", "/CN=localhost")
            self.openssl(
                "x509", "-req", "-in", f"{folder}/{name}.csr", "-CA", f"{folder}/ca.crt", "-CAkey", f"{folder}/ca.key",
                "-CAcreateserial", "-days", "30", "-extfile", f"{folder}/names", "-out", f"{folder}/{name}.crt",
            )  # fmt: skip

    def new(self, name, end=".crt"):
        key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-keyout", f"{self.folder}/{name}.key"]
        return [*key, "-out", f"{self.folder}/{name}{end}"]

    def openssl(self, *words):
        subprocess.run(["openssl", *words], check=True, capture_output=True)

    def give(self, sidecar, name, ends=("key", "crt")):
        for end in ends:
            shutil.copy(f"{self.folder}/{name}.{end}", f"{sidecar.dir}/new")
            os.rename(f"{sidecar.dir}/new", f"{sidecar.dir}/tls.{end}")
