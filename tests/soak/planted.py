"""Faults that are planted in the program, one at a time: the judge must find each. `planted.patch` has them all, and the
variable SOAK_PLANTED says which is there."""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
TOP = HERE.parent.parent
# By name: how a line of the judge's table begins that must be bad, whatever else is.
FAULTS = {
    "none": None,
    "an_end_frees_twice": "limit ",
    "windows_are_not_counted": "limit mail",
    "slots_of_dead_workers_stay": "longest standstill",
    "slots_are_not_put_back": "limit ",
    "an_ack_is_answered_early": "acknowledged before",
    "a_held_job_is_forgotten": "lost",
    "a_job_goes_out_twice": "doubled: one claim",
    "a_bound_is_ignored": "a queue's bound passed beyond",
    "calls_are_not_limited": "limit calls",
    "memory_leaks": "memory of one process",
    "descriptors_leak": "its descriptors",
}
# Faults of others that would hide it: a store that is emptied every 20 s has no slots of the dead.
LEFT_OUT = {"slots_of_dead_workers_stay": "store_wipe"}


def build():
    """The program with all of them, from a copy of the sources."""
    copy = TOP / "target" / "planted" / "source"
    shutil.rmtree(copy, ignore_errors=True)
    # What git knows, as it lies here, and as old as it is.
    files = subprocess.run(["git", "ls-files", "-z"], cwd=TOP, check=True, capture_output=True, text=True).stdout
    for file in filter(None, files.split("\0")):
        (copy / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(TOP / file, copy / file)
    subprocess.run(["patch", "-p1", "-s", "-i", HERE / "planted.patch"], cwd=copy, check=True)
    words = ["cargo", "build", "--release", "--locked", "--quiet", "--target-dir", copy.parent / "build"]
    subprocess.run(words, cwd=copy, check=True)
    return copy.parent / "build" / "release" / "ojs-throttle"


def run(name, program, wanted):
    folder = tempfile.mkdtemp(prefix=f"soak-{name}-")
    begun = time.monotonic()
    words = ["--program", program, "--records", folder, "--minutes", wanted.minutes, "--store", wanted.store]
    words += ["--seed", wanted.seed, "--leave-out", LEFT_OUT.get(name, "")]
    done = subprocess.run(
        [sys.executable, HERE / "soak.py", *map(str, words)],
        env={**os.environ, "SOAK_PLANTED": name}, capture_output=True, text=True,
    )  # fmt: skip
    bad = [line.strip().removeprefix("BAD ").strip() for line in done.stdout.splitlines() if line.startswith("  BAD")]
    begins = FAULTS[name]
    found = not bad and done.returncode == 0 if begins is None else any(line.startswith(begins) for line in bad)
    print(f"{name}: {'found' if found else 'NOT FOUND'} in {time.monotonic() - begun:.0f} s, records in {folder}", flush=True)
    for line in bad or done.stderr.splitlines()[-5:]:
        print(f"    {line}", flush=True)
    return found


def main():
    parse = argparse.ArgumentParser(prog="tests/soak.sh --planted")
    parse.add_argument("name", choices=["all", *FAULTS])
    parse.add_argument("--program", help="one that was built with the patch already")
    parse.add_argument("--minutes", type=float, default=3)
    parse.add_argument("--store", default="sqlite")
    parse.add_argument("--seed", type=int, default=1)
    wanted = parse.parse_args()
    program = wanted.program or build()
    names = list(FAULTS) if wanted.name == "all" else [wanted.name]
    missed = [name for name in names if not run(name, program, wanted)]
    print(f"{len(names) - len(missed)} of {len(names)} as they should be" + f"; not: {', '.join(missed)}" * bool(missed))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
