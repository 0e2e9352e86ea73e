"""Write native/operators/unicode_tables.h from this Python's Unicode data.

    python tools/make_unicode_tables.py > native/operators/unicode_tables.h

The output is committed: every build has the tables of one Unicode version, whatever Python builds it. Tables
are sorted ranges, small enough for the L1 cache; a first level by page (256 code points) leaves a search of a
few steps.
"""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Callable

LAST = 0x10FFFF
PAGES = 0x100  # of the basic plane; what lies above is one stretch, searched whole
NONE, WORD, ALONE, MARK = 0, 1, 2, 3

# Scripts written without spaces, by character name: the standard library has names, no scripts.
ALONE_NAMES = (
    "CJK UNIFIED IDEOGRAPH",
    "CJK COMPATIBILITY IDEOGRAPH",
    "HIRAGANA",
    "KATAKANA",
    "HALFWIDTH KATAKANA",
    "HENTAIGANA",
    "IDEOGRAPHIC",
    "VERTICAL IDEOGRAPHIC",
    "HANGZHOU NUMERAL",
)


def lower_of(code: int) -> int:
    """The lower case of one code point where that is one code point, else itself (U+0130 alone)."""
    low = chr(code).lower()
    return ord(low) if len(low) == 1 else code


def word_kind(code: int) -> int:
    """WORD: letters, numbers, '_'. ALONE: Han, Hiragana, Katakana. MARK: continues, never begins."""
    char = chr(code)
    category = unicodedata.category(char)
    if category[0] == "M":
        return MARK
    if category[0] not in "LN" and char != "_":
        return NONE
    return ALONE if unicodedata.name(char, "").startswith(ALONE_NAMES) else WORD


def case_ranges() -> list[tuple[int, int, int, int]]:
    """(first, last, step, delta): first, first + step, … last each have their lower case at + delta."""
    ranges: list[list[int]] = []
    for code in range(LAST + 1):
        delta = lower_of(code) - code
        if not delta:
            continue
        if ranges:
            first, last, step, old = ranges[-1]
            gap = code - last
            # No range crosses a page, so that the page table gives exact bounds.
            if delta == old and first >> 8 == code >> 8 and gap <= 2 and (first == last or gap == step):
                ranges[-1] = [first, code, gap, delta]
                continue
        ranges.append([code, code, 1, delta])
    return [(a, b, c, d) for a, b, c, d in ranges]


def boundaries(kind: Callable[[int], int]) -> list[tuple[int, int]]:
    """(first, kind) wherever the kind changes."""
    out: list[tuple[int, int]] = []
    for code in range(LAST + 1):
        k = kind(code)
        if not out or out[-1][1] != k:
            out.append((code, k))
    return out


def space_ranges() -> list[tuple[int, int]]:
    out: list[tuple[int, int]] = []
    for code in range(LAST + 1):
        if chr(code).isspace():
            if out and out[-1][1] == code - 1:
                out[-1] = (out[-1][0], code)
            else:
                out.append((code, code))
    return out


def starts_before_pages(starts: list[int]) -> list[int]:
    """pages[p]: how many starts lie before page p; one more entry for the end of the basic plane."""
    pages, at = [], 0
    for page in range(PAGES + 1):
        while at < len(starts) and starts[at] < page << 8:
            at += 1
        pages.append(at)
    return pages


def table(kind: str, name: str, comment: str, items: list[str]) -> str:
    lines, line = [], "     "
    for item in items:
        if len(line) + len(item) + 2 > 109:
            lines.append(line)
            line = "     "
        line += f" {item},"
    lines.append(line)
    body = "\n".join(lines)
    return (
        f"// {comment}\nCB_BODY const {kind}* {name}() {{\n"
        f"  static const {kind} table[] = {{\n{body}\n  }};\n  return table;\n}}\n"
    )


def page_table(name: str, what: str, starts: list[int]) -> str:
    comment = f"{name}[p]: {what} before page p of the basic plane."
    return table("uint16_t", name, comment, [str(n) for n in starts_before_pages(starts)])


def main() -> None:
    cases = case_ranges()
    words = boundaries(word_kind)
    spaces = space_ranges()
    kinds = [f"{first << 2 | kind:#x}" for first, kind in words]
    ranges = [f"{first:#x}, {last:#x}" for first, last in spaces]
    out = [
        f"// Unicode {unicodedata.unidata_version}; written by tools/make_unicode_tables.py, not by hand.\n"
        "//\n"
        "// A table is a constant inside a function: the form that g++, nvcc and NVRTC all take for code\n"
        "// that runs on the host and on the device.\n"
        "// clang-format off\n"
        "#pragma once\n"
        '#include "operators/types.h"\n\n'
        "namespace cb::unicode {\n\n"
        "// first, first + step, … last: the lower case lies at + delta. No range crosses a page of 256.\n"
        "struct CaseRange {\n  uint32_t first, last, step;\n  int32_t delta;\n};\n\n"
        "enum WordKind : uint32_t { kNone = 0, kWord = 1, kAlone = 2, kMark = 3 };\n\n"
        f"constexpr uint32_t kCaseRanges = {len(cases)};\n"
        f"constexpr uint32_t kWordBoundaries = {len(words)};\n"
        f"constexpr uint32_t kSpaceRanges = {len(spaces)};\n"
        f"constexpr uint32_t kLastUpper = {cases[-1][1]:#x};\n",
        table(
            "CaseRange",
            "case_ranges",
            "Simple lower case, one code point to one.",
            [f"{{{a:#x}, {b:#x}, {c}, {d}}}" for a, b, c, d in cases],
        ),
        page_table("case_pages", "case ranges that begin", [c[0] for c in cases]),
        table("uint32_t", "word_boundaries", "first code point << 2 | WordKind, valid up to the next entry.", kinds),
        page_table("word_pages", "boundaries that lie", [w[0] for w in words]),
        table("uint32_t", "space_ranges", "White space as Python's str.isspace: first, last of each range.", ranges),
        "}  // namespace cb::unicode\n",
    ]
    sys.stdout.write("\n".join(out))


if __name__ == "__main__":
    main()
