"""How long a round of agreement takes with up to 4,096 processes: simulated, and real up to 32.

A round is simulated request by request, as in `hostmesh._rounds`: the meeting of calls without data;
the tree of posts, the root's verdict and its readers of the others. JAX's coordination service, which lives in process 0, serves one request at a
time. What a request costs its client, the service and the way between them is measured first, on a
local cluster of 4. The real rounds run on this machine alone, so that their simulation has all
processes and the service on its cores; the curve gives each process a machine of its own.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import heapq
import os
import statistics
import sys
import time
from collections.abc import Generator
from dataclasses import dataclass

from hostmesh import _rounds
from hostmesh._packing import INLINE, is_inline
from hostmesh._verdict import Call, Post, decide

CURVE = (4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
ROUNDS = 10
# Whether the processes meet at a barrier, or post.
KINDS = {"barrier": True, "decision": False}


@dataclass(frozen=True)
class Costs:
    """Seconds: of work for a request on its client and in the service, and of waiting between."""

    client: float
    service: float
    way: float
    post: float  # taking in one post of another process, and packing it again
    listed: float  # one more value in a listing, for the service
    byte: float  # of a value read, for the service


def requests(count: int) -> dict[str, float]:
    """In every process: what requests cost. Process 0 only serves, the others ask by turns."""
    import jax

    import hostmesh
    from hostmesh import _jax

    me, store = jax.process_index(), _jax.store()
    assert store is not None
    folder = f"costs/{me}/"
    found: dict[str, float] = {}
    for asking in range(1, jax.process_count()):
        hostmesh.barrier("begin")
        cpu, began = time.process_time(), time.perf_counter()
        if me == asking:
            for number in range(count):
                store.set_once(f"{folder}{number}", b"x" * 60)
                store.get(f"{folder}{number}", 5.0)
            found["took"] = (time.perf_counter() - began) / (2 * count)
        else:
            # Till the other is done, without a request or work of one's own.
            while store.get(f"costs/{asking}/{count - 1}", 30.0) is None:
                pass
        found[f"cpu {asking}"] = (time.process_time() - cpu) / (2 * count)
        hostmesh.barrier("end")
        if me == asking:
            took = {}
            for size in (1, 32):
                for number in range(size):
                    store.set_once(f"{folder}{size}/{number}", b"x" * 60)
                began = time.perf_counter()
                for _ in range(50):
                    store.list(f"{folder}{size}/")
                took[size] = (time.perf_counter() - began) / 50
            found["listed"] = max(0.0, (took[32] - took[1]) / 31)
            took = {}
            for size in (60, 2**20):
                store.set_once(f"{folder}bytes/{size}", b"x" * size)
                began = time.perf_counter()
                for _ in range(50):
                    store.get(f"{folder}bytes/{size}", 5.0)
                took[size] = (time.perf_counter() - began) / 50
            # Half of it is the client's.
            found["byte"] = max(0.0, (took[2**20] - took[60]) / 2**20 / 2)
            store.delete(folder)
    return found


def measured_costs() -> Costs:
    import hostmesh.testing

    every = hostmesh.testing.run(requests, 4, 1, (400,))
    askers = range(1, 4)
    client = statistics.median(every[p][f"cpu {p}"] for p in askers)
    service = statistics.median(every[0][f"cpu {p}"] for p in askers)
    took = statistics.median(every[p]["took"] for p in askers)
    listed = statistics.median(every[p]["listed"] for p in askers)
    byte = statistics.median(every[p]["byte"] for p in askers)
    return Costs(client, service, max(0.0, took - client - service), post_cost(), listed, byte)


def post_cost() -> float:
    """Seconds to take in one post and pack it again, by the code that does it."""
    call = Call("barrier 'x'", "train.py:1")
    messages = [Post({call: [rank]}).packed() for rank in range(1024)]
    began = time.perf_counter()
    together = Post()
    for message in messages:
        together.add(Post.unpacked(message))
    together.packed()
    decide(together, range(1024))
    return (time.perf_counter() - began) / 1024


class Machine:
    """Some cores that serve work in the order in which it comes."""

    def __init__(self, cores: int) -> None:
        self.free = [0.0] * cores
        self.busy = 0.0

    def end_of(self, now: float, seconds: float) -> float:
        end = max(now, heapq.heappop(self.free)) + seconds
        heapq.heappush(self.free, end)
        self.busy += seconds
        return end


# What a process does next: work on a machine, or pass time (`None`), or wait for a key.
Step = tuple[Machine | None, float] | str
Steps = Generator[Step, None, None]


class Simulation:
    """Some rounds of all processes, one after the other, on machines of their own or on one."""

    def __init__(
        self, count: int, costs: Costs, cores: int | None, data: int = 0, meets: bool = False
    ) -> None:
        self.count, self.costs, self.data, self.meets = count, costs, data, meets
        self.met = collections.Counter[str]()
        shared = Machine(cores) if cores else None
        self.machines = [shared or Machine(1) for _ in range(count)]
        self.server = shared or Machine(1)
        # The service itself is one queue, even on a machine of more cores.
        self.queue = Machine(1)
        self.keys: set[str] = set()
        self.waiting: dict[str, list[Steps]] = {}
        self.events: list[tuple[float, int, Steps]] = []
        self.now = 0.0
        self.order = 0

    def run(self, rounds: int) -> float:
        """Seconds for a round, in the middle of several."""
        self.ends = [0.0] * rounds
        for rank in range(self.count):
            self.schedule(0.0, self.process(rank, rounds))
        while self.events:
            self.now, _, steps = heapq.heappop(self.events)
            step = next(steps, None)
            if isinstance(step, str):
                if step in self.keys:
                    self.schedule(self.now, steps)
                else:
                    self.waiting.setdefault(step, []).append(steps)
            elif step is not None:
                machine, seconds = step
                end = machine.end_of(self.now, seconds) if machine else self.now + seconds
                self.schedule(end, steps)
        return self.ends[-1] / rounds

    def schedule(self, at: float, steps: Steps) -> None:
        self.order += 1
        heapq.heappush(self.events, (at, self.order, steps))

    def process(self, rank: int, rounds: int) -> Steps:
        for number in range(rounds):
            yield from self.round(rank, number)
            self.ends[number] = max(self.ends[number], self.now)

    def round(self, rank: int, number: int) -> Steps:
        """`_rounds.hold_round`, as its requests."""
        if self.meets:
            yield from self.request(rank, meet=f"{number}")
            return
        awaited = set(_rounds._children(rank, self.count))
        while awaited:
            first = min(awaited)
            yield from self.request(rank, get=f"{number}/{first}")
            arrived = {first}
            if len(awaited) > _rounds._FEW:
                yield from self.request(rank, listed=len(_rounds._children(rank, self.count)))
                arrived = {r for r in awaited if f"{number}/{r}" in self.keys}
            yield self.machines[rank], self.costs.post * sum(map(self.weight, arrived))
            awaited -= arrived
        if rank:
            size = self.data * self.below(rank)
            yield from self.request(rank, put=f"{number}/{rank}", size=size)
            yield from self.request(rank, get=f"{number}/verdict", size=self.data * self.count)
        else:
            yield from self.request(rank, put=f"{number}/verdict")
            if number % _rounds._BLOCK == 0:
                yield from self.request(rank)  # deletes the block before

    def below(self, rank: int) -> int:
        """How many processes a post of this one stands for: itself, and all below it in the tree."""
        size, level, width = 0, rank, 1
        while level < self.count:
            size += min(width, self.count - level)
            level, width = level * _rounds.FAN_IN + 1, width * _rounds.FAN_IN
        return size

    def weight(self, rank: int) -> float:
        """How much work a post is: those below add a number to a list, and not a message each."""
        return 1 + (self.below(rank) - 1) / 50

    def request(
        self,
        rank: int,
        get: str = "",
        put: str = "",
        meet: str = "",
        listed: int = 0,
        size: int = 0,
    ) -> Steps:
        mine, costs = self.machines[rank], self.costs
        yield mine, costs.client / 2
        yield None, costs.way / 2
        served = costs.service + costs.listed * listed + costs.byte * size
        if meet or (get and get not in self.keys):  # half for taking it, half for the answer
            yield from self.serve(served / 2)
            served /= 2
            self.met[meet] += 1
            if meet and self.met[meet] == self.count:
                self.set(meet)
            yield meet or get
        yield from self.serve(served)
        if put:
            self.set(put)
        yield None, costs.way / 2
        yield mine, costs.client / 2

    def set(self, key: str) -> None:
        self.keys.add(key)
        for steps in self.waiting.pop(key, []):
            self.schedule(self.now, steps)

    def serve(self, seconds: float) -> Steps:
        if self.server is self.machines[-1]:  # on the cores that all share
            yield self.server, seconds
        else:
            yield self.queue, seconds


def rounds(count: int) -> list[float]:
    """In every process: seconds of a barrier, and of a decision, which carries data: medians."""
    import hostmesh

    every: list[float] = []
    for call in (lambda: hostmesh.barrier("simulated"), lambda: hostmesh.any_process(False)):
        call()
        times: list[float] = []
        for _ in range(count):
            began = time.perf_counter()
            call()
            times.append(time.perf_counter() - began)
        every.append(statistics.median(times))
    return every


def main() -> None:
    import hostmesh.testing

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--real", type=int, nargs="*", default=[4, 8, 16, 32], help="process counts"
    )
    parser.add_argument("--way", type=float, help="milliseconds between machines, there and back")
    options = parser.parse_args()
    costs = measured_costs()
    cores = os.cpu_count() or 1
    print(
        f"a request: {costs.client * 1e6:.0f} us of its client, {costs.service * 1e6:.0f} us of the"
        f" service, {costs.way * 1e6:.0f} us on its way; {costs.listed * 1e6:.1f} us a value listed,"
        f" {costs.post * 1e6:.1f} us a post taken in, {costs.byte * 1e9:.2f} us a kB read"
    )
    print(f"real rounds, all processes on this machine's {cores} cores:")
    for count in options.real:
        every = hostmesh.testing.run(rounds, count, 1, (50,), timeout=120)
        for (name, meets), took in zip(KINDS.items(), zip(*every, strict=True), strict=True):
            simulated = Simulation(count, costs, cores, meets=meets).run(ROUNDS)
            print(
                f"  P = {count:4d}, {name}: {statistics.median(took) * 1e3:7.2f} ms real,"
                f" {simulated * 1e3:7.2f} ms simulated"
            )
    way = costs.way if options.way is None else options.way * 1e-3
    costs = dataclasses.replace(costs, way=way)
    print(
        "simulated rounds, each process on a machine of its own: of a barrier; of a decision, and how"
        " busy the service and the root are;\nof one without a tree, where the root reads all posts;"
        f" and with as much data as is allowed (FAN_IN = {_rounds.FAN_IN}):"
    )
    fan_in = _rounds.FAN_IN
    for count in CURVE:
        meeting = Simulation(count, costs, None, meets=True).run(ROUNDS)
        tree = Simulation(count, costs, None, data=1)
        took = tree.run(ROUNDS)
        service, root = (m.busy / (took * ROUNDS) for m in (tree.queue, tree.machines[0]))
        _rounds.FAN_IN = count
        star = Simulation(count, costs, None, data=1).run(ROUNDS)
        _rounds.FAN_IN = fan_in
        size = next(size for size in range(INLINE, 0, -1) if is_inline(size, count))
        data = Simulation(count, costs, None, size).run(3)
        print(
            f"  P = {count:4d}: {meeting * 1e3:7.2f} ms; {took * 1e3:7.2f} ms, service {service:4.0%}"
            f" busy, root {root:4.0%}; star {star * 1e3:7.2f} ms; with {size} bytes of each"
            f" {data * 1e3:.4g} ms"
        )
        sys.stdout.flush()
    what = "the service, which takes each post and answers each reader of the verdict one by one,"
    if root > service:
        what = "process 0, which takes in the posts,"
    print(f"At P = {CURVE[-1]} the bottleneck is {what} at {max(service, root):.0%} of its time.")
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {cores} cores")


if __name__ == "__main__":
    main()
