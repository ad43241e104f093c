"""Callers of the comparison, in one process: each makes one call after the other, and goes on until it was done.

Usage: caller.py JSON, with the addresses in `targets` (the first that lives is used), how many callers are `loud` and
`quiet`, when they `begin`, a `seed`, the `log` for what went wrong, and a `limiter` where that is a library.
"""
import asyncio
import json
import os
import random
import re
import signal
import sys
import time

ask = json.loads(sys.argv[1])
chance = random.Random(ask["seed"])
log = open(ask["log"], "a", buffering=1)
# Calls that are not done, by the moment at which they were wanted: whose they are.
pending = {}


def note(*what):
    log.write(json.dumps([time.monotonic_ns(), *what]) + "\n")


def request(want, tenant):
    wants = {"want": want, "tenant": tenant, "ms": chance.randint(50, 400)}
    chat = {"model": "m", "stream": chance.random() < 0.5, "messages": [{"role": "user", "content": json.dumps(wants)}]}
    body = json.dumps(chat).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: vendor\r\nAuthorization: Bearer sk-compare\r\n"
        f"Content-Type: application/json\r\nX-Tenant: {tenant}\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def post(target, data):
    """One try: the status, whether the vendor gave it, and for how long to wait if that is said."""
    reader, writer = await asyncio.open_connection("127.0.0.1", target)
    try:
        writer.write(data)
        reply = await reader.read(-1)
    finally:
        writer.close()
    head, _, body = reply.partition(b"\r\n\r\n")
    if not head:
        raise ConnectionResetError
    status = int(head.split(b" ", 2)[1])
    if status == 200 and b"END-OF-ANSWER" not in body:
        raise ConnectionResetError
    named = re.search(rb"(?i)\r\nretry-after: *([0-9.]+)", head)
    return status, b"\r\nx-vendor:" in head.lower(), float(named[1]) if named else None


def pause(tries, named):
    """As SDKs wait: what the answer names, else 0.5 s that doubles up to 8 s, less up to a quarter by chance."""
    if named is not None and 0 < named <= 60:
        return named
    return min(8, 0.5 * 2**tries) * (1 - 0.25 * chance.random())


async def done(tenant, limiter):
    """One call, tried until it is done."""
    want = time.monotonic_ns()
    data = request(want, tenant)
    pending[want] = tenant
    tries = at = 0
    while True:
        try:
            await limiter()
            target = ask["targets"][at % len(ask["targets"])]
            status, of_vendor, named = await post(target, data)
        except OSError:
            note("broken")
            at += 1
            await asyncio.sleep(0.05)
            continue
        if status == 200:
            del pending[want]
            return
        note("vendor" if of_vendor else "refused", status)
        await asyncio.sleep(pause(tries, named))
        tries += 1


async def loud(limiter):
    while True:
        await done("loud", limiter)


async def quiet(limiter):
    while True:
        await asyncio.sleep(0.5 + chance.random())
        await done("quiet", limiter)


async def limits():
    """What each call waits for before it goes out: of a proxy nothing, of a library its limiter."""
    if not ask["limiter"]:
        return lambda: asyncio.sleep(0)
    import redis.asyncio
    from pyrate_limiter import Limiter, Rate, RedisBucket

    client = redis.asyncio.Redis(port=ask["redis"])
    bucket = await RedisBucket.init([Rate(ask["rate"], 1000)], client, "compare")
    limiter = Limiter(bucket)
    return lambda: limiter.try_acquire_async("calls")


async def main():
    def stop():
        for want, tenant in list(pending.items()):
            note("pending", want, tenant)
        os._exit(0)

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
    limiter = await limits()
    await asyncio.sleep((ask["begin"] - time.monotonic_ns()) / 1e9)
    await asyncio.gather(*[loud(limiter) for _ in range(ask["loud"])], *[quiet(limiter) for _ in range(ask["quiet"])])


if __name__ == "__main__":
    asyncio.run(main())
