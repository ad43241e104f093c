"""What goes wrong. Each fault is a coroutine that hurts something, waits, and lets it be well again."""

import asyncio
import signal

from services import FAKETIME

KINDS = {}


class Busy(Exception):
    """What the fault needs is being hurt already: another one is chosen."""


def kind(*needs, store=False, fits=lambda soak: True):
    """Declares a fault. It has its targets for itself: names, or "sidecar" and "mortal" for one that is chosen."""

    def declare(function):
        KINDS[function.__name__] = (function, needs, store, fits)
        return function

    return declare


def deck(soak, store):
    """The names of all faults that fit this soak, in an order by its seed."""
    names = [name for name, (_, _, is_store, fits) in KINDS.items() if is_store == store and fits(soak)]
    soak.random.shuffle(names)
    return names


async def strike(soak, name):
    """Does one fault, and writes it down."""
    function, needs, _, _ = KINDS[name]
    mine = []
    for need in needs:
        choice = {
            "sidecar": soak.sidecars,
            "mortal": soak.mortal,
            "tls": [s for s in soak.sidecars if s.tls],
        }.get(need)
        if need == "all":
            mine += soak.sidecars
        elif choice is None:
            mine.append(need)
        elif free := [s for s in choice if s not in soak.busy and s not in mine]:
            mine.append(soak.random.choice(free))
        else:
            raise Busy
    if soak.busy.intersection(mine):
        raise Busy
    soak.busy.update(mine)
    number = soak.begin(name, [s.nth for s in mine if hasattr(s, "nth")])
    try:
        await function(soak, *[s for s in mine if hasattr(s, "nth")])
    finally:
        soak.busy.difference_update(mine)
        soak.ended(number)


def some(soak, least, most):
    return soak.random.uniform(least, most)


# ---- sidecars ----


async def again(soak, sidecar, ahead=0):
    code = await sidecar.gone()
    soak.record.write("exit", s=sidecar.nth, code=code)
    await asyncio.sleep(some(soak, 0.1, 1.5))
    sidecar.start(ahead)
    # It has read its file before the next fault may tear that.
    await sidecar.answers(10)


@kind("mortal")
async def kill(soak, sidecar):
    sidecar.signal(signal.SIGKILL)
    await again(soak, sidecar)


@kind("mortal", "mortal", fits=lambda soak: len(soak.mortal) > 1)
async def kill_two(soak, one, other):
    for sidecar in (one, other):
        sidecar.signal(signal.SIGKILL)
    for sidecar in (one, other):
        await again(soak, sidecar)


@kind("mortal")
async def term(soak, sidecar):
    sidecar.signal(signal.SIGTERM)
    await again(soak, sidecar)


@kind("sidecar")
async def stop_longer_than_a_lease(soak, sidecar):
    sidecar.signal(signal.SIGSTOP)
    await asyncio.sleep(some(soak, 6.5, 9))
    sidecar.signal(signal.SIGCONT)


@kind("sidecar")
async def stop_shortly(soak, sidecar):
    sidecar.signal(signal.SIGSTOP)
    await asyncio.sleep(some(soak, 0.3, 2.5))
    sidecar.signal(signal.SIGCONT)


def has_clocks(soak):
    # A file, as memory, goes by the clock of its host, and a host has one.
    return FAKETIME is not None and bool(soak.store.port)


@kind("mortal", fits=has_clocks)
async def clock_ahead(soak, sidecar):
    sidecar.signal(signal.SIGKILL)
    await again(soak, sidecar, ahead=+90)


@kind("mortal", fits=has_clocks)
async def clock_behind(soak, sidecar):
    sidecar.signal(signal.SIGTERM)
    await again(soak, sidecar, ahead=-90)


@kind("sidecar")
async def descriptors(soak, sidecar):
    await sidecar.few_descriptors(2, some(soak, 1, 3))


# ---- files ----


@kind("sidecar")
async def file_torn(soak, sidecar):
    text = sidecar.text()
    sidecar.file.write_text(text[: len(text) * 2 // 3])
    await asyncio.sleep(some(soak, 0.5, 2))
    sidecar.write(text)


@kind("sidecar")
async def file_wrong(soak, sidecar):
    sidecar.write(sidecar.text() + '\n[[policy]]\nname = "mail"\nconcurency = 3\n')
    await asyncio.sleep(some(soak, 0.5, 3))
    sidecar.write(sidecar.text())


@kind("sidecar")
async def file_gone(soak, sidecar):
    sidecar.file.unlink()
    await asyncio.sleep(some(soak, 0.2, 2))
    sidecar.write(sidecar.text())


@kind("all")
async def other_limits(soak, *sidecars):
    for other in (True, False):
        soak.record.write("limits", other=other)
        for sidecar in sidecars:
            sidecar.write(sidecar.text(other))
        if other:
            await asyncio.sleep(some(soak, 4, 8))


@kind("tls", fits=lambda soak: any(s.tls for s in soak.sidecars))
async def certificates_swapped(soak, sidecar):
    soak.pair = "two" if soak.pair == "one" else "one"
    soak.certificates.give(sidecar, soak.pair)
    await asyncio.sleep(1)


@kind("tls", fits=lambda soak: any(s.tls for s in soak.sidecars))
async def certificate_of_another_key(soak, sidecar):
    soak.certificates.give(sidecar, "two" if soak.pair == "one" else "one", ends=("crt",))
    await asyncio.sleep(some(soak, 1, 4))
    soak.certificates.give(sidecar, soak.pair)


# ---- the backend, and the way to it ----


def backend_fault(mode, name, least, most, part=1.0, who="backend"):
    async def fault(soak):
        seconds = some(soak, least, most)
        soak.tell("backend", who=who, mode=mode, part=part, **{"for": seconds})
        await asyncio.sleep(seconds)

    fault.__name__ = name
    kind(who)(fault)


backend_fault("down", "backend_killed", 0.3, 3)
backend_fault("500", "backend_500", 0.5, 3, part=0.6)
backend_fault("503", "backend_503", 0.5, 3, part=0.6)
backend_fault("slow", "backend_slow", 1, 4)
backend_fault("hung", "backend_hung", 1, 4, part=0.5)
backend_fault("reset", "backend_resets_what_it_did", 0.5, 2, part=0.4)
backend_fault("torn", "backend_tears_answers", 0.5, 2, part=0.4)
backend_fault("429", "vendor_429", 0.5, 2, who="vendor")
backend_fault("500", "vendor_500", 0.5, 3, part=0.6, who="vendor")
backend_fault("hung", "vendor_hung", 1, 5, part=0.5, who="vendor")
backend_fault("down", "vendor_down", 0.5, 3, who="vendor")
backend_fault("torn", "vendor_tears_answers", 0.5, 2, part=0.5, who="vendor")


async def way(soak, sidecar, to, mode, least, most):
    relay = sidecar.relays[to]
    relay.set(mode, delay=some(soak, 0.02, 0.3))
    await asyncio.sleep(some(soak, least, most))
    relay.set(None)


@kind("sidecar")
async def backend_cut_off(soak, sidecar):
    await way(soak, sidecar, "backend", "cut", 0.5, 4)


@kind("sidecar")
async def backend_far_away(soak, sidecar):
    await way(soak, sidecar, "backend", "slow", 1, 4)


# ---- workers and producers ----


@kind("workers")
async def workers_die(soak):
    soak.tell("clients", do="die")
    await asyncio.sleep(1)


@kind("workers")
async def workers_fall_silent(soak):
    soak.tell("clients", do="hang")
    await asyncio.sleep(1)


@kind("producers")
async def producers_storm(soak):
    seconds = some(soak, 1, 3)
    soak.tell("clients", do="burst", **{"for": seconds})
    await asyncio.sleep(seconds)


# ---- the store, and the way to it ----


def over_the_network(soak):
    return bool(soak.store.port)


def store_fault(what, least, most):
    async def fault(soak):
        await getattr(soak.store, what)(some(soak, least, most))

    fault.__name__ = f"store_{what}"
    kind("store", store=True, fits=lambda soak: what in soak.store.kinds)(fault)


store_fault("kill", 0.2, 3)
store_fault("stop", 0.5, 4)
store_fault("wipe", 0, 0)
store_fault("readonly", 0.5, 3)
store_fault("full", 0.5, 3)
store_fault("drop", 0, 0)
store_fault("locked", 0.5, 3)
store_fault("forget_scripts", 0, 0)


def store_way(name, mode, least, most):
    async def fault(soak, sidecar):
        await way(soak, sidecar, "store", mode, least, most)

    fault.__name__ = name
    kind("sidecar", store=True, fits=over_the_network)(fault)


store_way("store_cut_off", "cut", 0.5, 4)
store_way("store_far_away", "slow", 1, 4)
store_way("store_hung", "hung", 0.5, 3)
store_way("store_torn", "torn", 0.3, 1.5)


@kind("all", store=True, fits=over_the_network)
async def store_cut_off_for_all(soak, *sidecars):
    await asyncio.gather(*(way(soak, s, "store", "cut", 0.5, 3) for s in sidecars))
