"""One picture of a run: jobs a second, starts of each queue, memory, and when what went wrong."""

from collections import Counter

WIDE, LEFT, HIGH = 1180, 150, 60
COLOURS = {"store": "#c0392b", "backend": "#d68910", "vendor": "#8e44ad", "other": "#2471a3"}


def draw(r, path):
    length = max(1.0, r.over - r.begun)
    step = max(1.0, length / 400)

    def x(t):
        return LEFT + (t - r.begun) / length * (WIDE - LEFT - 20)

    rows, shapes = [], []
    rows.append(("stored a second", rate([e["t"] for e in r.by["stored"]], r, step)))
    rows.append(("started a second", rate([e["t"] for e in r.got], r, step)))
    rows.append(("calls a second", rate([e["t"] for e in r.by["call"]], r, step)))
    rows.append(("refused (429)", rate([e["t"] for e in r.by["enq"] if e["st"] == 429], r, step)))
    for sidecar in sorted({e["s"] for e in r.by["size"]}):
        mine = [e for e in r.by["size"] if e["s"] == sidecar]
        rows.append((f"sidecar {sidecar}, MiB", [(e["t"], e["kib"] / 1024) for e in mine]))
        rows.append((f"sidecar {sidecar}, descriptors", [(e["t"], e["fds"]) for e in mine]))
    rows.append(("keys of the store", [(e["t"], max(0, e["keys"])) for e in r.by["size"]]))
    for n, (name, points) in enumerate(rows):
        top = 20 + n * (HIGH + 14)
        most = max((value for _, value in points), default=0) or 1
        line = " ".join(f"{x(t):.1f},{top + HIGH - value / most * HIGH:.1f}" for t, value in points)
        shapes.append(f'<text x="8" y="{top + 20}">{name}</text><text x="8" y="{top + 36}" fill="#777">most {most:.0f}</text>')
        shapes.append(f'<polyline points="{line}" fill="none" stroke="#333" stroke-width="0.8"/>')
    top = 20 + len(rows) * (HIGH + 14)
    kinds = sorted({f["kind"] for f in r.faults})
    for n, kind in enumerate(kinds):
        y = top + n * 11
        colour = next((c for name, c in COLOURS.items() if kind.startswith(name)), COLOURS["other"])
        shapes.append(f'<text x="8" y="{y + 8}" font-size="9">{kind}</text>')
        for f in r.faults:
            if f["kind"] == kind:
                wide = max(1.5, x(f["end"]) - x(f["t"]))
                shapes.append(f'<rect x="{x(f["t"]):.1f}" y="{y}" width="{wide:.1f}" height="8" fill="{colour}"/>')
    tall = top + len(kinds) * 11 + 24
    minutes = range(0, int(length / 60) + 1, max(1, int(length / 600)))
    ticks = "".join(f'<text x="{x(r.begun + m * 60):.0f}" y="{tall - 8}">{m} min</text>' for m in minutes)
    with open(path, "w") as file:
        file.write(
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {tall}" font-family="sans-serif" font-size="11">'
            f'<rect width="100%" height="100%" fill="white"/>{"".join(shapes)}{ticks}</svg>\n'
        )


def rate(times, r, step):
    counts = Counter(int((t - r.begun) / step) for t in times)
    return [(r.begun + n * step, counts[n] / step) for n in range(int((r.over - r.begun) / step) + 1)]
