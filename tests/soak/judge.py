"""Reads records, and says whether a promise was broken. `python3 judge.py FOLDER` does it again.

It knows nothing of the program: only what producers, workers, the backend and the vendor wrote down, which faults there
were, and what the manual promises. Where the manual names an exception, its size is here (`ALLOWED`), by the number that
it has there.
"""

import bisect
import heapq
import json
import math
import statistics
import sys
from collections import Counter, defaultdict

import clients
import picture
import plan

# What the store forgets, and what keeps a sidecar from asking it. The manual counts both (37, 41).
FORGETS = {"store_wipe", "store_kill"}
UNREACHABLE = {
    "store_kill", "store_stop", "store_readonly", "store_full", "store_locked", "store_drop", "store_cut_off",
    "store_cut_off_for_all", "store_far_away", "store_hung", "store_torn",
}  # fmt: skip
ENDS = {"kill", "kill_two", "term", "clock_ahead", "clock_behind"}
STOPS = {"stop_longer_than_a_lease", "stop_shortly"}
# How long after a fault of the store it may still show: it is found again, and nothing starts for 2 s when it is empty.
HEALS = 5.0
# What lies between a grant and its receipt on a machine where nothing is late.
NEAR = 0.05
# Room, a worker that asks, and a job that waits: a dead sidecar's slots are free after 31 s (6), and then comes a look.
STILL = 36.0
# More than a bound that a fleet may store at the same moment: "at most 8 over 100, 7 over 300 and 11 over 1,000".
BOUND = 11
GROWTH = 1.05


def write_plan(folder, store):
    with open(f"{folder}/plan.json", "w") as file:
        names = ("VISIBILITY", "LEASE", "QUEUES", "CALLS", "OTHER")
        json.dump({"store": store, **{name: getattr(plan, name) for name in names}}, file, indent=1)


class Spans:
    """Times with something in them: whether it was so at a moment, or in an interval."""

    def __init__(self, spans):
        self.spans = sorted(spans)
        self.starts = [span[0] for span in self.spans]
        self.longest = max((end - start for start, end, *_ in self.spans), default=0)

    def within(self, start, end):
        first = bisect.bisect_left(self.starts, start - self.longest)
        last = bisect.bisect_right(self.starts, end)
        return [span for span in self.spans[first:last] if span[1] >= start]


class Records:
    def __init__(self, folder):
        with open(f"{folder}/plan.json") as file:
            self.plan = json.load(file)
        self.by = defaultdict(list)
        for name in ("soak", "backend", "clients"):
            with open(f"{folder}/{name}.jsonl") as file:
                for line in file:
                    entry = json.loads(line)
                    if entry["e"] == "late":
                        entry.setdefault("who", name)
                    self.by[entry["e"]].append(entry)
        self.begun = self.by["begun"][0]["t"]
        self.over = self.by["over"][0]["t"] if self.by["over"] else self.by["late"][-1]["t"]
        self.faults = self.by["fault"]
        late = ((e["t"] - e["ms"] / 1000 - 0.05, e["t"], e["ms"] / 1000, e["who"]) for e in self.by["late"])
        self.late = Spans(late)
        self.stops = Spans((f["t"], f["end"], s) for f in self.faults if f["kind"] in STOPS for s in f["on"])
        self.join()

    def of(self, kinds, after=0.0):
        return Spans((f["t"], f["end"] + after, f["kind"]) for f in self.faults if f["kind"] in kinds)

    def join(self):
        """Claims of the backend with their ends, and deliveries with their claims."""
        self.made = {e["job"]: e for e in self.by["made"]}
        self.claimed = {e["n"]: e["t"] for e in self.by["claim"]}
        self.end_of = {}
        for end in ("ack", "nack", "requeue", "discard", "lapse", "cancel"):
            for e in self.by[end]:
                self.end_of.setdefault(e["n"], (e["t"], end))
        first_settle = {}
        for e in self.by["settle"]:
            first_settle.setdefault(e["n"], e["t"])
        self.got = sorted(self.by["got"], key=lambda e: e["t"])
        has = {e["n"]: e["s"] for e in self.got}
        # By key and by the sidecar that delivered a job: when its worker settled it through another.
        self.elsewhere = defaultdict(list)
        for e in self.by["settle"]:
            if has.get(e["n"], e["s"]) != e["s"]:
                self.elsewhere[self.made[e["job"]]["k"], has[e["n"]]].append(e["t"])
        for e in self.got:
            over = self.end_of.get(e["n"], (self.over, "none"))[0]
            # The slot lasts until the end is known to the sidecar: later than the worker says so, or the backend.
            e["over"] = min(over, first_settle.get(e["n"], over))

    def slack(self, t, sidecar=None):
        """How much earlier than it was seen something may have been granted."""
        # Each passes things on by itself, so what they are late adds up.
        late = Counter()
        for _, _, seconds, who in self.late.within(t - 0.6, t + 0.1):
            if sidecar is None or who in ("soak", "clients", f"sidecar {sidecar}", f"store of {sidecar}"):
                late[who] = max(late[who], seconds)
        # It takes two rounds of its loop until a client has read what came.
        late = sum(late.values()) + late["clients"]
        stopped = [s for s in self.stops.within(t - 1.0 - late, t) if sidecar is None or s[2] == sidecar]
        return NEAR + late + sum(end - start for start, end, _ in stopped)


class Table:
    def __init__(self):
        self.lines, self.broken = [], []

    def line(self, what, value, is_good=True, why=""):
        self.lines.append((what, str(value), is_good, why))
        if not is_good:
            self.broken.append(what)

    def show(self):
        for what, value, is_good, why in self.lines:
            print(f"  {'    ' if is_good else 'BAD '}{what:<46} {value:>14}  {why}")


# ---- P5: nothing lost or doubled ----


def jobs(r, table):
    stored = {e["job"]: e["t"] for e in r.by["stored"]}
    ended = {e["job"] for end in ("ack", "discard", "cancel") for e in r.by[end]}
    last = {e["job"]: e for e in r.by["enq"]}
    told = Counter(e["st"] for e in last.values())
    table.line("jobs stored", len(stored))
    table.line("jobs completed", len({e["job"] for e in r.by["ack"]}))
    table.line("refused with 429", told[429])
    table.line("claims of the backend", len(r.claimed))

    lost = [job for job in stored if job not in ended]
    lost += [job for job, e in last.items() if e["st"] == 201 and job not in stored]
    table.line("lost", len(lost), not lost, some(lost))
    thrown = [e["job"] for e in (*r.by["discard"], *r.by["cancel"])]
    table.line("discarded, though nobody asked for it", len(thrown), not thrown, some(thrown))

    claims = Counter(e["n"] for e in r.got)
    twice = [n for n, times in claims.items() if times > 1]
    table.line("doubled: one claim, two deliveries", len(twice), not twice, some(twice))
    acked = {}
    for e in r.by["settled"]:
        if e["good"] and e["st"] == 200:
            acked.setdefault(e["job"], e["t"])
    done = {e["job"]: e["t"] for e in reversed(r.by["ack"])}
    early = [job for job, t in acked.items() if done.get(job, t + 1) > t]
    table.line("acknowledged before the backend did it", len(early), not early, some(early))
    again = [e["job"] for e in r.got if e["job"] in acked and r.claimed.get(e["n"], 0) > acked[e["job"]]]
    table.line("doubled: run again after its ACK", len(again), not again, some(again))
    # A claim that is over may be on its way; a process that stood still sends what it had begun to send.
    stale = [
        e["n"] for e in r.got
        if e["n"] in r.end_of and r.end_of[e["n"]][0] < e["t"] - r.slack(e["t"], e["s"]) - 0.2
    ]  # fmt: skip
    table.line("delivered when its claim was over", len(stale), not stale, some(stale))
    changed = [e["job"] for e in r.got if not e["whole"]]
    table.line("changed on the way", len(changed), not changed, some(changed))
    # A producer that was told 429, and was never in doubt, has stored nothing.
    doubt = {e["job"] for e in r.by["enq"] if e["st"] not in (201, 429, 503)}
    liars = [job for job, e in last.items() if e["st"] == 429 and job in stored and job not in doubt]
    table.line("429 for a job that was stored", len(liars), not liars, some(liars))
    return stored


def some(items):
    return ", ".join(str(item) for item in items[:3])


# ---- P1 to P3: limits ----


class Limit:
    """What one limit of one key saw: the worst of it, and what of that no exception covers."""

    def __init__(self, name, limit):
        self.name, self.limit = name, limit
        self.worst, self.covered, self.uncovered = 0.0, 0, []

    def saw(self, at, amount, limit, allowed):
        self.worst = max(self.worst, amount / limit)
        if amount > allowed:
            self.uncovered.append((at, amount, allowed))
        elif amount > limit:
            self.covered += 1


class Exceptions:
    """How much more than its limit a key may have had in an interval."""

    def __init__(self, r):
        self.r = r
        on = [e["t"] for e in r.by["limits"] if e["other"]]
        off = [e["t"] for e in r.by["limits"] if not e["other"]]
        # A file is read within some seconds, by one that stands still later.
        self.other = Spans((start, end + 12) for start, end in zip(on, [*off, r.over]))
        self.forgets = r.of(FORGETS, HEALS)
        self.unreachable = r.of(UNREACHABLE, HEALS)
        self.ends = r.of(ENDS, HEALS)
        self.deaf = Spans((f["t"], f["end"]) for f in r.faults if f["kind"].startswith("backend_"))
        by = defaultdict(list)
        for f in r.faults:
            for s in f["on"] if f["kind"] in ENDS else ():
                by[s].append((f["t"], f["end"]))
        self.ends_of = defaultdict(lambda: Spans([]), {s: Spans(spans) for s, spans in by.items()})
        # A process that is late for a second may take the store for lost, as the store's own timeout says.
        self.late = Spans(s for s in r.late.spans if s[2] > 0.8)
        # Of each sidecar, since when and until when it was without the store. It finds it again within a second, but not
        # while it stands.
        cut_off = {
            s: Spans((f["t"], f["end"] + 1) for f in r.faults if f["kind"] in UNREACHABLE and s in (f["on"] or [s]))
            for s in range(3)
        }
        self.alone = {
            s: merged(
                cut_off[s].spans
                + [(stop[0], stop[1] + 1) for stop in r.stops.spans if stop[2] == s and cut_off[s].within(stop[0], stop[0])]
                + [(span[0], span[1] + 1) for span in self.late.spans if span[3] in ("soak", f"sidecar {s}", f"store of {s}")]
            )
            for s in range(3)
        }

    def limit(self, queue, name, start, end):
        """The largest number that was in force."""
        own = (self.r.plan["QUEUES"].get(queue) or self.r.plan["CALLS"])[name]
        other = self.r.plan["OTHER"].get(queue, {}).get(name, 0)
        return max(own, other) if self.other.within(start, end) else own

    def is_away(self, q, start, end):
        """Whether a sidecar may have gone on without the store, with `share` (41)."""
        away = self.unreachable.within(start, end) or self.late.within(start - HEALS, end)
        return bool(away) and not q.get("closed")

    def times(self, q, period, t):
        """How many times its limit may have started in a period: once, and once more for each exception (37, 38, 41)."""
        lost = len(self.forgets.within(t - period, t))
        if self.r.plan["store"] == "memory":
            # A restart: windows start empty (the table of events).
            lost += len(self.ends.within(t - period, t))
        return 1 + lost + self.is_away(q, t - period, t)

    def is_forgotten(self, start, end, sidecar):
        """Whether nobody may know of a job that is out: the store was emptied, and its sidecar had ended, stood or was cut
        off (37)."""
        ended = [span[0] for span in self.ends_of[sidecar].within(start, end)]
        if self.r.plan["store"] == "memory":
            # What runs is read from the backend, if that answers (3, 4).
            return any(self.deaf.within(t, t + HEALS) for t in ended)
        wiped = self.forgets.within(start, end)
        stood = [stop for stop in self.r.stops.within(start, end) if stop[2] == sidecar]
        stood += [span for span in self.alone.get(sidecar, []) if span[1] >= start and span[0] <= end]
        stood_over = any(stop[0] <= wipe[1] and stop[1] >= wipe[0] for stop in stood for wipe in wiped)
        return stood_over or any(t <= wipe[1] for t in ended for wipe in wiped)

    def is_lapsed(self, q, claimed, end):
        """Whether others may see its slot as free: its claim's time ran out while its sidecar had lost the store (41)."""
        return end - claimed >= self.r.plan["VISIBILITY"] - NEAR and self.is_away(q, claimed, end)

    def is_long_alone(self, sidecar, at):
        """Whether the claims of the jobs that a sidecar had out when it lost the store are over (41): others see their slots
        as free, and it goes on with them."""
        lapsed = at - self.r.plan["VISIBILITY"] + NEAR
        return any(start <= lapsed and at <= end for start, end in self.alone.get(sidecar, []))

    def settled_elsewhere(self, key, sidecar, at):
        """How many slots a sidecar may go on with whose jobs siblings have settled (41). Their word is not heard by one that
        stands or is cut off; it finds them itself when their claims are over."""
        since = [start for start, end in self.alone.get(sidecar, []) if start <= at <= end]
        earliest = (since or [at])[0] - self.r.plan["VISIBILITY"] - 2.0
        return sum(earliest <= t <= at for t in self.r.elsewhere[key, sidecar]) if since else 0


def windows(r, x, limits):
    """P2 and P3: no interval has more starts than the limit, less what passes between a grant and its receipt."""
    for queue, q in r.plan["QUEUES"].items():
        if not ("rate" in q or "interval" in q):
            continue
        starts = [(e["t"], r.made[e["job"]]["cost"], e["s"]) for e in r.got if r.made[e["job"]]["q"] == queue]
        earliest = [t - r.slack(t, s) for t, _, s in starts]
        if "rate" in q:
            limit = Limit(f"{queue}: {q['rate']} in {q['period']:g} s", q["rate"])
            window(x, queue, q, q["period"], starts, earliest, limit)
        else:
            # So many as three seconds allow, and one more, less 5 ms.
            period = 3.0 - 0.005
            limit = Limit(f"{queue}: one each {q['interval'] * 1000:g} ms", 3.0 / q["interval"])
            window(x, queue, {**q, "rate": round(3.0 / q["interval"]), "period": 3.0}, period, starts, earliest, limit)
        limits.append(limit)


def window(x, queue, q, period, starts, earliest, limit):
    """The most that surely lies within one period: all starts that cannot be earlier than the last less it."""
    # One that came late may have been granted before those that came earlier.
    surely, total = [], 0
    for (t, cost, _), granted in zip(starts, earliest):
        total += cost
        heapq.heappush(surely, (min(granted, t), cost))
        while surely and surely[0][0] <= t - period:
            total -= heapq.heappop(surely)[1]
        most = x.limit(queue, "rate", t - period, t) if "interval" not in q else q["rate"]
        limit.saw(t, total, most, most * x.times(q, period, t))


def slots(r, x, limits):
    """P1: jobs of a key that are out, from their receipt until the worker or the backend ends them."""
    for queue, q in r.plan["QUEUES"].items():
        if "concurrency" not in q or q.get("shadow"):
            continue
        limit = Limit(f"{queue}: {q['concurrency']} at once", q["concurrency"])
        by_key = defaultdict(list)
        for e in r.got:
            made = r.made[e["job"]]
            if made["q"] == queue and e["over"] > e["t"]:
                by_key[made["k"]].append((e["t"], e["over"], e["s"], r.claimed.get(e["n"], e["t"])))
        for key, spans in by_key.items():
            sweep(x, queue, q, key, spans, limit)
        limits.append(limit)


def sweep(x, queue, q, key, spans, limit):
    out = []
    for start, end, sidecar, claimed in sorted(spans):
        out = [span for span in out if span[1] > start] + [(start, end, sidecar, claimed)]
        most = x.limit(queue, "concurrency", out[0][0], start)
        long = {by for _, _, by, _ in out if not q.get("closed") and x.is_long_alone(by, start)}
        unknown = sum(
            by in long or x.is_forgotten(began, start, by) or x.is_lapsed(q, claim, start) for began, _, by, claim in out
        )
        has = Counter(by for _, _, by, _ in out if by not in long)
        unknown += sum(min(n, x.settled_elsewhere(key, by, start)) for by, n in has.items() if len(out) > most)
        # Who had slots goes on with those; one that comes while others have lost the store starts as much again (41).
        comes = x.ends.within(out[0][0] - HEALS, start)
        # A vendor notices late that a call was cut off.
        may = bool(comes) or sidecar is None
        away = most * (may and x.is_away(q, out[0][0], start))
        limit.saw(start, len(out), most, most + away + unknown)


def calls(r, x, limits):
    """The vendor's own record of calls: how many at once, and how many in an interval."""
    c = r.plan["CALLS"]
    at_once, rate = Limit(f"calls: {c['concurrency']} at once", c["concurrency"]), Limit(f"calls: {c['rate']} a second", c["rate"])
    for account in c["accounts"]:
        seen = sorted((e["t"], e["end"]) for e in r.by["call"] if e["account"] == account)
        # A call has no claim that could run out.
        sweep(x, "vendor", c, account, [(t, end, None, math.inf) for t, end in seen], at_once)
        starts = [(t, 1, None) for t, _ in seen]
        earliest = [t - r.slack(t) for t, _ in seen]
        window(x, "vendor", c, c["period"], starts, earliest, rate)
    limits += [at_once, rate]


# ---- bounds, and standing still ----


def timeline(r, stored):
    """By queue, each change of how many jobs wait: (t, change, whether a producer made it, key)."""
    lines = defaultdict(list)
    for job, t in stored.items():
        lines[r.made[job]["q"]].append((t, 1, True, r.made[job]["k"]))
    # A job waits no more when a worker has it, and again when its claim ended otherwise than by an ACK.
    delivered = {}
    for e in r.got:
        delivered.setdefault(e["n"], e["t"])
    for end in ("nack", "requeue", "lapse"):
        for e in r.by[end]:
            if e["n"] in delivered:
                made = r.made[e["job"]]
                lines[made["q"]].append((e["t"], 1, False, made["k"]))
    # An ACK may be of an earlier claim than the one that it ends, which nobody got then.
    for end in ("ack", "discard", "cancel"):
        for e in r.by[end]:
            delivered.setdefault(e["n"], e["t"])
    for n, t in delivered.items():
        made = r.made[r.job_of[n]]
        # It cannot wait again before it was gone: what came late was gone at the end of its claim.
        lines[made["q"]].append((min(t, r.end_of.get(n, (t,))[0]), -1, False, made["k"]))
    return {queue: sorted(line) for queue, line in lines.items()}


def bounds(r, lines, table):
    silent = {f["kind"] for f in r.faults if f["kind"].startswith("backend_")}
    over, worst, covered, disturbed = [], 0, 0, r.of(UNREACHABLE | FORGETS | ENDS | STOPS | silent, HEALS)
    for queue, q in r.plan["QUEUES"].items():
        if "max_depth" not in q:
            continue
        depth, own = 0, []
        for t, change, by_producer, _ in lines.get(queue, ()):
            depth += change
            if change > 0 and not by_producer:
                own.append(t)
            if not by_producer or depth <= q["max_depth"]:
                continue
            # What the backend put back by itself is never refused, and known after a look.
            back = len(own) - bisect.bisect_left(own, t - 1.0 - r.slack(t))
            # Delivered, and not yet received.
            slack = r.slack(t)
            soon = sum(-c for s, c, *_ in between(lines[queue], t, t + slack) if c < 0)
            excess = depth - q["max_depth"] - back - soon
            worst = max(worst, excess)
            if excess > 0:
                covered += 1
            # Each sidecar counts for itself while the store is away or the backend says no number, and what a fallen one
            # held is missing (5, 4 of "How exact a queue's bound is").
            if excess > (q["max_depth"] if disturbed.within(t - HEALS, t) else BOUND):
                over.append(f"{queue} {excess} over {q['max_depth']}")
    table.line("a queue's bound passed by at most", worst, True, f"{covered} times, as the manual says")
    table.line("a queue's bound passed beyond an exception", len(over), not over, some(over))


def between(line, start, end):
    return line[bisect.bisect_left(line, (start,)) : bisect.bisect_right(line, (end,))]


def standstill(r, lines, table):
    """The longest time in which a key had room, a job waited, a worker asked, and nothing started."""
    asked = asking(r)
    # While these last nothing can start, or nobody can tell.
    away = [f for f in r.faults if f["kind"].startswith(("backend_", "store_"))]
    muted = merged([(f["t"], f["end"] + 2.5) for f in away] + [(s[0] - 0.2, s[1] + 0.3) for s in r.late.spans if s[2] > 0.3])
    longest = (0.0, "", 0.0)
    for queue, line in lines.items():
        q = r.plan["QUEUES"][queue]
        for key, events in by_key(r, queue, q, line).items():
            found = gaps(events, q, asked.get(queue, []), muted, r.over)
            longest = max(longest, (*found[:1], key, found[1]))
    length, key, at = longest
    table.line("longest standstill with room, s", f"{length:.1f}", length <= STILL, f"{key} at {at - r.begun:.0f} s; at most {STILL:g}")


def by_key(r, queue, q, line):
    """Events of each key: jobs that wait (w), jobs that are out (o)."""
    events = defaultdict(list)
    for t, change, _, key in line:
        events[key].append((t, "w", change))
    for e in r.got:
        made = r.made[e["job"]]
        if made["q"] == queue:
            events[made["k"]].append((e["t"], "o", 1))
            # The backend says when it was over: until then its slot is no room.
            events[made["k"]].append((max(e["t"], r.end_of.get(e["n"], (r.over,))[0]), "o", -1))
    return {key: sorted(list) for key, list in events.items()}


def gaps(events, q, asked, muted, over):
    """The longest time with room, and when it began."""
    slots = q.get("concurrency", 1 << 30) if not q.get("shadow") else 1 << 30
    pause = q.get("period", 0.0) if "rate" in q else q.get("interval", 0.0)
    waiting = out = 0
    since, longest = None, (0.0, 0.0)
    for t, what, change in [*events, (over, "w", 0)]:
        if since is not None and t > since:
            length = measured(since, t, asked, muted)
            longest = max(longest, (length, since))
        if what == "w":
            waiting += change
        else:
            out += change
        has_room = waiting > 0 and out < slots
        started = what == "o" and change > 0
        if not has_room:
            since = None
        elif started:
            since = t + pause
        elif since is None:
            since = t
    return longest


def measured(start, end, asked, muted):
    """How long of it a worker asked, and nothing was in the way."""
    if end - start < STILL / 4:
        return 0.0
    return sum(length((max(a, start), min(b, end)), muted) for a, b in overlaps(asked, start, end))


def overlaps(spans, start, end):
    first = max(0, bisect.bisect_left(spans, (start,)) - 1)
    return [s for s in spans[first : bisect.bisect_right(spans, (end,))] if s[1] > start]


def length(span, without):
    cut = sum(min(b, span[1]) - max(a, span[0]) for a, b in overlaps(without, *span))
    return max(0.0, span[1] - span[0] - cut)


def merged(spans):
    result = []
    for start, end in sorted(spans):
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((start, end))
    return result


def asking(r):
    """By queue, when a worker asked or had just asked."""
    spans = defaultdict(list)
    for e in r.by["fetch"]:
        if e["st"] == 200:
            nth = int(e["w"][1:].split(".")[0])
            for queue in clients.MENUS[nth % len(clients.MENUS)]:
                spans[queue].append((e["t"], e["end"] + 0.5))
    return {queue: merged(list) for queue, list in spans.items()}


# ---- what the processes weigh ----


def sizes(r, table):
    lived = defaultdict(list)
    for e in r.by["size"]:
        if e["t"] <= (r.by["healed"] or [{"t": r.over}])[0]["t"]:
            lived[e["pid"]].append(e)
    # The one that lived longest.
    longest = max(lived.values(), key=len, default=[])
    third = len(longest) // 3
    if third < 4:
        return table.line("memory", "too short to say")
    parts = [longest[:third], longest[third : 2 * third], longest[2 * third :]]
    for what, name in (("memory of one process, MiB", "kib"), ("its descriptors", "fds"), ("keys of the store", "keys")):
        medians = [statistics.median(e[name] for e in part) for part in parts]
        shown = [f"{m / 1024:.1f}" if name == "kib" else f"{m:.0f}" for m in medians]
        whole = longest[-1]["t"] - longest[0]["t"]
        # In its first minutes a process still learns what it needs. Connections and keys come and go, and those do so at once.
        before = medians[0 if name == "fds" else 1]
        most = before * (GROWTH if whole >= 900 else 1.25) + {"kib": 0, "fds": 60, "keys": 150}[name]
        if name == "kib" and whole < 900:
            # In a few minutes a leak may be no larger in the last third, when less is asked.
            most = min(most, medians[0] * 1.6)
        good = medians[2] <= most
        table.line(what, " ".join(shown), good, f"thirds of {whole / 60:.1f} minutes")
    fds = [e["fds"] for e in longest]
    table.line("its descriptors, least and most", f"{min(fds)} {max(fds)}")


def main(folder):
    r = Records(folder)
    r.job_of = {e["n"]: e["job"] for e in r.by["claim"]}
    table, limits = Table(), []
    kinds = Counter(f["kind"] for f in r.faults)
    table.line("minutes", f"{(r.over - r.begun) / 60:.1f}")
    table.line("faults", f"{sum(kinds.values())} of {len(kinds)} kinds")
    stored = jobs(r, table)
    served = {e["id"] for e in r.by["call"]}
    table.line("calls, and those that the vendor served", f"{len(r.by['called'])}, {len(served)}")
    lost_calls = [e["id"] for e in r.by["called"] if e["st"] == 200 and e["id"] not in served]
    table.line("200 for a call that was not served", len(lost_calls), not lost_calls, some(lost_calls))
    x = Exceptions(r)
    windows(r, x, limits)
    slots(r, x, limits)
    calls(r, x, limits)
    for limit in limits:
        bad = [f"{amount} where {allowed} at {t - r.begun:.1f} s" for t, amount, allowed in limit.uncovered]
        why = some(bad) or f"{limit.covered} over, within exceptions" * (limit.covered > 0)
        table.line(f"limit {limit.name}: most of it", f"{limit.worst:.2f}", not bad, why)
    lines = timeline(r, stored)
    bounds(r, lines, table)
    standstill(r, lines, table)
    ended = [f"sidecar {e['s']} with {e['code']}" for e in r.by["crash"]]
    table.line("ended by itself", len(ended), not ended, some(ended))
    stuck = r.by["stuck"]
    table.line("did not end when told to", len(stuck), not stuck)
    codes = Counter(e["code"] for e in r.by["exit"])
    table.line("exits by code", " ".join(f"{code}:{n}" for code, n in sorted(codes.items())), set(codes) <= {0, -9})
    sizes(r, table)
    broken = [e["what"] for e in r.by["broken"]]
    table.line("errors of the clients themselves", len(broken), not broken, some(broken))
    late = [s[2] for s in r.late.spans]
    table.line("this machine was late, times and most s", f"{len(late)} {max(late, default=0):.2f}")
    table.show()
    print("  faults: " + ", ".join(f"{kind} {n}" for kind, n in sorted(kinds.items())))
    picture.draw(r, f"{folder}/soak.svg")
    print(f"  picture: {folder}/soak.svg")
    print(f"  broken: {'; '.join(table.broken)}" if table.broken else "  no promise was broken")
    return 1 if table.broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
