"""Limits connections and bytes, in total and for each client address.

One address may have at most its share of each limit. If the limit for all clients together is reached, the address that has the
most makes room: first its connection that has been idle for longest, then the one whose request has been arriving for longest. A
client that uses little is therefore served whatever the others do. Only the event loop calls this code, so it needs no lock.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv6Address, ip_address
from typing import Protocol

from ctrbox.serve.metrics import Cells


class Held(Protocol):
    """A connection, as this module uses it."""

    def dropped(self, reason: str) -> None:
        """End the connection now. The door no longer counts it."""
        ...


class Client:
    """One client address. ``idle`` and ``reading`` are its connections, the oldest first; its others have a request in
    progress.
    """

    __slots__ = ("address", "connections", "held", "idle", "reading")

    def __init__(self, address: str) -> None:
        self.address = address
        self.connections = 0
        self.held = 0  # bytes
        self.idle: dict[Held, None] = {}
        self.reading: dict[Held, None] = {}

    def oldest(self) -> Held | None:
        """Return the connection that should be closed first; None if all have a request in progress."""
        for held in (self.idle, self.reading):
            for connection in held:
                return connection
        return None


class Door:
    """Counts connections and bytes. ``share`` is the part of each limit that one client address may have, above 0 and at
    most 1.
    """

    def __init__(self, most_connections: int, most_bytes: int, share: float, largest_request: int) -> None:
        self.share, self.largest_request = share, largest_request
        self.clients: dict[str, Client] = {}
        self.connections = 0
        self.shown: Cells | None = None  # a cell that other workers see, which has the number of connections
        self.held = 0
        self.dropped = 0  # connections that were closed to make room
        self.refused = 0  # connections that were closed at once, because there was no room
        self._by_count: dict[int, dict[Client, None]] = {}  # clients by their number of connections
        self.limit(most_connections, most_bytes)

    def limit(self, most_connections: int, most_bytes: int) -> None:
        self.most_connections = most_connections
        self.most_bytes = max(most_bytes, 4 * self.largest_request)
        self.client_connections = max(1, int(self.share * most_connections))
        # One request of the largest size must fit, with the space that a growing buffer has to spare.
        self.client_bytes = max(int(self.share * self.most_bytes), 2 * self.largest_request)

    # ---- connections

    def enter(self, host: str) -> Client | None:
        """Count a new connection of a client. Return None if there is no room and no connection can be closed to make room."""
        address = client_of(host)
        client = self.clients.get(address)
        if client is not None and client.connections >= self.client_connections:
            if not self.make_room(client):
                self.refused += 1
                return None
        elif self.connections >= self.most_connections and not self.make_room():
            self.refused += 1
            return None
        client = self.clients.get(address)
        if client is None:
            client = self.clients[address] = Client(address)
        self._count(client, 1)
        return client

    def leave(self, client: Client, connection: Held, held: int) -> None:
        """Stop counting a connection and the bytes of its buffers."""
        client.idle.pop(connection, None)
        client.reading.pop(connection, None)
        client.held -= held
        self.held -= held
        self._count(client, -1)
        if not client.connections:
            del self.clients[client.address]

    def _count(self, client: Client, step: int) -> None:
        before = self._by_count.get(client.connections)
        if before is not None:
            before.pop(client, None)
            if not before:
                del self._by_count[client.connections]
        client.connections += step
        self.connections += step
        if self.shown is not None:
            self.shown[0] = self.connections
        if client.connections:
            self._by_count.setdefault(client.connections, {})[client] = None

    def make_room(self, client: Client | None = None) -> bool:
        """Close a connection of this client, or else of the one that has the most. Return whether there was a connection to
        close.
        """
        clients = [client] if client is not None else self._largest_first()
        connection = next((found for c in clients if (found := c.oldest()) is not None), None)
        if connection is None:
            return False
        self.dropped += 1
        connection.dropped("the server closed this connection to make room for other connections; retry shortly")
        return True

    def _largest_first(self) -> Iterator[Client]:
        for count in sorted(self._by_count, reverse=True):
            yield from self._by_count[count]

    # ---- bytes

    def hold(self, client: Client, more: int) -> str:
        """Count ``more`` bytes for a client; ``more`` may be negative. Return why there is no room for them, or "" if there is
        room.
        """
        client.held += more
        self.held += more
        if more <= 0:
            return ""
        if client.held > self.client_bytes:
            return (
                f"requests from your address may use at most {self.client_bytes:,} bytes of this server's memory; retry when "
                "earlier requests are answered"
            )
        while self.held > self.most_bytes:
            reading = [c for c in self.clients.values() if c.reading]
            largest = max(reading, key=lambda c: c.held, default=client)
            if largest is client:
                return f"incoming requests already use all {self.most_bytes:,} bytes reserved for them; retry shortly"
            connection = next(iter(largest.reading))
            self.dropped += 1
            connection.dropped("the server dropped this request to free memory for other clients; retry shortly")
        return ""


def client_of(host: str) -> str:
    """Return what counts as one client: an IPv4 address, or a /64 network of IPv6, which usually belongs to one customer."""
    if ":" not in host:
        return host
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if not isinstance(address, IPv6Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(IPv6Address(int(address) >> 64 << 64)) + "/64"
