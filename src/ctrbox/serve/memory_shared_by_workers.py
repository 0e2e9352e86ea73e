"""Shares figures and news between the processes of one server: memory that the supervisor and all workers map.

    of the server   draining · workers replaced · version to serve · versions of joined views · the supervisor's note
    of a worker     its process · serving · connections · when its event loop last ran · calls for a refresh of joined views ·
                    cells of its counts (metrics.py) · its note (figures_of_workers.py)

The supervisor makes the memory before it starts the workers, and they inherit it. The memory has no name, so no other process can
map it. All processes have the same layout, because they run the same program. A cell is an aligned float64 number that only one
process writes, so readers need no lock: they see the old number or the new one. The counts of a worker stay when it is killed,
and the worker that replaces it continues them. Therefore no counter of the server ever falls.
"""

from __future__ import annotations

import json
import mmap
import time
import zlib
from typing import Any

from ctrbox.serve.figures_of_workers import Figures, carried, together
from ctrbox.serve.metrics import BUCKETS, CELLS, Cells

NOTE_BYTES = 1 << 20  # of one note, twice; pages that nobody writes take no memory
DRAINING, REPLACED, VERSION, VIEWS, OF_SERVER = 0, 1, 2, 3, 8
PROCESS, SERVING, CONNECTIONS, HEARD, ASKED, OF_WORKER = 0, 1, 2, 3, 4, 8
TRIES = 100
SILENT_SECONDS = 10.0  # a worker that posts twice a second and was not heard of for so long does not serve


class Note:
    """A JSON value that one process writes and others read.

    It has two places, which are written in turn, so that a reader always finds a complete value. Layout: a float64 that says
    which of the two places is valid; then for each place 8 bytes length, 8 bytes CRC-32, and the text.
    """

    SIZE = 8 + 2 * (16 + NOTE_BYTES)

    def __init__(self, memory: memoryview) -> None:
        self._valid = memory[:8].cast("d")
        self._places = [memory[8 : 8 + 16 + NOTE_BYTES], memory[8 + 16 + NOTE_BYTES : self.SIZE]]

    def write(self, value: dict[str, Any]) -> None:
        """Replace the value. If a value is too large for a note, this is an error of the program, not of the data."""
        text = json.dumps(value).encode()
        if len(text) > NOTE_BYTES:
            raise ValueError(f"a note has {len(text):,} bytes; at most {NOTE_BYTES:,} are possible")
        other = 1 - int(self._valid[0])
        place = self._places[other]
        place[:8], place[8:16] = len(text).to_bytes(8, "little"), zlib.crc32(text).to_bytes(8, "little")
        place[16 : 16 + len(text)] = text
        self._valid[0] = other

    def read(self) -> dict[str, Any]:
        """Return the value; it is empty if nothing was written yet."""
        for _ in range(TRIES):
            place = self._places[int(self._valid[0])]
            length, met = (int.from_bytes(place[k : k + 8], "little") for k in (0, 8))
            if not length:
                return {}
            text = bytes(place[16 : 16 + min(length, NOTE_BYTES)])
            if zlib.crc32(text) == met:  # else it was written meanwhile, twice
                found: dict[str, Any] = json.loads(text)
                return found
        return {}


class Place:
    """The part of the board that one worker writes."""

    SIZE = 8 * (OF_WORKER + CELLS) + Note.SIZE

    def __init__(self, memory: memoryview) -> None:
        self.facts = memory[: 8 * OF_WORKER].cast("d")
        self.cells: Cells = memory[8 * OF_WORKER : 8 * (OF_WORKER + CELLS)].cast("d")
        self.note = Note(memory[8 * (OF_WORKER + CELLS) : self.SIZE])

    @property
    def connections(self) -> Cells:
        """The cell with the number of the worker's connections."""
        return self.facts[CONNECTIONS : CONNECTIONS + 1]

    @property
    def heard(self) -> float:
        """The time at which the worker's event loop last ran, by the monotonic clock."""
        return self.facts[HEARD]

    @property
    def serving(self) -> bool:
        """Whether the worker accepts requests: it has said so, and its event loop still runs."""
        return bool(self.facts[SERVING]) and time.monotonic() - self.facts[HEARD] < SILENT_SECONDS

    def told(self) -> dict[str, Any]:
        """Return the process of the worker (0 if it has none now), its connections, its number of answers, and its versions of
        views.
        """
        process, connections = int(self.facts[PROCESS]), int(self.facts[CONNECTIONS])
        views = {name: numbers[-1] for name, numbers in self.note.read().get("views", {}).items()}
        requests = int(sum(self.cells[:BUCKETS]))
        return {"process": process, "connections": connections, "requests": requests, "views": views}


class Board:
    """The shared memory of ``workers`` workers. The supervisor makes it before it starts them."""

    def __init__(self, workers: int) -> None:
        size = 8 * OF_SERVER + Note.SIZE + workers * Place.SIZE
        memory = memoryview(mmap.mmap(-1, size))
        self._facts = memory[: 8 * OF_SERVER].cast("d")
        self.news = Note(memory[8 * OF_SERVER : 8 * OF_SERVER + Note.SIZE])  # of the supervisor
        first = 8 * OF_SERVER + Note.SIZE
        self.places = [Place(memory[first + k * Place.SIZE : first + (k + 1) * Place.SIZE]) for k in range(workers)]

    # ---- written by the supervisor

    def drain(self) -> None:
        """Note that the server is ending."""
        self._facts[DRAINING] = 1

    def publish(self, version: int, news: dict[str, Any]) -> None:
        """Write which version to serve, where its file is, and what happened to other versions."""
        self.news.write(news)
        self._facts[VERSION] = version
        read = news.get("views", {}).get("views", {})
        self._facts[VIEWS] = sum(one["number"] for one in read.values())

    def occupy(self, number: int, process: int) -> None:
        self.places[number].facts[PROCESS] = process

    def vacate(self, number: int) -> None:
        """Clear the place of a worker that ended, except its counts."""
        place = self.places[number]
        for cell in (PROCESS, SERVING, CONNECTIONS):
            place.facts[cell] = 0
        place.note.write(carried(place.note.read()))
        self._facts[REPLACED] += 1

    # ---- read by everybody

    @property
    def draining(self) -> bool:
        return bool(self._facts[DRAINING])

    @property
    def replaced(self) -> int:
        """Number of workers that have ended without being asked to."""
        return int(self._facts[REPLACED])

    @property
    def version(self) -> int:
        """The version to serve; 0 while the first one is served."""
        return int(self._facts[VERSION])

    @property
    def views(self) -> int:
        """The sum of the versions of the joined views that the supervisor has read; 0 before its first report."""
        return int(self._facts[VIEWS])

    @property
    def asked_for_views(self) -> int:
        """Number of calls for a refresh of the joined views that all workers have received together."""
        return int(sum(place.facts[ASKED] for place in self.places))

    @property
    def serving(self) -> int:
        """Number of workers that serve."""
        return sum(place.serving for place in self.places)


class Desk:
    """The part of the board that one worker uses."""

    def __init__(self, board: Board, number: int) -> None:
        self.board, self.number, self.place = board, number, board.places[number]
        self.before: Figures = self.place.note.read()  # what workers at this place have counted before

    def begin(self) -> None:
        """Note that this worker serves."""
        self.place.facts[HEARD] = time.monotonic()
        self.place.facts[SERVING] = 1

    def end(self) -> None:
        self.place.facts[SERVING] = 0

    def post(self, own: Figures) -> None:
        """Write the figures of this worker for the others, and note that it is alive."""
        self.place.facts[HEARD] = time.monotonic()
        self.place.note.write(together([self.before, own]))

    def all(self, own: Figures) -> Figures:
        """Return the figures of all workers together; those of this worker are up to date."""
        self.post(own)
        return together([place.note.read() for place in self.board.places])

    def ask_for_views(self) -> int:
        """Ask the supervisor to refresh the joined views, and return the number of calls so far."""
        self.place.facts[ASKED] += 1
        return self.board.asked_for_views

    def crowded(self, connections: int) -> bool:
        """Return whether another worker that serves has fewer connections than this one."""
        others = (p for p in self.board.places if p is not self.place and p.serving)
        return any(other.facts[CONNECTIONS] < connections for other in others)
