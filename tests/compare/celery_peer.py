"""A worker of Celery that makes calls, or with `loud` the program that adds tasks and waits until each is done."""
import asyncio
import concurrent.futures
import json
import os
import sys
import time
import urllib.error
import urllib.request

ask = json.loads(os.environ.get("COMPARE") or sys.argv[1])
os.environ["COMPARE"] = json.dumps(ask)

import redis  # noqa: E402
from celery import Celery  # noqa: E402

app = Celery("compare", broker=f"redis://127.0.0.1:{ask['redis']}/0")
app.conf.update(worker_prefetch_multiplier=1, task_acks_late=True, task_ignore_result=True)
store = redis.Redis(port=ask["redis"], db=1)


@app.task(bind=True, name="call", rate_limit=f"{ask['rate']}/s", max_retries=None)
def call(self, want, body):
    url = f"http://127.0.0.1:{ask['vendor']}/v1/chat/completions"
    try:
        urllib.request.urlopen(urllib.request.Request(url, body.encode(), {"Content-Type": "application/json"})).read()
    except urllib.error.HTTPError as error:
        with open(ask["log"], "a") as log:
            log.write(json.dumps([time.monotonic_ns(), "vendor", error.code]) + "\n")
        raise self.retry(countdown=float(error.headers.get("Retry-After", 1)))
    store.lpush(f"done:{want}", 1)
    store.expire(f"done:{want}", 60)


def callers():
    """The callers of caller.py. Each call is a task; after 10 s without an answer it is added once more."""
    import caller

    threads = concurrent.futures.ThreadPoolExecutor(ask["loud"] + ask["quiet"])

    def made(want, body):
        while True:
            call.delay(want, body)
            if store.blpop([f"done:{want}"], timeout=10):
                return
            caller.note("broken", "no answer in 10 s")

    async def done(tenant, _):
        want = time.monotonic_ns()
        body = caller.request(want, tenant).partition(b"\r\n\r\n")[2].decode()
        caller.pending[want] = tenant
        await asyncio.get_running_loop().run_in_executor(threads, made, want, body)
        del caller.pending[want]

    caller.done = done
    asyncio.run(caller.main())


if __name__ == "__main__":
    if ask.get("loud"):
        callers()
    else:
        app.worker_main(["worker", "-P", "threads", "-c", "22", "--without-gossip", "--without-mingle", "-l", "WARNING", "-n", f"w{os.getpid()}"])
