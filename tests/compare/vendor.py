"""The vendor of the comparison: it allows LIMIT calls in any second, and notes each call that comes.

Usage: vendor.py PORT LIMIT. A call is a POST of an OpenAI chat; the last message has what the call wants, as JSON:
when its caller first wanted it (ns of the monotonic clock), the tenant, and how long its answer takes.
"""
import asyncio
import collections
import json
import sys
import time

PORT, LIMIT = int(sys.argv[1]), int(sys.argv[2])
PERIOD = 1_000_000_000
END = "END-OF-ANSWER"

record = []  # [came, wanted, tenant, status]
accepted = collections.deque()
state = {"at_once": 0, "peak": 0, "slow": False}


def admit(now):
    """Whether a call fits into the second that ends now. A refused one does not count."""
    while accepted and now - accepted[0] >= PERIOD:
        accepted.popleft()
    if len(accepted) >= LIMIT:
        return False
    accepted.append(now)
    return True


def plain(status, body, more=""):
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nX-Vendor: 1\r\n{more}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def answer(text):
    message = {"role": "assistant", "content": text}
    usage = {"prompt_tokens": 5, "completion_tokens": 5, "total_tokens": 10}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}


def piece(text, end=None):
    choice = {"index": 0, "delta": {"role": "assistant", "content": text} if text else {}, "finish_reason": end}
    event = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return chunk(f"data: {json.dumps(event)}\n\n".encode())


def chunk(data):
    return b"%x\r\n%s\r\n" % (len(data), data)


async def stream(writer, seconds):
    """An answer in five pieces, over the time that the call takes."""
    writer.write(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nX-Vendor: 1\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    for n in range(5):
        await asyncio.sleep(seconds / 5)
        writer.write(piece(END if n == 4 else "word "))
    writer.write(piece("", "stop") + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")


async def call(writer, body):
    now = time.monotonic_ns()
    chat = json.loads(body)
    wants = json.loads(chat["messages"][-1]["content"])
    status = 200 if admit(now) else 429
    record.append([now, wants["want"], wants["tenant"], status])
    if status == 429:
        error = {"error": {"message": "rate limit", "type": "requests", "code": "rate_limit_exceeded"}}
        writer.write(plain("429 Too Many Requests", error, "Retry-After: 1\r\n"))
        return
    state["at_once"] += 1
    state["peak"] = max(state["peak"], state["at_once"])
    try:
        seconds = 3.0 if state["slow"] else wants["ms"] / 1000
        if chat.get("stream"):
            await stream(writer, seconds)
        else:
            await asyncio.sleep(seconds)
            writer.write(plain("200 OK", answer(END)))
    finally:
        state["at_once"] -= 1


def control(path):
    """What the comparison asks of the vendor."""
    if path == "/slow":
        state["slow"] = True
    if path == "/record":
        return record
    peak, state["peak"] = state["peak"], state["at_once"]
    return peak


async def serve(reader, writer):
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *lines = head.split("\r\n")
            method, path, _ = first.split(" ")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            if method == "POST":
                await call(writer, body)
            else:
                writer.write(plain("200 OK", control(path)))
            await writer.drain()
            if "close" in headers.get("connection", "").lower():
                break
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", PORT, backlog=1024)
    await server.serve_forever()


asyncio.run(main())
