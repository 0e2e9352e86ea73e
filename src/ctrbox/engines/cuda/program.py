"""Describes a GPU program as the assembler states it: instructions over registers, by layer, with an address for every
register.

The same calls build a native program of the CPU engine; here they are only written down. A filter's program and the one
behind it are laid out together (`Layout`): they run one after the other over one slab.

Registers have ``width`` bytes per row and begin ``at`` bytes per row into the slab. The operators of a layer run at the same
time, so a register may take the place of one that was last read in an earlier layer, but not in its own layer. Constants have
no place: the generated source names them.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ctrbox import _native
from ctrbox.plan.language.user_operators import UserOperator

What = Literal["load", "call", "lookup", "gather"]
SPLIT_HASH = (
    "split_hash"  # the body of an instruction that splits a string and hashes the parts (native/cuda/split_and_hash.h)
)


@dataclass(eq=False)  # two registers may look alike
class Register:
    kind: str
    nullable: bool
    literal: Any = None  # (value,) of a constant
    depth: int = -1  # layer that makes it
    at: int = 0
    valid_at: int = 0


@dataclass(eq=False)
class Instruction:
    what: What
    name: str
    reads: list[Register]
    makes: list[Register]
    number: int  # in its program, emits counted: the place in profiles
    shape: str = ""
    body: str = ""
    header: str = ""
    ints: tuple[int, ...] = ()
    floats: tuple[float, ...] = ()
    texts: tuple[bytes, ...] = ()
    table: Any = None  # native table, or Records of a gather
    fields: tuple[int, ...] = ()
    source: int = 0  # load: which source, and which of its columns
    column: int = 0
    missing: int = 0  # lookup: the handle of the record for missing keys
    user: UserOperator | None = None  # shape "user": what it calls
    strict: bool = False
    depth: int = 0
    warning: int = 0  # its counters, by number
    missed: int = (
        0  # the counter of a look-up's keys without a row, or of a cast's lost values; the next one counts nulls
    )
    bad: int = 0

    @property
    def losses(self) -> int:
        """Number of results whose found and lost values are counted; each of these results has two counters."""
        if self.what == "lookup" or self.loses:
            return 1
        return len(self.makes) if self.name == "json" and self.shape == "special" else 0

    @property
    def loses(self) -> bool:
        """Whether this is a cast whose lost values are counted (native/core/program/lost_values.h)."""
        cast = self.name in ("cast_i", "cast_f", "cast_t") and self.reads[0].kind in ("s", "*s", "f")
        return self.what == "call" and self.shape in ("partial", "items") and (cast or self.name == "floordiv")


def entry_width(kind: str) -> int:
    return 16 if kind.startswith("*") or kind == "s" else 1 if kind == "b" else 8


class Recorded:
    """The calls that `_native.Program` takes, written down."""

    def __init__(self) -> None:
        self.registers: list[Register] = []
        self.code: list[Instruction] = []
        self.emits: list[tuple[int, Register]] = []
        self.entries: list[Instruction | None] = []  # as numbered; None: an emit
        self.counts: list[int] = []  # rows warned of so far, by number
        self.nanos: list[float] = []
        # By number and counted result: keys looked up so far and those without a row; of casts and JSON paths the values and
        # those that were lost.
        self.lookups: list[list[tuple[int, int]]] = []

    def _register(self, kind: str, nullable: bool, literal: Any = None, depth: int = -1) -> int:
        self.registers.append(Register(kind, nullable, literal, depth))
        return len(self.registers) - 1

    def _add(self, instruction: Instruction) -> None:
        reads = [r.depth for r in instruction.reads]
        instruction.depth = max(reads, default=-1) + 1
        for register in instruction.makes:
            register.depth = instruction.depth
        self.code.append(instruction)
        self.entries.append(instruction)

    def load(self, source: int, column: int, kind: str, nullable: bool, name: str) -> int:
        made = self._register(kind, nullable)
        self._add(
            Instruction("load", name, [], [self.registers[made]], len(self.entries), source=source, column=column)
        )
        return made

    def literal(self, kind: str, i: int, f: float, s: bytes) -> int:
        value = () if kind.startswith("*") else f if kind == "f" else s if kind == "s" else i
        return self._register(kind, False, (value,))

    def call(
        self,
        name: str,
        args: str,
        reads: Sequence[int],
        results: Sequence[str],
        nullable: Sequence[bool],
        ints: Sequence[int],
        floats: Sequence[float],
        texts: Sequence[bytes],
        table: Any,
        strict: bool,
    ) -> list[int]:
        _, shape, body, _, header = bodies()[f"{name}({args})"]
        made = [self._register(kind, may) for kind, may in zip(results, nullable, strict=True)]
        self._add(
            Instruction(
                "call",
                name,
                [self.registers[r] for r in reads],
                [self.registers[r] for r in made],
                len(self.entries),
                shape,
                body,
                header,
                tuple(ints),
                tuple(floats),
                tuple(texts),
                table,
                strict=strict,
            )
        )
        return made

    def lookup(self, index: Any, hashed: int, missing: int) -> int:
        made = self._register("i", False)
        reads, makes = [self.registers[hashed]], [self.registers[made]]
        self._add(Instruction("lookup", "lookup", reads, makes, len(self.entries), table=index, missing=missing))
        return made

    def lookup_as_of(self, index: Any, hashed: int, time: int, missing: int) -> int:
        made = self._register("i", False)
        reads, makes = [self.registers[hashed], self.registers[time]], [self.registers[made]]
        self._add(Instruction("lookup", "lookup", reads, makes, len(self.entries), table=index, missing=missing))
        return made

    def gather(self, records: Any, row: int, fields: Sequence[int]) -> list[int]:
        layout = records.layout
        made = [self._register(layout[f][3], layout[f][1] >= 0) for f in fields]
        self._add(
            Instruction(
                "gather",
                "gather",
                [self.registers[row]],
                [self.registers[r] for r in made],
                len(self.entries),
                table=records,
                fields=tuple(fields),
            )
        )
        return made

    def user(self, function: UserOperator, reads: Sequence[int], nullable: bool) -> int:
        """Add a call of a user's operator, which programs of the CPU do not support."""
        made = self._register(function.result, nullable)
        arguments, makes = [self.registers[r] for r in reads], [self.registers[made]]
        name = " ".join(function.name.split())
        self._add(Instruction("call", name, arguments, makes, len(self.entries), "user", user=function))
        return made

    def emit(self, slot: int, register: int) -> None:
        self.emits.append((slot, self.registers[register]))
        self.entries.append(None)

    def finish(self) -> None:
        self._fuse()
        self.counts = [0] * len(self.entries)
        self.nanos = [0.0] * len(self.entries)
        self.lookups = [[(0, 0)] * (0 if k is None else k.losses) for k in self.entries]

    def _fuse(self) -> None:
        """Let one instruction split a string and hash the parts if nothing else reads the parts.

        It takes the place of the hash, which reads what the split read; what follows moves to earlier layers.
        """
        readers = Counter(id(r) for k in self.code for r in k.reads)
        readers.update(id(r) for _, r in self.emits)
        splits = {id(k.makes[0]): k for k in self.code if k.body == "Split" and len(k.texts[0]) == 1}
        fused: set[int] = set()
        for k in self.code:
            split = splits.get(id(k.reads[0])) if k.body == "HashStr" and k.shape == "each" else None
            if split is not None and readers[id(k.reads[0])] == 1:
                k.reads, k.texts, k.shape, k.body = split.reads, split.texts, "special", SPLIT_HASH
                fused.add(id(split))
        self.code = [k for k in self.code if id(k) not in fused]
        for k in self.code:
            k.depth = max((r.depth for r in k.reads), default=-1) + 1
            for register in k.makes:
                register.depth = k.depth

    def profile(self) -> list[tuple[str, int, int]]:
        """Return the name, nanoseconds and warned rows of each instruction, in the form of the CPU's programs."""
        return [
            ("emit" if k is None else k.name, int(nanos), count)
            for k, nanos, count in zip(self.entries, self.nanos, self.counts, strict=True)
        ]

    def looked(self) -> list[tuple[int, int]]:
        """Return, for each instruction, how many keys it looked up for a join and how many had no row, in the form of the CPU's
        programs."""
        return [
            counts[0] if k is not None and k.what == "lookup" else (0, 0)
            for k, counts in zip(self.entries, self.lookups, strict=True)
        ]

    def converted(self) -> list[list[tuple[int, int, int, int, bytes | None]]]:
        """Return the numbers of converted and lost values by instruction and counted result, in the form of the CPU's programs.

        Other instructions, among them casts that lose nothing, have one result with zeros.
        """
        return [
            [(*one, 0, 0, None) for one in (counts if k is not None and k.what != "lookup" and counts else [(0, 0)])]
            for k, counts in zip(self.entries, self.lookups, strict=True)
        ]


_bodies: dict[str, tuple[str, str, str, bool, str]] = {}


def bodies() -> dict[str, tuple[str, str, str, bool, str]]:
    """Return, by "name(args)": result, shape, body, whether it makes nulls, header."""
    if not _bodies:
        _bodies.update(_native.bodies())
    return _bodies


@dataclass
class Layer:
    """The operators that one launch runs."""

    name: str
    phase: int  # 0: over the chunk's rows; 1: over those that passed the filter
    code: list[Instruction]
    scratch: int = 0  # counter of its working memory


@dataclass(eq=False)  # two features may have the same register
class Output:
    """The destination of an emitted register: a role of the batch, with its first column and width where it is dense."""

    role: str  # label, weight, group, dense, keys, lists; column: kept until the chunk is done, copied nowhere
    register: Register
    at: int = 0
    width: int = 1


@dataclass
class Layout:
    """Programs laid out over one slab: layers, places, numbers of tables and counters."""

    programs: list[Recorded]  # the filter's, where there is one, then the body
    outputs: list[Output]
    columns: list[int]  # of each raw source
    layers: list[Layer] = field(default_factory=list)
    tables: list[Any] = field(default_factory=list)
    row_bytes: int = 0  # of the slab
    mask: Register | None = None
    counters: int = 2  # the pool's head, rows that passed the filter
    first_list: int = 2  # counters of list lengths begin here

    def __post_init__(self) -> None:
        self.raw_sources = len(self.columns)
        self.filtered = len(self.programs) > 1
        if self.filtered:
            self.mask = next(r for slot, r in self.programs[0].emits if slot == -1)
            self.kept = {slot: r for slot, r in self.programs[0].emits if slot >= 0}
        self.lists = [o for o in self.outputs if o.role == "lists"]
        self.fixed = [o for o in self.outputs if o.role not in ("lists", "column")]
        self.counters += len(self.lists)
        self._layers()
        self._places()
        self._tables()
        self._users()

    def _layers(self) -> None:
        for phase, program in enumerate(self.programs):
            phase += not self.filtered
            by_depth: dict[int, list[Instruction]] = defaultdict(list)
            for instruction in program.code:
                by_depth[instruction.depth].append(instruction)
                instruction.warning, instruction.bad = self.counters, self.counters + 1
                self.counters += 2
                if instruction.losses:
                    instruction.missed = self.counters
                    self.counters += 2 * instruction.losses
            for depth in sorted(by_depth):
                name = f"{'filter' if phase == 0 else 'layer'}_{depth}"
                self.layers.append(Layer(name, phase, by_depth[depth], self.counters))
                self.counters += 1

    def reads(self, instruction: Instruction) -> list[Register]:
        """Return what an instruction reads of the slab. A load after the filter may read what the filter's program kept."""
        if instruction.what == "load" and instruction.source >= self.raw_sources:
            return [self.kept[instruction.column]]
        return [r for r in instruction.reads if r.literal is None]

    def _places(self) -> None:
        end = len(self.layers)
        last: dict[int, int] = {}
        held: dict[int, Register] = {}
        for number, layer in enumerate(self.layers):
            for instruction in layer.code:
                for register in self.reads(instruction):
                    last[id(register)] = number
        for output in self.outputs:
            last[id(output.register)] = end
        if self.mask is not None:  # read between the two programs
            last[id(self.mask)] = max(last.get(id(self.mask), 0), sum(layer.phase == 0 for layer in self.layers))
        free: dict[int, list[int]] = defaultdict(list)

        def place(width: int) -> int:
            if free[width]:
                return free[width].pop()
            self.row_bytes += width
            return self.row_bytes - width

        # 16-byte entries first would be tidier; widths are powers of two and the capacity is a multiple of 256, so every
        # place is aligned wherever it lies.
        for number, layer in enumerate(self.layers):
            for instruction in layer.code:
                for register in instruction.makes:
                    register.at = place(entry_width(register.kind))
                    if register.nullable:
                        register.valid_at = place(1)
                    held[id(register)] = register
            for key in [k for k, r in held.items() if last.get(k, number) <= number]:
                register = held.pop(key)
                free[entry_width(register.kind)].append(register.at)
                if register.nullable:
                    free[1].append(register.valid_at)

    def _tables(self) -> None:
        self.table_numbers: dict[int, int] = {}
        for layer in self.layers:
            for instruction in layer.code:
                if instruction.table is not None and id(instruction.table) not in self.table_numbers:
                    self.table_numbers[id(instruction.table)] = len(self.tables)
                    self.tables.append(instruction.table)

    def _users(self) -> None:
        """Name users' operators in the source, with numbers, because two of them may have the same name."""
        self.users: dict[str, UserOperator] = {}
        named: dict[UserOperator, str] = {}
        for layer in self.layers:
            for k in layer.code:
                if k.user is not None:
                    plain = re.sub(r"\W+", "_", k.user.name, flags=re.ASCII).strip("_")
                    k.body = named.setdefault(k.user, f"user_{len(named)}_{plain}")
                    self.users[k.body] = k.user

    def table(self, instruction: Instruction) -> int:
        return self.table_numbers[id(instruction.table)]
