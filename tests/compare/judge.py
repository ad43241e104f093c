"""What a run is judged by: the vendor's own record, what callers noted, and /proc."""
import json

SECOND = 1_000_000_000


LIMIT_HEAD = ["peer", "over", "fullest second", "429s of the vendor", "used", "refused"]
WAITS_HEAD = ["peer", "p50", "p99", "quiet p50", "longest", "CPU", "slots lost"]


def ms(seconds):
    return f"{seconds:.1f} s" if seconds >= 0.9995 else f"{round(seconds * 1000)} ms"


def table(head, rows):
    """A table of Markdown, whose columns are as wide as they must be."""
    lines = [head, *rows]
    widths = [max(len(line[n]) for line in lines) for n in range(len(head))]
    text = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths)) + " |" for line in lines]
    return "\n".join([text[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *text[1:]])


def at(values, part):
    """A quantile, by the nearest rank."""
    values = sorted(values)
    return values[min(len(values) - 1, int(part * len(values)))] if values else float("nan")


def windows(came, limit):
    """How many calls came when as many as are allowed had come in the second before, and the fullest second."""
    over = worst = first = 0
    for last, now in enumerate(came):
        while now - came[first] >= SECOND:
            first += 1
        over += last - first + 1 > limit
        worst = max(worst, last - first + 1)
    return over, worst


def waits(record, pending, tenant, begun, until):
    """From the moment at which a caller wanted its call until the vendor took it, or until the end of what is measured."""
    taken = {}
    for came, want, whose, status in record:
        if status == 200 and whose == tenant:
            taken.setdefault(want, came)
    found = [min(came, until) - want for want, came in taken.items() if begun <= want < until]
    found += [until - want for want, whose in pending if whose == tenant and begun <= want < until and want not in taken]
    return [each / SECOND for each in found]


def notes(files):
    lines = (line for file in files if file.exists() for line in file.read_text().splitlines())
    return [json.loads(line) for line in lines if line.endswith("]")]


def row(peer, run, limit):
    """The rows of a run in both tables. Of waits and use the first 2 s are left out."""
    begun, until = run["begun"] + 2 * SECOND, run["until"]
    record = sorted(run["record"])
    within = [each for each in record if run["begun"] <= each[0] < until]
    over, worst = windows([each[0] for each in within], limit)
    said = [each for each in notes(run["logs"]) if each[0] < until or each[1] == "pending"]
    pending = [(each[2], each[3]) for each in said if each[1] == "pending"]
    loud, quiet = (waits(record, pending, tenant, begun, until) for tenant in ("loud", "quiet"))
    done = sum(each[3] == 200 for each in within)
    steady = sum(each[3] == 200 for each in within if each[0] >= begun)
    refused = sum(each[1] == "refused" for each in said)
    by_vendor = sum(each[3] == 429 for each in within)
    used = f"{100 * steady / (limit * (until - begun) / SECOND):.0f} %"
    waited = [ms(at(loud, 0.5)), ms(at(loud, 0.99)), ms(at(quiet, 0.5)), ms(max(quiet, default=float("nan")))]
    cpu = f"{1000 * run['cpu'] / max(done, 1):.1f} ms" if peer[5] else "–"
    kept = [peer[1], f"{over:,}", str(worst), f"{by_vendor:,}", used, f"{refused:,}"]
    return kept, [peer[1], *waited, cpu, run["slots"]]
