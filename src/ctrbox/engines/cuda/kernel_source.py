"""Generates the source of a plan's kernels: one readable function for each layer, made of the operator bodies.

A kernel is launched with a grid of (tiles of rows) × (groups of operators); the group decides what a block runs. Plain
operators (fixed width, no memory of their own) share groups; one that uses the pool, scans documents or visits records
has a group to itself, since all threads of its block must reach the pool together.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

from ctrbox.engines.cuda.program import SPLIT_HASH, Instruction, Layer, Layout, Output, Register
from ctrbox.plan.language.user_operators import UserOperator
from ctrbox.plan.placement.metakernels import MOST_PLAIN

PLAIN = MOST_PLAIN  # operators of a plain group
EMITTED = 32  # columns of the dense matrix that a thread writes
TYPES = {"b": "uint8_t", "i": "int64_t", "t": "int64_t", "f": "double", "k": "uint64_t", "s": "Str"}
MUST_RETURN = "#pragma nv_diag_error 940\n#pragma nv_diag_error 117"  # a path without a value would be any value at all
POOLED = {"items", "each"}
POOLED_SPECIALS = {"lower", "replace", "ints_to_strs", "overlap_count", "distinct_count", "json", SPLIT_HASH}


def type_of(kind: str) -> str:
    return f"List<{TYPES[kind[1:]]}>" if kind.startswith("*") else TYPES[kind]


def element_of(kind: str) -> str:
    """Return the type of the elements of a result of variable length; those of a string are bytes."""
    return "char" if kind == "s" else TYPES[kind[1:]]


def whole(value: int) -> str:
    return f"(int64_t)0x{value & (2**64 - 1):x}ull"


def real(value: float) -> str:
    (bits,) = struct.unpack("<Q", struct.pack("<d", value))
    return f"__longlong_as_double((long long)0x{bits:x}ull)"


# ---- operators of users
def user_head(name: str, op: UserOperator) -> str:
    """Return the head of the function that kernels call for a user's operator; its bool is 0 or 1, whatever the body returns."""
    names = op.parameters if op.cuda else plain_names(op)
    takes = ", ".join(f"{type_of(kind)} {p}" for kind, p in zip(op.args, names, strict=True))
    return f"static __device__ {'bool' if op.result == 'b' else type_of(op.result)} {name}({takes})"


def plain_names(op: UserOperator) -> list[str]:
    """Return names for the arguments of a scalar function, whose own names need not be valid in C++."""
    return [f"a{k}" for k in range(len(op.args))]


def macros_of(body: str) -> list[str]:
    """Return the names of the macros that a body defines. They are undefined behind it: the bodies of other operators stand
    in the same source. (NVRTC does not know ``#pragma push_macro``.)"""
    plain = re.sub(r"/\*.*?\*/", " ", re.sub(r"\\[ \t]*\r?\n", "", body), flags=re.S)
    return list(dict.fromkeys(re.findall(r"(?:#|%:)\s*define\s+([^\W\d]\w*)", plain)))


def user_body(name: str, op: UserOperator) -> str:
    """Return the definition of this function: the user's own lines, counted from 1, or a call of what numba compiled."""
    if op.cuda:
        label = re.sub(r'[\\"\s]+', " ", op.name)
        undone = "".join(f"#undef {macro}\n" for macro in macros_of(op.cuda))
        return f'{MUST_RETURN}\n{user_head(name, op)} {{\n#line 1 "operator {label}"\n{op.cuda}\n}}\n{undone}'
    gives = "double" if op.result == "f" else "int64_t"
    takes = ", ".join(type_of(kind) for kind in op.args)
    call = f"{name}_scalar({', '.join(plain_names(op))})"
    return (
        f'extern "C" __device__ {gives} {name}_scalar({takes});\n{user_head(name, op)} {{\n'
        f"  return {call}{' != 0' if op.result == 'b' else ''};\n}}\n"
    )


@dataclass
class Source:
    """The text of a layout's kernels; ``names`` lists them in the order of their launches, with their groups."""

    layout: Layout
    split: frozenset[str] = frozenset()  # layers cut in two, after their registers were counted
    texts: dict[bytes, str] = field(default_factory=dict)
    groups: dict[str, int] = field(default_factory=dict)
    loaded: dict[int, str] = field(default_factory=dict)  # registers of the group being written, by id
    members: dict[str, list[list[Instruction]]] = field(default_factory=dict)  # of the layers' groups

    def text(self) -> str:
        kernels = [self.layer(layer) for layer in self.layout.layers if layer.phase == 0]
        if self.layout.filtered:
            kernels += self.picks()
        kernels += [self.layer(layer) for layer in self.layout.layers if layer.phase == 1]
        kernels += self.emits()
        kernels.append(COPY)
        self.groups["copy"] = 1
        needed = {k.header for layer in self.layout.layers for k in layer.code if k.header}
        head = [f'#include "operators/{h}"\n' for h in sorted(needed)]
        fused = any(k.body == SPLIT_HASH for layer in self.layout.layers for k in layer.code)
        head += [
            f'#include "cuda/{h}"\n'
            for h in ("load_columns.h", "kernel_shapes.h", "write_outputs.h", *(["split_and_hash.h"] if fused else []))
        ]
        users = [f"{user_head(name, op)};\n" for name, op in self.layout.users.items()]
        # Their bodies come last: a #line of theirs then counts no line of ours.
        bodies = [user_body(name, op) for name, op in self.layout.users.items()]
        return "".join([*head, "using namespace cb;\n\n", *users, *self.constants(), "\n", *kernels, *bodies])

    def constants(self) -> list[str]:
        """Return definitions of texts as bytes, padded at the end like every string on the device."""
        lines = []
        for value, name in self.texts.items():
            padded = ",".join(str(b) for b in value + bytes(16))
            lines.append(f"__device__ __align__(16) const unsigned char {name}[] = {{{padded}}};\n")
        return lines

    def string(self, value: bytes) -> str:
        if value not in self.texts:
            self.texts[value] = f"text_{len(self.texts)}"
        return f"Str{{(const char*){self.texts[value]}, {len(value)}u}}"

    # ---- values
    def value(self, register: Register, row: str = "row") -> str:
        if id(register) in self.loaded:
            return self.loaded[id(register)]
        if register.literal is None:
            return f"entry<{type_of(register.kind)}>(s, {register.at}, {row})"
        (value,) = register.literal
        if register.kind.startswith("*"):
            return f"{type_of(register.kind)}{{nullptr, 0}}"
        if register.kind == "s":
            return self.string(value)
        if register.kind == "f":
            return real(value)
        return f"({TYPES[register.kind]}){whole(value)}"

    def valid(self, register: Register, row: str = "row") -> str:
        if register.nullable and id(register) in self.loaded:
            return f"{self.loaded[id(register)]}_ok"
        return f"entry<uint8_t>(s, {register.valid_at}, {row})" if register.nullable else "1"

    def all_valid(self, registers: Iterable[Register]) -> str:
        parts = [self.valid(r) for r in registers if r.nullable]
        return " & ".join(parts) or "1"

    def params(self, k: Instruction) -> str:
        ints = ", ".join(whole(v) for v in (*k.ints, 0, 0, 0, 0)[:4])
        floats = ", ".join(real(v) for v in (*k.floats, 0.0, 0.0)[:2])
        texts = ", ".join([self.string(t) for t in k.texts] + ["Str{nullptr, 0}"] * (2 - len(k.texts)))
        table = "nullptr" if k.table is None else f"s.tables[{self.layout.table(k)}]"
        return f"const Params q = {{{{{ints}}}, {{{floats}}}, {{{texts}}}, {table}}};"

    # ---- a layer
    def layer(self, layer: Layer) -> str:
        plain = [k for k in layer.code if not self.pooled(k)]
        alone = [k for k in layer.code if self.pooled(k)]
        shared = [plain[at : at + PLAIN] for at in range(0, len(plain), PLAIN)]
        self.members[layer.name] = [*shared, *([k] for k in alone)]
        cases = [self.plain_group(group, layer) for group in shared]
        others = [self.cooperative(k, layer) for k in alone]
        if layer.name not in self.split or not cases or not others:
            return self.kernel(layer.name, layer.phase, cases + others)
        # Two launches: the plain groups need not run with the registers that the others hold.
        second = f"{layer.name}_alone"
        self.members[layer.name], self.members[second] = shared, [[k] for k in alone]
        return self.kernel(layer.name, layer.phase, cases) + self.kernel(second, layer.phase, others)

    def plain_group(self, group: list[Instruction], layer: Layer) -> str:
        """Return operators one after the other, with all loads before the first store, because a store would delay the loads
        after it; no operator of a layer writes what another one reads."""
        read = {id(r): r for k in group for r in k.reads if r.literal is None}
        lines = ["      if (!live) return;\n"]
        for register in read.values():
            name = f"r{register.at}"
            lines.append(f"      const {type_of(register.kind)} {name} = {self.value(register)};\n")
            if register.nullable:
                lines.append(f"      const uint8_t {name}_ok = {self.valid(register)};\n")
        self.loaded = {key: f"r{register.at}" for key, register in read.items()}
        lines += [self.plain(k, layer) for k in group]
        self.loaded = {}
        return "".join(lines)

    def kernel(self, name: str, phase: int, cases: list[str]) -> str:
        self.groups[name] = len(cases)
        rows = "s.counters[kPickedRows]" if phase == 1 and self.layout.filtered else "s.header->rows"
        text = [
            f'extern "C" __global__ void __launch_bounds__(256) {name}(const Slot* slot, uint64_t tiles, uint64_t first) {{\n',
            "  const Slot s = *slot;\n",
            f"  const uint64_t rows = {rows}, row = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;\n",
            "  if ((uint64_t)blockIdx.x * blockDim.x >= rows) return;  // the whole block\n",
            "  const bool live = row < rows;\n",
            "  switch (blockIdx.y + first) {\n",
        ]
        for number, case in enumerate(cases):
            text.append(f"    case {number}: {{\n{case}      break;\n    }}\n")
        return "".join([*text, "  }\n}\n\n"])

    @staticmethod
    def pooled(k: Instruction) -> bool:
        if k.what == "load":
            return k.makes[0].kind.startswith("*")
        if k.what == "gather":
            return False
        return k.shape in POOLED or (k.shape == "special" and k.body in POOLED_SPECIALS)

    def title(self, k: Instruction) -> str:
        # A column's name comes from a file: in a comment it must stay one, on one line.
        name = re.sub(r"[^\w .:$%+-]", "?", k.name)
        return name + (f" ({k.body})" if k.body and k.body != k.name else "")

    # ---- operators without memory of their own
    def plain(self, k: Instruction, layer: Layer) -> str:
        lines = {
            "load": self.load,
            "lookup": self.lookup,
            "gather": self.gather,
            "call": self.plain_call,
        }[k.what](k, layer)
        body = "".join(f"        {line}\n" for line in lines)
        return f"      {{  // {self.title(k)}\n{body}      }}\n"

    def position(self, layer: Layer) -> str:
        return "s.picked[row]" if layer.phase == 1 and self.layout.filtered else "(int64_t)row"

    def load(self, k: Instruction, layer: Layer) -> list[str]:
        out = k.makes[0]
        if k.source >= self.layout.raw_sources:  # kept by the filter's program
            kept = self.layout.kept[k.column]
            at = f"(uint64_t){self.position(layer)}"
            lines = [f"{self.value(out)} = {self.value(kept, at)};"]
            if out.nullable:
                lines.append(f"{self.valid(out)} = {self.valid(kept, at)};")
            return lines
        read = "load_text" if out.kind == "s" else f"load_number<{TYPES[out.kind]}>"
        return [*self.raw(k, layer), f"const Found found = {read}(raw, at, &{self.value(out)});", *self.found(k)]

    def raw(self, k: Instruction, layer: Layer) -> list[str]:
        return [
            f"const Raw& raw = raw_column(s, {self.layout.raw_sources}, {self.column(k)});",
            f"const int64_t at = row_of(s, {k.source}, {self.position(layer)});",
        ]

    def column(self, k: Instruction) -> int:
        return sum(self.layout.columns[: k.source]) + k.column

    @staticmethod
    def found(k: Instruction, live: str = "") -> list[str]:
        """Return the lines that store whether a value was there, and report what was wrong with it."""
        out = k.makes[0]
        lines = [f"if ({live}found.wrong) bad_row(s, {k.bad}, row, found.wrong);"]
        if out.nullable:
            where = f"if ({live.removesuffix(' && ')}) " if live else ""
            return [f"{where}entry<uint8_t>(s, {out.valid_at}, row) = found.there;", *lines]
        return [f"if ({live}!found.there) bad_row(s, {k.bad}, row, 1);", *lines]

    def lookup(self, k: Instruction, layer: Layer) -> list[str]:
        name = "join_row" if len(k.reads) == 1 else "join_row_as_of"
        key = ", ".join(self.value(r) for r in k.reads)
        found = f"{name}(s, {k.missed}, s.tables[{self.layout.table(k)}], {self.all_valid(k.reads)}, {key}, {whole(k.missing)})"
        return [f"{self.value(k.makes[0])} = {found};"]

    def gather(self, k: Instruction, layer: Layer) -> list[str]:
        lines = [f"const char* block = (const char*)s.tables[{self.layout.table(k)}] + {self.value(k.reads[0])} * 8;"]
        fields = k.table.layout
        for register, f in zip(k.makes, k.fields, strict=True):
            offset, valid_offset, inside, kind = fields[f]
            read = f"*(const {type_of(kind)}*)(block + {offset})"
            if inside:
                read = f"gather_inside<{type_of(kind)}>(block, {offset})"
            lines.append(f"{self.value(register)} = {read};")
            if register.nullable:
                lines.append(f"{self.valid(register)} = (uint8_t)block[{valid_offset}];")
        return lines

    def plain_call(self, k: Instruction, layer: Layer) -> list[str]:
        out = k.makes[0]
        args = ", ".join(["q", *(self.value(r) for r in k.reads)])
        if k.shape == "special":
            return self.choice(k)
        kind = type_of(out.kind)
        if k.shape == "user":
            return self.user_call(k)
        if k.shape == "partial":
            args = ", ".join(["q", "&x", *(self.value(r) for r in k.reads)])
            return [
                self.params(k),
                f"{kind} x = {{}};",
                f"const bool ok = {k.body}::apply({args}) && ({self.all_valid(k.reads)});",
                f"{self.value(out)} = ok ? x : {kind}{{}};",
                f"{self.valid(out)} = ok;",
                *([f"count_lost(s, {k.missed}, {self.valid(k.reads[0])}, ok);"] if k.loses else []),
            ]
        if not out.nullable:
            return [self.params(k), f"{self.value(out)} = {k.body}::apply({args});"]
        call = [f"const {kind} x = {k.body}::apply({args});", f"{self.value(out)} = ok ? x : {kind}{{}};"]
        return [self.params(k), *self.where_valid(k, call)]

    def where_valid(self, k: Instruction, lines: list[str]) -> list[str]:
        """Declare ``ok`` (all arguments are valid) before the lines; after them, store it as the validity of the result."""
        return [f"const uint8_t ok = {self.all_valid(k.reads)};", *lines, f"{self.valid(k.makes[0])} = ok;"]

    def user_call(self, k: Instruction) -> list[str]:
        """Return the call of a user's operator, which never gets a row with a null."""
        out = k.makes[0]
        call = f"{k.body}({', '.join(self.value(r) for r in k.reads)})"
        if not out.nullable:
            return [f"{self.value(out)} = {call};"]
        return self.where_valid(
            k, [f"{type_of(out.kind)} x = {{}};", f"if (ok) x = {call};", f"{self.value(out)} = x;"]
        )

    def choice(self, k: Instruction) -> list[str]:
        """Return the lines of fill, select and is_null, which move entries and choose their validity."""
        out = k.makes[0]
        if k.body == "is_null":
            return [f"{self.value(out)} = !({self.valid(k.reads[0])});", *self.make_valid(out, "1")]
        if k.body == "fill":
            a, b = k.reads
            lines = [f"const bool ok = {self.valid(a)};"]
            return [
                *lines,
                f"{self.value(out)} = ok ? {self.value(a)} : {self.value(b)};",
                *self.make_valid(out, f"ok | ({self.valid(b)})"),
            ]
        assert k.body == "select", k.body
        when, a, b = k.reads
        return [
            f"const bool first_of_both = {self.value(when)};",
            f"{self.value(out)} = first_of_both ? {self.value(a)} : {self.value(b)};",
            *self.make_valid(out, f"first_of_both ? {self.valid(a)} : {self.valid(b)}"),
        ]

    def make_valid(self, out: Register, value: str) -> list[str]:
        return [f"{self.valid(out)} = {value};"] if out.nullable else []

    # ---- operators of a whole block
    def cooperative(self, k: Instruction, layer: Layer) -> str:
        lines = [
            f"// {self.title(k)}",
            "const Pool pool = {s.pool, s.pool_bytes, s.counters + kPoolHead};",
        ]
        if k.what == "load":
            lines += self.load_list(k, layer)
        elif k.body == "json" and k.shape == "special":
            lines += self.json(k)
        else:
            lines += self.pooled_call(k, layer)
        return "".join(f"      {line}\n" for line in lines)

    def load_list(self, k: Instruction, layer: Layer) -> list[str]:
        out = k.makes[0]
        if k.source >= self.layout.raw_sources:
            return ["if (!live) return;", *self.load(k, layer)]
        raw, at = self.raw(k, layer)
        at = at.replace("= row_of", "= !live ? -1 : row_of")
        return [
            raw,
            at,
            f"{type_of(out.kind)} list;",
            f"const Found found = load_list<{TYPES[out.kind[1:]]}>(raw, live, at, pool, &list);",
            f"if (live) {self.value(out)} = list;",
            *self.found(k, "live && "),
        ]

    def pooled_call(self, k: Instruction, layer: Layer) -> list[str]:
        out = k.makes[0]
        kind = type_of(out.kind)
        lines = [self.params(k), f"const bool ok = live && ({self.all_valid(k.reads)});"]
        names = []
        for number, register in enumerate(k.reads):
            names.append(f"a{number}")
            lines.append(f"{type_of(register.kind)} a{number} = {{}};")
            lines.append(f"if (live) a{number} = {self.value(register)};")
        args = ", ".join(names)
        if k.shape == "items":
            call = f"items_row<{k.body}, {element_of(out.kind)}>(s, {k.warning}, pool, q, ok, {args})"
        elif k.shape == "each":
            call = f"each_row<{k.body}, {element_of(out.kind)}>(pool, q, ok, {args})"
        elif k.body in ("lower", "replace"):
            call = f"{k.body}_row(s, {k.warning}, pool, q, ok, {args})"
        elif k.body == SPLIT_HASH:
            call = f"split_hash_row(pool, q, ok, {args})"
        elif k.body == "ints_to_strs":
            call = f"ints_to_strs_row(pool, ok, {args})"
        else:
            lines.append(f"const Pool scratch = {{s.scratch, s.scratch_bytes, s.counters + {layer.scratch}}};")
            struct_ = "OverlapCount" if k.body == "overlap_count" else "DistinctCount"
            second = names[1] if len(names) > 1 else "List<uint64_t>{nullptr, 0}"
            call = f"set_row<{struct_}>(scratch, ok, {names[0]}, {second})"
        lines += [f"const {kind} x = {call};", f"if (live) {self.value(out)} = x;"]
        if out.nullable:
            lines.append(f"if (live) {self.valid(out)} = ok;")
        if k.loses:
            lines.append(f"if (live) count_lost(s, {k.missed}, ok, ok && x.n >= a0.n);")
        return lines

    def json(self, k: Instruction) -> list[str]:
        (document,) = k.reads
        kinds = [
            {"*s": "kJsonSs", "*i": "kJsonIs", "*f": "kJsonFs"}.get(r.kind, f"kJson{r.kind.upper()}") for r in k.makes
        ]
        lines = [
            f"const JsonPathsView& paths = *(const JsonPathsView*)s.tables[{self.layout.table(k)}];",
            f"JsonSlice found[{len(k.makes)}];",
            f"const bool there = live && ({self.valid(document)});",
            f"const bool good = there && JsonScan::scan(paths, {self.value(document)}, found);",
            f"warn(s, {k.warning}, there && !good);",
        ]
        if k.strict:
            lines.append(f"if (there && !good) bad_row(s, {k.bad}, row, 5);")
        lines.append("uint64_t bytes = 0;")
        variable = [n for n, r in enumerate(k.makes) if r.kind == "s" or r.kind.startswith("*")]
        lines += [f"if (good) bytes += json_bytes({kinds[n]}, found[{n}]);" for n in variable]
        lines += ["char* to = reserve(pool, bytes);", "const bool room = to || !bytes;", "if (!live) return;"]
        for n, register in enumerate(k.makes):
            kind = type_of(register.kind)
            lines += [
                f"{{ {kind} x = {{}}; bool whole = true;",
                f"  const bool ok = good && room && json_store(found[{n}], &to, &x, &whole);",
                f"  {self.value(register)} = ok ? x : {kind}{{}}; {self.valid(register)} = ok;",
                f"  count_lost(s, {k.missed + 2 * n}, good && found[{n}].type > kJsonNull, ok && whole); }}",
            ]
        return lines

    # ---- rows that pass the filter
    def picks(self) -> list[str]:
        assert self.layout.mask is not None
        mask = self.layout.mask
        chosen = f"live && {self.value(mask)} && ({self.valid(mask)})"
        last = len(self.layout.lists)
        count = [f"      count_tile(s, {last}, tiles, {chosen});\n"]
        write = [f"      pick_tile(s, {last}, tiles, row, {chosen});\n"]
        scan = f"    scan_tiles(s, {last}, tiles, (s.header->rows + kTile - 1) / kTile, s.counters + kPickedRows);\n"
        self.groups["pick_scan"] = 1
        return [
            self.kernel("pick_count", 0, count),
            f'extern "C" __global__ void pick_scan(const Slot* slot, uint64_t tiles, uint64_t first) {{\n'
            f"  const Slot s = *slot;\n{scan}}}\n\n",
            self.kernel("pick_write", 0, write),
        ]

    # ---- outputs
    def emits(self) -> list[str]:
        rows = "s.counters[kPickedRows]" if self.layout.filtered else "s.header->rows"
        fixed = self.layout.fixed
        lists = self.layout.lists
        width = sum(o.width for o in fixed if o.role == "dense")
        # Columns of the matrix lie side by side: a thread that writes many of a row writes whole lines.
        dense = [o for o in fixed if o.role == "dense"]
        others = [o for o in fixed if o.role != "dense"]
        groups = [others[at : at + PLAIN] for at in range(0, len(others), PLAIN)]
        groups += [dense[at : at + EMITTED] for at in range(0, len(dense), EMITTED)]
        cases = []
        for group in groups:
            body = "".join(self.put(o, width) for o in group)
            cases.append(f"      if (!live) return;\n{body}")
        writes, scans = [], []
        for number, output in enumerate(lists):
            n = f"live ? {self.value(output.register)}.n : 0"
            cases.append(f"      count_tile(s, {number}, tiles, {n});\n")
            counter = f"s.counters + {self.layout.first_list + number}"
            scans.append(f"    case {number}: scan_tiles(s, {number}, tiles, used, {counter}); break;\n")
            slot = len(fixed) + 2 * number
            writes.append(
                f"      List<uint64_t> keys = {{nullptr, 0}};\n      if (live) keys = {self.value(output.register)};\n"
                f"      write_tile(s, {number}, tiles, row, live, keys, (int64_t*)s.outputs[{slot}], "
                f"(uint64_t*)s.outputs[{slot + 1}], s.counters[{self.layout.first_list + number}]);\n"
            )
        kernels = [self.kernel("emit", 1, cases)] if cases else []
        if lists:
            self.groups["emit_scan"] = len(lists)
            kernels += [
                f'extern "C" __global__ void emit_scan(const Slot* slot, uint64_t tiles, uint64_t first) {{\n'
                f"  const Slot s = *slot;\n  const uint64_t used = ({rows} + kTile - 1) / kTile;\n"
                f"  switch (blockIdx.y + first) {{\n{''.join(scans)}  }}\n}}\n\n",
                self.kernel("emit_write", 1, writes),
            ]
        return kernels

    def put(self, output: Output, width: int) -> str:
        slot = self.layout.fixed.index(output)
        value = self.value(output.register)
        if output.role in ("label", "weight"):
            return f"      ((float*)s.outputs[{slot}])[row] = (float){value};\n"
        if output.role in ("group", "keys"):
            return f"      ((uint64_t*)s.outputs[{slot}])[row] = {value};\n"
        if output.register.kind != "*f":
            return f"      ((float*)s.outputs[{slot}])[row * {width} + {output.at}] = (float){value};\n"
        return (
            f"      {{ const List<double> v = {value};\n"
            f"        for (uint32_t j = 0; j < {output.width}; ++j)\n"
            f"          ((float*)s.outputs[{slot}])[row * {width} + {output.at} + j] = j < v.n ? (float)v.p[j] : 0.0f; }}\n"
        )

    def kernels_of(self, layer: Layer) -> list[str]:
        return [name for name in (layer.name, f"{layer.name}_alone") if name in self.groups]

    @property
    def launches(self) -> list[str]:
        """Return the names of the kernels of a chunk, in order."""
        order = [name for layer in self.layout.layers if layer.phase == 0 for name in self.kernels_of(layer)]
        if self.layout.filtered:
            order += ["pick_count", "pick_scan", "pick_write"]
        order += [name for layer in self.layout.layers if layer.phase == 1 for name in self.kernels_of(layer)]
        return order + [name for name in ("emit", "emit_scan", "emit_write") if name in self.groups]


COPY = """extern "C" __global__ void copy(const Stretch* stretches, uint64_t tiles, uint64_t first) {
  copy_stretch(stretches[blockIdx.y + first]);
}
"""
