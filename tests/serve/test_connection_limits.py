"""`Door` against a slow twin that knows nothing but a list of connections and looks through all of it for every answer."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from ctrbox.serve.connection_limits import Client, Door

IDLE, READING, ANSWERING = "idle", "reading", "answering"


class Connection:
    """What the door asks of a connection: that it ends. ``since``: when its present state began."""

    def __init__(self, world: World, host: str, client: Client) -> None:
        self.world, self.host, self.client = world, host, client
        self.held, self.ended, self.reason = 0, False, ""
        self.state, self.since = "", 0

    def become(self, state: str) -> None:
        self.client.idle.pop(self, None)
        self.client.reading.pop(self, None)
        if state == IDLE:
            self.client.idle[self] = None
        elif state == READING:
            self.client.reading[self] = None
        self.state, self.since = state, self.world.now

    def leave(self) -> None:
        self.ended = True
        self.world.door.leave(self.client, self, self.held)
        self.world.all.remove(self)

    def dropped(self, reason: str) -> None:
        self.reason = reason
        self.world.dropped.append(self)
        self.leave()


class World:
    """A door, every connection that is open, and what the door may do next."""

    def __init__(self, connections: int, memory: int, share: float) -> None:
        self.door = Door(connections, memory, share, largest_request=50)
        self.door.shown = self.cell = [0]  # type: ignore[assignment]
        self.all: list[Connection] = []
        self.dropped: list[Connection] = []
        self.now = self.refused = self.ever_dropped = 0

    def count(self) -> Counter[str]:
        return Counter(one.host for one in self.all)

    def easiest(self, host: str) -> Connection | None:
        """The connection that a client loses first: the one that is idle for longest, else the one that reads for longest."""
        of_client = sorted((one for one in self.all if one.host == host), key=lambda one: one.since)
        return next((one for state in (IDLE, READING) for one in of_client if one.state == state), None)

    def enter(self, host: str) -> None:
        door, count = self.door, self.count()
        at_share, full = count[host] >= door.client_connections, len(self.all) >= door.most_connections
        losing = [host] if at_share else list(count) if full else []
        losing = [name for name in losing if self.easiest(name) is not None]
        expected = [self.easiest(name) for name in losing if count[name] == max(count[other] for other in losing)]
        client = door.enter(host)
        if not (at_share or full):
            assert (client is None, self.dropped) == (False, [])
        elif expected:
            assert client is not None
            (lost,) = self.dropped
            assert lost in expected
            assert "make room" in lost.reason
        else:
            assert (client, self.dropped) == (None, [])
            self.refused += 1
        if client is not None:
            self.all.append(made := Connection(self, host, client))
            made.become(READING)

    def hold(self, one: Connection, more: int) -> None:
        door = self.door
        of_client = sum(other.held for other in self.all if other.host == one.host) + more
        total = sum(other.held for other in self.all) + more
        one.held += more
        why = door.hold(one.client, more)
        if more > 0 and of_client > door.client_bytes:
            assert "your address" in why
            assert not self.dropped
            return one.leave()  # as the server does with a request that it refuses
        if more > 0:
            freed = sum(lost.held for lost in self.dropped)
            assert all("free memory" in lost.reason for lost in self.dropped)
            assert bool(self.dropped) <= (total > door.most_bytes)
            assert bool(why) == (total - freed > door.most_bytes)
            if len(self.dropped) == 1 and not why:
                lost = self.dropped[0]
                reading = {lost.host} | {o.host for o in self.all if o.state == READING}
                bytes_of = Counter({lost.host: lost.held})
                for other in self.all:
                    bytes_of[other.host] += other.held
                assert bytes_of[lost.host] == max(bytes_of[host] for host in reading)
            if why:  # nobody who can be dropped holds more than this client
                assert "already use all" in why
                left = Counter[str]()
                for other in self.all:
                    left[other.host] += other.held
                assert left[one.host] >= max((left[o.host] for o in self.all if o.state == READING), default=0)
                return one.leave()
        else:
            assert (why, self.dropped) == ("", [])
        return None

    def check(self) -> None:
        """Compare all that the door counts with the list."""
        door = self.door
        self.ever_dropped += len(self.dropped)
        self.dropped = []
        assert {host: client.connections for host, client in door.clients.items()} == dict(self.count())
        for host, client in door.clients.items():
            assert client.held == sum(one.held for one in self.all if one.host == host)
        assert door.connections == self.cell[0] == len(self.all) <= door.most_connections
        assert door.held == sum(one.held for one in self.all)
        assert (door.refused, door.dropped) == (self.refused, self.ever_dropped)


@pytest.mark.parametrize("share", [0.3, 0.6, 1.0])
def test_the_door_does_what_a_list_of_connections_says(share: float) -> None:
    for seed in range(8):
        rng = random.Random(seed)
        world = World(connections=rng.choice([1, 4, 9]), memory=rng.choice([200, 300]), share=share)
        for world.now in range(1, 100):
            what = rng.random()
            if what < 0.35 or not world.all:
                world.enter(f"10.0.0.{rng.randrange(4)}")
            elif what < 0.5:
                rng.choice(world.all).become(rng.choice([IDLE, READING, ANSWERING]))
            elif what < 0.95:
                world.hold(one := rng.choice(world.all), rng.choice([-one.held, 0, 20, 50, 100]))
            else:
                rng.choice(world.all).leave()
            world.check()
        for one in list(world.all):
            one.leave()
        assert not world.door.clients


@pytest.mark.parametrize(
    ("connections", "memory", "share", "expected"),
    [
        (100, 10_000, 0.5, (50, 10_000, 5_000)),
        (100, 300, 0.5, (50, 400, 200)),  # four requests of the largest size fit, and two of each client
        (100, 10_000, 0.01, (1, 10_000, 200)),
        (3, 10_000, 0.2, (1, 10_000, 2_000)),  # a client may have one connection whatever its share
    ],
)
def test_each_client_may_hold_its_share_and_at_least_one_request(
    connections: int, memory: int, share: float, expected: tuple[int, int, int]
) -> None:
    door = Door(connections, memory, share, largest_request=100)
    assert (door.client_connections, door.most_bytes, door.client_bytes) == expected
