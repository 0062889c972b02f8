"""Which clocks, links and processes are not like the others, by what was measured. Pure.

A machine that does other work as well makes any figure worse at times, some tens of times even.
These rules are for what stands out far: what makes every step of a job slow, or its logs misleading.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from .._verdict import name_processes
from ._facts import Facts
from ._finding import Finding, grouped
from ._measure import Figures
from ._units import duration, rate

CLOCK = 0.5  # seconds that clocks may differ
_TRIP = 0.010  # seconds by which a round trip may be longer than the usual one, at least
_TRIP_TIMES = 5
_TRIP_ALL = 0.1  # seconds that none should take
_LINK = 0.02  # GB/s that every link should carry
_LINK_TIMES = 20  # how much slower one link may be than the best of its kind
_LINK_FAST = 0.2  # GB/s: nothing is said of a link that carries so much
_COPY_TIMES = 10


def findings(facts: Sequence[Facts], figures: Sequence[Figures]) -> list[Finding]:
    """Clocks, round trips, links and copies that stand out."""
    return [*_clocks(figures), *_trips(facts, figures), *_links(facts, figures), *_copies(figures)]


def _clocks(figures: Sequence[Figures]) -> list[Finding]:
    known = {of.process: of for of in figures if of.clock is not None}
    if len(known) < 2:
        return []
    usual = statistics.median(of.clock or 0.0 for of in known.values())
    off = {
        p: (of.clock or 0.0) - usual
        for p, of in known.items()
        if abs((of.clock or 0.0) - usual) > CLOCK + of.clock_error
    }
    if not off:
        return []
    shown = {p: f"{duration(abs(by))} {'ahead' if by > 0 else 'behind'}" for p, by in off.items()}
    return [
        Finding(
            "warning",
            tuple(off),
            f"clocks are off, by more than {CLOCK:g} s from most: {grouped(shown)}",
            "set them by NTP (chronyc tracking; timedatectl set-ntp true): logs cannot be put in"
            " order, and certificates and leases fail",
        )
    ]


def _trips(facts: Sequence[Facts], figures: Sequence[Figures]) -> list[Finding]:
    trips = {of.process: of.round_trip for of in figures if of.round_trip is not None}
    if len(trips) < 2:
        return []
    usual = statistics.median_low(trips.values())
    slow = {
        p: trip
        for p, trip in trips.items()
        if trip > _TRIP_ALL or (trip > _TRIP_TIMES * usual and trip > usual + _TRIP)
    }
    if not slow:
        return []
    names = {of.process: of.host.name for of in facts}
    listed = "; ".join(f"process {p} ({names[p]}): {duration(slow[p])}" for p in sorted(slow)[:5])
    more = f"; and {len(slow) - 5} more" * (len(slow) > 5)
    return [
        Finding(
            "warning",
            tuple(sorted(slow)),
            f"a round trip to the coordinator is slow: {listed}{more}; usual here:"
            f" {duration(usual)}",
            f"look at the network between there and {facts[0].coordinator or 'process 0'} (ping, ip"
            " -s link, ethtool, a proxy or tunnel between), and at the load of that host",
        )
    ]


def _links(facts: Sequence[Facts], figures: Sequence[Figures]) -> list[Finding]:
    hosts = {of.process: of.host for of in facts}
    rates: dict[tuple[int, int], float] = {}
    for of in figures:
        for other, value in of.links.items():
            pair = (min(of.process, int(other)), max(of.process, int(other)))
            rates[pair] = min(value, rates.get(pair, value))
    kinds: dict[bool, dict[tuple[int, int], float]] = {False: {}, True: {}}
    for pair, value in rates.items():
        kinds[hosts[pair[0]].machine != hosts[pair[1]].machine][pair] = value
    slow: dict[tuple[int, int], str] = {}
    for between, kind in kinds.items():
        best = max(kind.values(), default=0.0)
        for pair, value in kind.items():
            if value < _LINK or (value < _LINK_FAST and value < best / _LINK_TIMES):
                where = "between hosts" if between else "within a host"
                slow[pair] = f"processes {pair[0]} and {pair[1]} ({where}): {rate(value)}"
    if not slow:
        return []
    listed = "; ".join(list(slow.values())[:5]) + f"; and {len(slow) - 5} more" * (len(slow) > 5)
    others = f"; the best here: {rate(max(rates.values()))}" * (len(slow) < len(rates))
    blamed, explained = _culprits(slow, rates)
    why = f"; all links of {name_processes(blamed)} are slow" * explained
    return [
        Finding(
            "warning",
            blamed,
            f"slow links: {listed}{others}{why}",
            "look at the interface that is used (ip route get ADDRESS; NCCL_SOCKET_IFNAME), its"
            " speed and errors (ethtool, ip -s link), and at other traffic on it",
        )
    ]


def _culprits(
    slow: Iterable[tuple[int, int]], measured: Iterable[tuple[int, int]]
) -> tuple[tuple[int, ...], bool]:
    """The processes whose links are all slow, if that explains all slow ones; else both ends of each."""
    pairs = set(slow)
    ends = {process for pair in pairs for process in pair}
    fast = {process for pair in set(measured) - pairs for process in pair}
    culprits = ends - fast
    explained = len(culprits) < len(ends) and all(culprits & set(pair) for pair in pairs)
    return tuple(sorted(culprits if explained else ends)), explained


def _copies(figures: Sequence[Figures]) -> list[Finding]:
    found: list[Finding] = []
    for field, words in (("to_device", "from host to device"), ("from_device", "back to the host")):
        rates = {of.process: v for of in figures if (v := getattr(of, field)) is not None}
        if len(rates) < 3:
            continue
        usual = statistics.median(rates.values())
        slow = {p: rate(v) for p, v in rates.items() if v * _COPY_TIMES < usual and v < 1}
        if slow:
            found.append(
                Finding(
                    "warning",
                    tuple(slow),
                    f"copies {words} are slow: {grouped(slow)}; usual here: {rate(usual)}",
                    "see whether that host does other work, whether the process runs on the CPUs"
                    " near its device (numactl, --cpu-bind), and the device's PCIe link (nvidia-smi)",
                )
            )
    return found
