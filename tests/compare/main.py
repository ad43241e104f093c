"""The comparison: each peer before one vendor, and then jobs. See the chapter `compare` of the manual."""
import argparse
import datetime
import json
import os
import pathlib
import platform
import signal
import subprocess
import sys
import textwrap
import time
import traceback

import jobs
import judge
import kit
import peers

CHAPTER = kit.ROOT / "src/manual/compare.md"
LOUD, QUIET = [21, 20, 20], [1, 1, 1]


def spawn(rig, logs, begin):
    """Starts the callers, and the workers of those that have some."""
    children, count = rig.children, 0
    common = {"begin": begin, "limiter": None, "targets": [], "loud": 0, "quiet": 0}

    def start(name, loud, quiet, targets, made):
        nonlocal count
        command, more, env = made
        count += 1
        log = children.folder / f"notes-{count}"
        logs.append(log)
        ask = {**common, **more, "loud": loud, "quiet": quiet, "targets": targets, "seed": count, "log": str(log)}
        child = children.start(name, [*command, json.dumps(ask)], **env)
        rig.of_callers += [child] if loud else []
        return child

    if rig.workers:
        rig.three = [start(f"worker-{n}", 0, 0, [], rig.workers) for n in range(3)]
        rig.measured += rig.three
        start("callers", sum(LOUD), sum(QUIET), [], rig.workers)
        return
    made = rig.callers or ([sys.executable, kit.HERE / "caller.py"], {}, {})
    for n in range(3):
        # Each has the proxy beside it; if that is gone, it goes to the next one.
        targets = rig.targets[n:] + rig.targets[:n]
        child = start(f"callers-{n}", LOUD[n], QUIET[n], targets, made)
        if rig.callers or rig.targets[0] == rig.vendor:
            rig.three.append(child)
            rig.measured.append(child)


def kill(rig):
    """Kills the first of the three with -9; of an nginx with workers, one of those. Says what it had used."""
    victim = rig.three[0]
    if len(rig.three) == 1:
        workers = [pid for pid in kit.family(victim.pid) if pid != victim.pid]
        os.kill(workers[0], signal.SIGKILL)
        return 0.0
    used = kit.cpu([victim])
    rig.measured.remove(victim)
    os.killpg(victim.pid, signal.SIGKILL)
    victim.wait()
    return used


def slots(rig, killed):
    """How many of the slots nobody gets after the kill, and for how long. Calls take 3 s each now."""
    kit.get(rig.vendor, "/slow")
    time.sleep(4)
    missing = None
    while True:
        kit.get(rig.vendor, "/peak")
        time.sleep(3.5)
        lost = max(0, peers.AT_ONCE - kit.get(rig.vendor, "/peak"))
        after = round(time.monotonic() - killed)
        missing = lost if missing is None else missing
        if lost == 0:
            return f"{missing} for {after} s" if missing else f"0 after {after} s"
        if after > 90:
            return f"{missing} for > 90 s"


def run(peer, program, seconds, children):
    """One run of a peer, and its row."""
    vendor = kit.port()
    children.start("vendor", [sys.executable, kit.HERE / "vendor.py", vendor, peers.LIMIT])
    kit.reach(vendor)
    rig = peers.Rig(children, vendor, program)
    peer[2](rig)
    for at in {*rig.targets}:
        kit.reach(at)
    begun, logs = time.monotonic_ns() + 4_000_000_000, []
    spawn(rig, logs, begun)
    time.sleep((begun - time.monotonic_ns()) / 1e9)
    used = -kit.cpu(rig.measured)
    time.sleep(seconds / 2)
    used += kill(rig)
    killed = time.monotonic()
    time.sleep(seconds / 2)
    until = time.monotonic_ns()
    used += kit.cpu(rig.measured)
    lost = slots(rig, killed) if peer[4] else "has none"
    for child in rig.of_callers:
        child.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    record = kit.get(vendor, "/record")
    found = {"record": record, "begun": begun, "until": until, "logs": logs, "cpu": used, "slots": lost}
    return judge.row(peer, found, peers.LIMIT)


def machine():
    cpu = next((line.split(": ")[1] for line in open("/proc/cpuinfo") if line.startswith("model name")), "unknown")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**30
    return f"{cpu.strip()}, {os.cpu_count()} cores, {memory} GiB, Linux {platform.release().split('-')[0]}"


def versions(program, needed):
    """What ran, with versions."""
    ours = " ".join(subprocess.check_output([program, "--version"], text=True).split()[:2])
    ran = [kit.version(what) for what in dict.fromkeys(needed)]
    return ", ".join([ours, *ran, kit.version("redis"), f"Python {platform.python_version()}"])


def write(parts):
    """Puts what was measured between its marks in the chapter."""
    text = CHAPTER.read_text()
    for name, part in parts.items():
        begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        head, rest = text.split(begin)
        text = f"{head}{begin}\n\n{part}\n\n{end}{rest.split(end)[1]}"
    CHAPTER.write_text(text)


def main():
    parser = argparse.ArgumentParser(prog="tests/compare.sh")
    names = [peer[0] for peer in peers.PEERS] + [peer[0] for peer in jobs.PEERS]
    parser.add_argument("--program", default="target/release/ojs-throttle", help="the ojs-throttle that runs")
    parser.add_argument("--only", default="", help="of " + ",".join(names))
    parser.add_argument("--seconds", type=int, default=40, help="how long each is measured")
    parser.add_argument("--write", action="store_true", help="put the tables into src/manual/compare.md")
    asked = parser.parse_args()
    only = [name for name in asked.only.split(",") if name]
    if unknown := {*only} - {*names}:
        parser.error(f"--only: {', '.join(sorted(unknown))}: there are only {', '.join(names)}")
    program = pathlib.Path(asked.program).resolve()
    if not program.exists():
        parser.error(f"--program {asked.program}: no such file; cargo build --release makes it")
    kit.FOLDER.mkdir(parents=True, exist_ok=True)
    missing, needed, loads, kept, waited, started = {}, [], [], [], [], []

    def fetched(peer):
        for what in peer[3]:
            if what not in missing:
                missing[what] = kit.fetch(what)
        return not any(missing[what] for what in peer[3])

    for peer in [*peers.PEERS, *jobs.PEERS]:
        if (only and peer[0] not in only) or not fetched(peer):
            continue
        loads.append(os.getloadavg()[0])
        print(f"# {peer[0]}: load {loads[-1]:.1f}", flush=True)
        is_job = peer in jobs.PEERS
        try:
            with kit.Children() as children:
                rows = [[peer[1], *peer[2](program, children)]] if is_job else run(peer, program, asked.seconds, children)
        except Exception:
            traceback.print_exc()
            missing[peer[0]] = f"{peer[0]} failed"
            continue
        needed += peer[3]
        for row, to in zip(rows, [started] if is_job else [kept, waited]):
            print(*row, sep=" | ", flush=True)
            to.append(row)
    told = f"{datetime.date.today()}, {asked.seconds} s for each. {machine()}; load {min(loads):.1f} to {max(loads):.1f}."
    parts = {"run": textwrap.fill(f"{told} {versions(program, needed)}.", 100, break_on_hyphens=False)}
    gone = [why for why in missing.values() if why]
    if gone:
        parts["run"] += "\n\n" + textwrap.fill("Not compared: " + "; ".join(gone) + ".", 100)
    if kept:
        parts |= {"limit": judge.table(judge.LIMIT_HEAD, kept), "waits": judge.table(judge.WAITS_HEAD, waited)}
    if started:
        parts["jobs"] = judge.table(jobs.HEAD, started)
    print("", *parts.values(), sep="\n\n")
    if asked.write:
        write(parts)
    sys.exit(1 if gone else 0)


main()
