"""Places where the code can be changed, and the change: a `Site` replaces the characters [start, end) of one file.

Python sites come from the syntax tree, so that no comment or text is changed:

    compare    < becomes <=, == becomes !=, `is` becomes `is not`, `in` becomes `not in`, and so on
    logic      `and` becomes `or`; the condition of if, while and a conditional expression is negated
    arithmetic + becomes -, * becomes +, // becomes *, % becomes *, & becomes |, << becomes >>
    raise      the statement is left out
    lock       `with lock:` becomes `if True:`

C++ sites come from patterns over lines without comments and texts; what does not compile is drawn again. Code that this
machine does not run is left out: files and branches of #if for a GPU, for another kind of CPU, or for the fuzzers.
"""

from __future__ import annotations

import ast
import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

COMPARE: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.FloorDiv: ("//", "*"),
    ast.Div: ("/", "*"),
    ast.Mod: ("%", "*"),
    ast.BitAnd: ("&", "|"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
}
LOCK = re.compile(r"lock|_turn\b|\bturn\b|\bcontrol\b|mutex", re.IGNORECASE)

# Names that a branch of #if asks for and that are not defined in what the tests run here.
ELSEWHERE = {"__CUDA_ARCH__", "__CUDACC__", "__CUDACC_RTC__", "CTRBOX_FUZZ"}
ELSEWHERE |= {"__aarch64__", "__ARM_NEON"} if platform.machine() == "x86_64" else {"__x86_64__", "__SSE2__"}

NATIVE: list[tuple[str, re.Pattern[str], str]] = [
    ("compare", re.compile(r" <= "), " < "),
    ("compare", re.compile(r" < (?!<)"), " <= "),
    ("compare", re.compile(r" >= "), " > "),
    ("compare", re.compile(r"(?<!>) > "), " >= "),
    ("compare", re.compile(r" == "), " != "),
    ("compare", re.compile(r" != "), " == "),
    ("logic", re.compile(r" && "), " || "),
    ("logic", re.compile(r" \|\| "), " && "),
    ("logic", re.compile(r"\bif \((?!constexpr)"), "if (not "),
    ("arithmetic", re.compile(r" \+ "), " - "),
    ("arithmetic", re.compile(r" - "), " + "),
    ("arithmetic", re.compile(r" % "), " / "),
    ("raise", re.compile(r"\bthrow [^;]+;"), ";"),
    ("lock", re.compile(r"std::(lock_guard|unique_lock|scoped_lock|shared_lock)<[^;]*> \w+\([^;]*\);"), ";"),
]


@dataclass(frozen=True)
class Site:
    path: str  # relative to the repository
    line: int
    start: int
    end: int
    new: str
    kind: str
    old: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.kind}: {' '.join(self.old.split())[:60]!r} -> {self.new[:30]!r}"

    def applied(self, text: str) -> str:
        return text[: self.start] + self.new + text[self.end :]


def python_sites(root: Path, folder: str = "src/ctrbox") -> Iterator[Site]:
    for path in sorted((root / folder).rglob("*.py")):
        if not {"cuda", "gpu"}.isdisjoint(path.parts):
            continue
        yield from _Walk(str(path.relative_to(root)), path.read_text(encoding="utf-8")).sites()


class _Walk:
    """The sites of one file. Offsets of the tree are in bytes of a line; these are characters of the text."""

    def __init__(self, name: str, text: str) -> None:
        self.name, self.text = name, text
        self.lines = text.splitlines(keepends=True)
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line))

    def at(self, line: int, column: int) -> int:
        return self.starts[line - 1] + len(self.lines[line - 1].encode()[:column].decode())

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.at(node.lineno, node.col_offset), self.at(node.end_lineno, node.end_col_offset)

    def site(self, start: int, end: int, new: str, kind: str) -> Site:
        line = self.text.count("\n", 0, start) + 1
        return Site(self.name, line, start, end, new, kind, self.text[start:end])

    def between(self, left: ast.expr, right: ast.expr, old: str, new: str, kind: str) -> Iterator[Site]:
        """The operator ``old`` in the text between two operands."""
        start, end = self.span(left)[1], self.span(right)[0]
        found = re.search(re.escape(old).replace(r"\ ", r"\s+"), self.text[start:end])
        if found and "#" not in self.text[start:end]:
            yield self.site(start + found.start(), start + found.end(), new, kind)

    def sites(self) -> Iterator[Site]:
        tree = ast.parse(self.text)
        skipped = {
            id(inner)
            for node in ast.walk(tree)
            for name in ("annotation", "returns")
            if (part := getattr(node, name, None)) is not None
            for inner in ast.walk(part)
        }
        # What a type checker alone reads is not run.
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
                skipped |= {id(inner) for inner in ast.walk(node)}
        for node in ast.walk(tree):
            if id(node) not in skipped:
                yield from self.of(node)

    def of(self, node: ast.AST) -> Iterator[Site]:
        if isinstance(node, ast.Compare):
            left = node.left
            for op, right in zip(node.ops, node.comparators, strict=True):
                yield from self.between(left, right, _written(op), COMPARE[type(op)], "compare")
                left = right
        elif isinstance(node, ast.BoolOp):
            old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
            for first, second in zip(node.values, node.values[1:], strict=False):
                yield from self.between(first, second, old, new, "logic")
        elif isinstance(node, ast.If | ast.While | ast.IfExp):
            start, end = self.span(node.test)
            yield self.site(start, end, f"not ({self.text[start:end]})", "logic")
        elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
            if not (isinstance(node.left, ast.Constant) and isinstance(node.left.value, str)):
                yield from self.between(node.left, node.right, *ARITHMETIC[type(node.op)], "arithmetic")
        elif isinstance(node, ast.Raise):
            start, end = self.span(node)
            yield self.site(start, end, "pass", "raise")
        elif isinstance(node, ast.With) and all(LOCK.search(ast.unparse(item.context_expr)) for item in node.items):
            start = self.span(node)[0]
            colon = self.text.index(":\n", start)
            yield self.site(start, colon, "if True", "lock")


def _written(op: ast.cmpop) -> str:
    return {
        ast.Lt: "<",
        ast.LtE: "<=",
        ast.Gt: ">",
        ast.GtE: ">=",
        ast.Eq: "==",
        ast.NotEq: "!=",
        ast.Is: "is",
        ast.IsNot: "is not",
        ast.In: "in",
        ast.NotIn: "not in",
    }[type(op)]


def native_sites(root: Path) -> Iterator[Site]:
    """Leave out native/cuda, which runs on a GPU alone, and tables of Unicode."""
    for folder in ("native/core", "native/operators", "native/bindings", "native/capi"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in {".h", ".cpp"} and path.stem != "unicode_tables":
                yield from _native_sites(str(path.relative_to(root)), path.read_text(encoding="utf-8"))


def _native_sites(name: str, text: str) -> Iterator[Site]:
    place = 0
    left_out: list[bool] = []  # of each #if around the line: whether this branch is compiled elsewhere alone
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        code = re.sub(r'"(?:\\.|[^"\\])*"', lambda m: '"' + "_" * (len(m[0]) - 2) + '"', line).split("//")[0]
        if directive := re.match(r"\s*#\s*(if|ifdef|ifndef|elif|else|endif)\b(.*)", code):
            word, condition = directive.groups()
            if word not in ("if", "ifdef", "ifndef"):
                left_out.pop()
            if word != "endif":
                left_out.append(word in ("if", "ifdef", "elif") and _elsewhere(condition))
        if not any(left_out) and not code.lstrip().startswith(("#", "template", "static_assert")):
            for kind, pattern, new in NATIVE:
                for found in pattern.finditer(code):
                    changed = new
                    if kind == "logic" and "if (" in new:  # negated whole, not its first operand alone
                        closing = _closing(code, found.end() - 1)
                        if closing is None:
                            continue
                        start, end = found.end(), closing
                        yield Site(
                            name, number, place + start, place + end, f"!({line[start:end]})", kind, line[start:end]
                        )
                        continue
                    start, end = found.span()
                    yield Site(name, number, place + start, place + end, changed, kind, line[start:end])
        place += len(line)


def _elsewhere(condition: str) -> bool:
    """Whether a condition of #if needs a name that is not defined here. Of `a || b` both must need one."""
    return all(
        any(re.search(rf"(?<!!)(\bdefined\(|^\s*){name}\b", part) for name in ELSEWHERE)
        for part in condition.split("||")
    )


def _closing(code: str, opening: int) -> int | None:
    depth = 0
    for at in range(opening, len(code)):
        depth += {"(": 1, ")": -1}.get(code[at], 0)
        if depth == 0:
            return None if ";" in code[opening:at] else at
    return None
