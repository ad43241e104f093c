"""HTTP/1.1 over asyncio, no larger than the soak needs: a server that can fail in many ways, and a client.

Also what all of its processes share: records of JSON lines, and a watch on how late this process runs.
"""

import asyncio
import json
import random
import time
from dataclasses import dataclass

# All processes are on one host, so this clock is one for all of them.
now = time.monotonic


class Record:
    """A file of JSON lines. `e` says what a line is about, `t` when it was."""

    def __init__(self, path):
        self.file = open(path, "w", buffering=1 << 16)

    def write(self, e, t=None, **more):
        more = {"e": e, "t": round(now() if t is None else t, 5), **more}
        self.file.write(json.dumps(more, separators=(",", ":")) + "\n")

    async def keep(self):
        """Writes down how late this process is, because what it saw late it takes for late."""
        while True:
            before = now()
            await asyncio.sleep(0.05)
            late = now() - before - 0.05
            if late > 0.02:
                self.write("late", ms=round(late * 1000))
            self.file.flush()


class Cut(Exception):
    """The other side closed the connection, or what it sent is no HTTP."""


@dataclass
class Message:
    first: list
    headers: dict
    body: bytes

    def json(self):
        return json.loads(self.body)


async def read_message(reader, is_reply=False):
    """The next request or reply; `None` if the connection ended before it began."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as end:
        if end.partial or is_reply:
            raise Cut("the head is incomplete") from None
        return None
    except (OSError, asyncio.LimitOverrunError) as error:
        raise Cut(str(error)) from None
    lines = head.decode("latin-1").split("\r\n")
    headers = {}
    for line in lines[1:-2]:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    try:
        if "chunked" in headers.get("transfer-encoding", ""):
            body = await read_chunks(reader)
        elif "content-length" in headers:
            body = await reader.readexactly(int(headers["content-length"]))
        else:
            body = b""
    except (OSError, asyncio.IncompleteReadError, ValueError) as error:
        raise Cut(f"the body is incomplete: {error}") from None
    return Message(lines[0].split(" ", 2), headers, body)


async def read_chunks(reader):
    parts = []
    while True:
        size = int((await reader.readuntil(b"\r\n")).split(b";")[0], 16)
        if size == 0:
            while await reader.readuntil(b"\r\n") != b"\r\n":
                pass
            return b"".join(parts)
        parts.append(await reader.readexactly(size))
        await reader.readexactly(2)


def reply_bytes(status, body, headers=()):
    more = "".join(f"{name}: {value}\r\n" for name, value in headers)
    return f"HTTP/1.1 {status} S\r\nContent-Length: {len(body)}\r\n{more}\r\n".encode() + body


class Server:
    """Answers with `handle(message, writer)`, which gives status, body and headers.

    `mode(name, seconds, part)` makes a part of its requests fail in one way for a while.
    """

    def __init__(self, port, handle, seed):
        self.port, self.handle = port, handle
        self.random = random.Random(seed)
        self.modes, self.writers, self.server = {}, set(), None

    async def start(self):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", self.port, limit=1 << 20)

    async def mode(self, name, seconds, part=1.0):
        if name == "down":
            await self.go_down(seconds)
        else:
            self.modes[name] = (now() + seconds, part)

    async def go_down(self, seconds):
        """As a kill -9 of a process whose data are safe: nobody listens, and all connections are cut."""
        if self.server is None:
            return
        self.server.close()
        self.server = None
        for writer in list(self.writers):
            writer.transport.abort()
        await asyncio.sleep(seconds)
        await self.start()

    def struck(self):
        """The mode that strikes this request, if one does."""
        for name, (until, part) in list(self.modes.items()):
            if until < now():
                del self.modes[name]
            elif self.random.random() < part:
                return name
        return None

    async def serve(self, reader, writer):
        self.writers.add(writer)
        try:
            while (message := await read_message(reader)) is not None:
                if not await self.answer(message, writer):
                    break
        except (Cut, OSError):
            pass
        finally:
            self.writers.discard(writer)
            writer.transport.abort() if writer.is_closing() else writer.close()

    async def answer(self, message, writer):
        """Whether the connection goes on."""
        mode = self.struck()
        if mode == "hung":
            until = self.modes.get(mode, (now(), 0))[0]
            await asyncio.sleep(max(0, until - now()))
            return False
        if mode == "slow":
            await asyncio.sleep(self.random.uniform(0.05, 0.6))
        if mode in ("500", "503", "429"):
            headers = [("Retry-After", "1")] if mode != "500" else []
            body = b'{"error":{"code":"internal_error","message":"out of order","retryable":true}}'
            headers.append(("Content-Type", "application/json"))
            writer.write(reply_bytes(int(mode), body, headers))
            await writer.drain()
            return True
        given = await self.handle(message, writer)
        if given is None:
            return False
        data = reply_bytes(*given)
        if mode == "reset":
            writer.transport.abort()
            return False
        if mode == "torn":
            writer.write(data[: len(data) * 2 // 3])
            return False
        writer.write(data)
        await writer.drain()
        return not writer.is_closing()


class Client:
    """Connections to one address that are used again. `call` raises `Cut` where no whole reply came."""

    def __init__(self, port, tls=None):
        self.port, self.tls, self.idle, self.busy = port, tls, [], set()

    async def call(self, method, path, body=None, headers=(), timeout=30.0):
        data = b"" if body is None else json.dumps(body, separators=(",", ":")).encode()
        more = "".join(f"{name}: {value}\r\n" for name, value in headers)
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n{more}\r\n"
        )
        writer = None
        try:
            async with asyncio.timeout(timeout):
                reader, writer = await self.connection()
                self.busy.add(writer)
                writer.write(head.encode() + data)
                reply = await read_message(reader, is_reply=True)
            self.busy.discard(writer)
            if reply.headers.get("connection", "").lower() == "close":
                writer.close()
            else:
                self.idle.append((reader, writer, now()))
                if len(self.idle) > 2:
                    self.idle.pop(0)[1].close()
            return int(reply.first[1]), reply
        except (OSError, TimeoutError, Cut, asyncio.IncompleteReadError) as error:
            raise Cut(str(error)) from None
        finally:
            if writer in self.busy:
                self.busy.discard(writer)
                writer.transport.abort()

    async def connection(self):
        while self.idle:
            reader, writer, since = self.idle.pop()
            if now() - since < 20 and not reader.at_eof() and not writer.is_closing():
                return reader, writer
            writer.close()
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=self.tls, limit=1 << 20)

    def abort(self):
        """Closes all connections at once, as the end of a process does."""
        for writer in [*self.busy, *(writer for _, writer, _ in self.idle)]:
            writer.transport.abort()
        self.idle.clear()


async def orders(obey):
    """Calls `obey` with each JSON line that comes on standard input, until it ends."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), open(0, "rb", buffering=0))
    running = set()
    while line := await reader.readline():
        task = asyncio.create_task(obey(json.loads(line)))
        running.add(task)
        task.add_done_callback(running.discard)
