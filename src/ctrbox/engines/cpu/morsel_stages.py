"""Runs the stages of a frame that work on whole morsels before the last program.

Without filters and user operators there are no such stages. Otherwise, native programs compute what a filter or a user's
function needs, the filter selects rows, and the function runs in Python. Results of a stage that a later
one needs are kept as columns.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctrbox import _native
from ctrbox.columns.exact_casts import decimals_to_float64
from ctrbox.columns.kind import arrow_type, name_of
from ctrbox.engines.cpu.assemble_program import Assembled, Assembler
from ctrbox.engines.cpu.frames_and_arrow import column_of, frame_of
from ctrbox.engines.cpu.user_row_function import call_scalar, compiled, valid_rows, without_nulls
from ctrbox.errors import DataError
from ctrbox.plan.language.node import Node
from ctrbox.plan.language.user_operators import UserOperator

EXACT = 1 << 53  # whole numbers up to this one are floats without rounding

Rows = tuple[Any, np.ndarray | None, int]  # frame, index, base: see native/core/program/program.h


@dataclass
class Prepared:
    """Rows that are ready for the last program: positions 0 … rows, and the rows of each source."""

    rows: int
    sources: list[Rows]
    selected: np.ndarray | None  # position → row of the morsel; None: all of them
    origin: Any = None  # where the rows came from, for messages
    start: int = 0  # of the morsel in its source
    first: int = 0  # row of the morsel at which these rows begin

    def piece(self, begin: int, rows: int) -> tuple[int, list[Rows]]:
        return rows, [(frame, index, base + begin) for frame, index, base in self.sources]

    def row(self, position: int) -> int:
        """Return the row of the morsel at a position."""
        return self.first + (position if self.selected is None else int(self.selected[position]))

    def numbers(self, begin: int, rows: int) -> np.ndarray:
        """Return the rows of the morsel at ``rows`` positions, the first of which is ``begin``."""
        if self.selected is None:
            return np.arange(self.first + begin, self.first + begin + rows)
        return self.first + np.asarray(self.selected[begin : begin + rows], np.int64)


@dataclass
class Native:
    program: Assembled
    kept: list[Node]
    masked: bool


@dataclass
class User:
    nodes: list[Node]
    inputs: dict[int, int]  # node id → column of the frame kept just before


class Stages:
    """The stages of one frame, which are built once; many threads may call ``prepare``."""

    def __init__(self, assembler: Assembler, filters: list[Node], asked: list[Node], sources: int) -> None:
        self.assembler = assembler
        self.sources = sources
        self.steps: list[Native | User] = []
        self.python = threading.RLock()  # user functions run one at a time, in no promised order
        self._user_rounds(filters)
        if filters:
            self._filter(filters, asked)
        self._user_rounds(asked)

    def _users(self, nodes: list[Node]) -> list[Node]:
        """Return the user operators that must run between programs, each after the operators that it reads."""
        waiting = [n for n in self.assembler.needed(nodes) if n.op == "user" and n.id not in self.assembler.given]
        return [n for n in waiting if not self.assembler.owns(n)]

    def _user_rounds(self, nodes: list[Node]) -> None:
        waiting = self._users(nodes)
        for node in waiting:
            if node.param("function").scalar:
                compiled(node.param("function"))  # refused before the first row
        while waiting:
            ready = [n for n in waiting if not self._users(list(n.args))]
            inputs = list({a.id: a for n in ready for a in n.args}.values())
            program = self._assemble(inputs, inputs)
            self.steps.append(Native(program, inputs, False))
            self.sources += 1
            self.steps.append(User(ready, {a.id: k for k, a in enumerate(inputs)}))
            for node in ready:
                self.assembler.given[node.id] = (self.sources, 0)
                self.sources += 1
            waiting = [n for n in waiting if n not in ready]

    def _filter(self, filters: list[Node], asked: list[Node]) -> None:
        computed = {n.id: n for n in self.assembler.needed(filters)}
        later = self.assembler.needed(asked)
        # A document scanned for the filter is scanned for the features too, not twice. Strict paths wait for the
        # filter unless it is strict itself: a row that it drops is not an error of a feature.
        scanned = {(n.args[0].id, n.param("strict")) for n in computed.values() if n.op == "json"}
        extra = [
            n for n in later if n.op == "json" and n.id not in computed and (n.args[0].id, n.param("strict")) in scanned
        ]
        # The row of a view on disk cannot be kept: what later stages need of it is read now, with the row itself.
        extra += [n for n in later if n.op == "gather" and n.id not in computed and self._on_disk(n.args[0], computed)]
        computed |= {n.id: n for n in extra}
        asked_ids = {n.id for n in asked}
        used = {a.id for n in later if n.id not in computed for a in self.assembler.inputs(n)}
        kept = [
            n
            for n in later
            if n.id in computed
            and (n.id in used or n.id in asked_ids)
            and n.op not in ("column", "literal")
            and n.id not in self.assembler.given
            and not self._on_disk(n, computed)
        ]
        program = self._assemble([*filters, *extra], kept, mask=filters)
        self.steps.append(Native(program, kept, True))
        for k, node in enumerate(kept):
            self.assembler.given[node.id] = (self.sources, k)
        self.sources += 1

    def _on_disk(self, node: Node, among: dict[int, Node]) -> bool:
        """Return whether a node looks up rows of a joined view on disk and is among the nodes of ``among``."""
        return node.op == "row" and node.id in among and self.assembler.dimensions[node.param("frame")].on_disk

    def _assemble(self, wanted: list[Node], kept: list[Node], mask: list[Node] | None = None) -> Assembled:
        emits = [(k, n) for k, n in enumerate(kept)]
        if mask:
            both = mask[0]
            for other in mask[1:]:
                both = self.conjunction(both, other)
            wanted = [*wanted, both]
            emits = [(-1, both), *emits]
        return self.assembler.assemble(wanted, emits, self.sources)

    def conjunction(self, a: Node, b: Node) -> Node:
        return Node(-1 - a.id * 1_000_003 - b.id, "and", (a, b), (), "b", a.nullable or b.nullable, a.frame)

    @property
    def programs(self) -> list[Assembled]:
        return [step.program for step in self.steps if isinstance(step, Native)]

    def prepare(self, rows: int, sources: list[Rows], origin: Any = None, start: int = 0, first: int = 0) -> Prepared:
        """Make rows ready for the last program. They begin at row ``first`` of a morsel that lies at ``start`` of its source and
        came from ``origin``."""
        selected: np.ndarray | None = None
        kept_frame: Any = None
        for step in self.steps:
            if isinstance(step, Native):
                keep = [frame for frame, _, _ in sources if frame is not None]
                kinds, nullable = [n.kind for n in step.kept], [n.nullable for n in step.kept]
                try:
                    kept_frame, picked = step.program.native.run_frame([(rows, sources)], kinds, nullable, keep)
                except _native.RowError as error:
                    raise located(error, [(Prepared(rows, sources, selected, origin, start, first), 0, rows)]) from None
                if step.masked:
                    sources = [narrowed(source, picked) for source in sources]
                    selected = picked if selected is None else selected[picked]
                    rows = len(picked)
                # A frame of no columns knows no rows: nothing is loaded from it.
                sources = [*sources, (kept_frame if step.kept else None, None, 0)]
            else:
                for node in step.nodes:
                    arguments = [column_of(kept_frame, step.inputs[a.id]) for a in node.args]
                    function = node.param("function")
                    if function.scalar:
                        result = call_scalar(function, arguments, rows)
                    else:
                        with self.python:
                            result = call_user(function, arguments, rows)
                    sources = [
                        *sources,
                        (frame_of(pa.RecordBatch.from_arrays([result], ["result"])), None, 0),
                    ]
        return Prepared(rows, sources, selected, origin, start, first)


def located(error: Any, pieces: list[tuple[Prepared, int, int]]) -> DataError:
    """Return a native RowError as an error that names file and row; ``pieces``: what the program was given."""
    message, piece, position = error.args
    return located_in(message, pieces[piece][0], pieces[piece][1] + position)


def located_in_batch(message: str, row: int, pieces: list[tuple[Prepared, int, int]]) -> DataError:
    """Return an error about a row of the batch that was made of ``pieces``; it names the file and the row."""
    for prepared, begin, count in pieces:
        if row < count:
            return located_in(message, prepared, begin + row)
        row -= count
    raise AssertionError("the row is not in the batch")


def located_in(message: str, prepared: Prepared, position: int) -> DataError:
    """Return an error about a row of a morsel; it names the file and the row."""
    row = prepared.row(position)
    where = prepared.origin.name(row) if prepared.origin is not None else f"row {row}"
    return DataError(f"{message} (at {where})")


def narrowed(source: Rows, picked: np.ndarray) -> Rows:
    frame, index, base = source
    if frame is None:
        return source
    if index is not None:
        return frame, _native.pick_rows(index[base:], picked), 0
    return frame, picked if base == 0 else (picked + np.int32(base)).astype(np.int32), 0


def exact_numpy(op: UserOperator, array: pa.Array) -> np.ndarray:
    """Return an argument as a NumPy array. Whole numbers with nulls become floats; raise a DataError if that rounds one."""
    found: np.ndarray = array.to_numpy(zero_copy_only=False)
    if array.null_count and pa.types.is_integer(array.type):
        large = pc.fill_null(pc.or_(pc.greater(array, EXACT), pc.less(array, -EXACT)), False)
        if pc.any(large).as_py():
            value = array[pc.index(large, True).as_py()]
            raise DataError(
                f"operator {op.name!r} takes NumPy arrays, in which a column of whole numbers with nulls becomes "
                f"floats, and {value} cannot be represented exactly as a float64; fill the nulls before the operator, or "
                "declare it with arrays='arrow'"
            )
    return found


def call_user(op: UserOperator, arguments: list[pa.Array], rows: int) -> pa.Array:
    """Return the result of a user's function as an array of its declared type. Raise a DataError if it breaks its declaration."""
    valid = None
    if op.skips_nulls:  # as on a GPU: it sees no null, and where one was its result is null
        valid = valid_rows(arguments)
        arguments = [without_nulls(a) for a in arguments]
    given = [exact_numpy(op, a) for a in arguments] if op.arrays == "numpy" else arguments
    try:
        result = op.function(*given)
    except Exception as error:
        told = " ".join(str(error).split())  # one line, whatever it raised
        raise DataError(f"operator {op.name!r} failed: {type(error).__name__}: {told}") from error
    wanted = arrow_type(op.result)
    try:
        if isinstance(result, pa.ChunkedArray):
            result = result.combine_chunks()
        array = result if isinstance(result, pa.Array) else pa.array(result, from_pandas=False)
        if pa.types.is_list_view(array.type) or pa.types.is_large_list_view(array.type):
            array = pa.array(array.to_pylist(), wanted)  # casting a list view can give offsets that are too short
        if op.result == "f" and pa.types.is_decimal(array.type):
            array = decimals_to_float64(array)  # the nearest float, as in a view
        elif op.result == "*f" and "decimal" in str(array.type):
            array = pa.array([row and [v if v is None else float(v) for v in row] for row in array.to_pylist()], wanted)
        if array.type != wanted:
            array = array.cast(wanted)
        array.validate()
    except (TypeError, ValueError, OverflowError, pa.ArrowException) as error:
        raise DataError(f"operator {op.name!r} must return {name_of(op.result)}: {error}") from error
    if len(array) != rows:
        raise DataError(
            f"operator {op.name!r} got {rows} rows and returned {len(array)}; it must return one value for each row"
        )
    if array.null_count and not op.nullable:
        cure = (
            "an operator with a cuda body must return a value for every row"
            if op.on_gpu
            else ("declare it with nullable=True")
        )
        raise DataError(f"operator {op.name!r} returned {array.null_count} nulls; {cure}")
    return array if valid is None else pc.if_else(pa.array(valid), array, pa.scalar(None, wanted))
