"""Jobs of Celery: `fill` adds them, `work` is one of three workers. Tenants have one queue, where a task of the shut one
is tried again later (`retry`), or a queue each, of which that one has no consumer."""
import os
import pathlib
import sys
import threading
import time

from celery import Celery
from celery.signals import worker_ready

app = Celery("compare", broker=f"redis://127.0.0.1:{os.environ['REDIS']}/0")
app.conf.update(task_acks_late=True, task_ignore_result=True, worker_prefetch_multiplier=1)
TENANTS = os.environ["TENANTS"].split(",")


def queue(tenant):
    return f"sync-{tenant}" if os.environ["QUEUES"] == "each" else "sync"


@app.task(bind=True, name="sync", max_retries=None)
def sync(self, tenant):
    with open(os.environ["STARTED"], "a") as started:
        started.write(f"{tenant} {time.monotonic_ns()}\n")
    if tenant == "shut":
        raise self.retry(countdown=3600)


@worker_ready.connect
def on_ready(sender, **_):
    """Takes up the queues once all workers are ready."""

    def take_up():
        while not os.path.exists(os.environ["GO"]):
            time.sleep(0.01)
        for name in dict.fromkeys(map(queue, TENANTS if queue("shut") == "sync" else TENANTS[1:])):
            app.control.add_consumer(name, destination=[sender.hostname])

    pathlib.Path(os.environ["READY"]).touch()
    threading.Thread(target=take_up, daemon=True).start()


if sys.argv[1] == "fill":
    for tenant in ["shut"] * int(os.environ["SHUT"]) + TENANTS[1:]:
        sync.apply_async([tenant], queue=queue(tenant))
else:
    name = f"w{os.getpid()}"
    app.worker_main(["worker", "-P", "threads", "-c", "10", "-Q", f"idle-{name}", "--without-gossip", "--without-mingle", "-l", "WARNING", "-n", name])
