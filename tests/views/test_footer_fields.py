"""Footers of Parquet written field by field: which of them leave a column sound, at and behind every bound."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ctrbox import _native
from tests.twins import footers as twin

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, STRUCT, MAP = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 11
Field = tuple[int, int, bytes]  # number, type, value

INT, TEXT = (1, 4, 0, 1), (6, -1, 1, 3)  # shapes of columns: physical type, width, repetition level, definition level


def varint(value: int) -> bytes:
    out = b""
    while value >= 128:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def zigzag(value: int) -> bytes:
    return varint((value << 1) ^ (value >> 63) if value < 0 else value << 1)


def struct(*fields: Field) -> bytes:
    """Each field with its number in full, so that any order can be written."""
    return b"".join(bytes([kind]) + zigzag(number) + value for number, kind, value in fields) + b"\0"


def listed(kind: int, values: Sequence[bytes]) -> bytes:
    head = bytes([len(values) << 4 | kind]) if len(values) < 15 else bytes([15 << 4 | kind]) + varint(len(values))
    return head + b"".join(values)


def binary(value: bytes) -> bytes:
    return varint(len(value)) + value


def footer(*chunks: bytes, behind: Sequence[Field] = (), groups: int = 1) -> bytes:
    group = struct((1, LIST, listed(STRUCT, chunks)), (3, I64, zigzag(7)))
    return struct((1, I32, zigzag(2)), (4, LIST, listed(STRUCT, [group] * groups)), *behind)


def chunk(*about: Field, fields: Sequence[Field] = ()) -> bytes:
    return struct((2, I64, zigzag(4)), *fields, (3, STRUCT, struct(*about)))


def good(shape: twin.Shape = INT) -> list[Field]:
    return [(1, I32, zigzag(shape[0])), (4, I32, zigzag(1))]


def same(written: bytes, shapes: list[twin.Shape]) -> list[bool]:
    found = _native.sound_parquet_columns(written, shapes)
    assert found == twin.sound_columns(written, shapes)
    return found


def test_columns_are_judged_one_by_one() -> None:
    fair, unfair = chunk(*good()), chunk(*good(TEXT))
    assert same(footer(fair, fair), [INT, INT]) == [True, True]
    assert same(footer(fair, unfair), [INT, INT]) == [True, False]
    assert same(footer(unfair, fair), [INT, INT]) == [False, True]
    assert same(footer(fair, fair, groups=3), [INT, INT]) == [True, True]
    assert same(footer(fair, groups=0), [INT]) == [True]
    for chunks in ((), (fair,), (fair, fair, fair)):
        assert same(footer(*chunks), [INT, INT]) == [False, False]
    assert same(footer(*[fair] * 20), [INT] * 20) == [True] * 20


@pytest.mark.parametrize(
    ("written", "sound"),
    [
        (footer(chunk(*good())) + b"\0", False),
        (footer(chunk(*good()))[:-1], False),
        (struct(), False),
        (struct((4, LIST, listed(STRUCT, []))), True),
        (struct((4, LIST, listed(I32, []))), True),
        (struct((4, LIST, listed(I32, [zigzag(1)]))), False),
        (struct((4, SET, listed(STRUCT, []))), False),
        (struct((4, LIST, listed(STRUCT, [])), (4, LIST, listed(STRUCT, []))), False),
        (footer(chunk(*good()), behind=[(8, STRUCT, struct())]), False),
        (footer(chunk(*good()), behind=[(7, STRUCT, struct()), (9, BINARY, binary(b"xyz"))]), True),
        (struct((4, LIST, listed(STRUCT, [struct()]))), False),
        (struct((4, LIST, listed(STRUCT, [struct((1, SET, listed(STRUCT, [chunk(*good())])))]))), False),
        (struct((4, LIST, listed(STRUCT, [struct(*[(1, LIST, listed(STRUCT, [chunk(*good())]))] * 2)]))), False),
    ],
)
def test_a_footer_has_its_row_groups_once_and_ends_where_it_should(written: bytes, sound: bool) -> None:
    assert same(written, [INT]) == [sound]


@pytest.mark.parametrize(
    ("fields", "sound"),
    [
        ([], True),
        ([(8, BINARY, binary(b"x"))], False),
        ([(7, BINARY, binary(b"x")), (9, TRUE, b"")], True),
        ([(3, STRUCT, struct(*good()))], False),
        ([(3, I32, zigzag(1))], False),
    ],
)
def test_a_chunk_is_described_once_and_not_encrypted(fields: list[Field], sound: bool) -> None:
    assert same(footer(chunk(*good(), fields=fields)), [INT]) == [sound]
    assert same(footer(struct((2, I64, zigzag(4)))), [INT]) == [False]


@pytest.mark.parametrize(
    ("about", "sound"),
    [
        *(([(1, I32, zigzag(1)), (4, I32, zigzag(codec))], 0 <= codec <= 7) for codec in (-2, -1, 0, 1, 6, 7, 8, 9)),
        *(([(1, I32, zigzag(kind)), (4, I32, zigzag(1))], kind == 1) for kind in (-1, 0, 1, 2)),
        ([(1, I32, zigzag(1))], False),
        ([(4, I32, zigzag(1))], False),
        ([*good(), (1, I32, zigzag(1))], False),
        ([*good(), (4, I32, zigzag(1))], False),
        ([(1, I64, zigzag(1)), (4, I32, zigzag(1))], False),
        ([(1, I32, zigzag(1)), (4, I16, zigzag(1))], False),
        ([(1, I32, zigzag(1 + 2**32)), (4, I32, zigzag(1))], False),
        ([(1, I32, zigzag(2**31)), (4, I32, zigzag(1))], False),
        ([*good(), (17, STRUCT, struct())], False),
        ([*good(), (18, STRUCT, struct()), (15, I32, zigzag(1)), (11, I64, zigzag(1))], True),
        ([*good(), (12, STRUCT, struct()), (16, STRUCT, struct())], True),
        ([*good(), (12, LIST, listed(I32, []))], False),
        ([*good(), (16, LIST, listed(I32, []))], False),
        ([*good(), (12, STRUCT, struct()), (12, STRUCT, struct())], False),
        ([*good(), (16, STRUCT, struct()), (16, STRUCT, struct())], False),
    ],
)
def test_a_description_has_a_known_codec_and_the_type_of_its_column(about: list[Field], sound: bool) -> None:
    assert same(footer(chunk(*about)), [INT]) == [sound]


@pytest.mark.parametrize("number", range(9))
@pytest.mark.parametrize(
    ("value", "kind"),
    [(binary(b"1234"), BINARY), (binary(b"123"), BINARY), (binary(b"12345"), BINARY), (zigzag(4), I32), (b"", TRUE)],
)
def test_statistics_have_values_of_the_width_of_their_column(number: int, value: bytes, kind: int) -> None:
    """Fields 1, 2, 5 and 6 are values; others, such as counts of nulls, may be anything."""
    is_value = number in (1, 2, 5, 6)
    written = footer(chunk(*good(), (12, STRUCT, struct((number, kind, value)))))
    assert same(written, [INT]) == [not is_value or (kind == BINARY and len(value) == 5)]
    texts = footer(chunk(*good(TEXT), (12, STRUCT, struct((number, kind, value)))))
    assert same(texts, [TEXT]) == [not is_value or kind == BINARY]


@pytest.mark.parametrize("number", range(5))
@pytest.mark.parametrize("size", range(6))
@pytest.mark.parametrize("shape", [INT, TEXT])
def test_counts_of_levels_are_one_for_each_level_or_none(number: int, size: int, shape: twin.Shape) -> None:
    counts = listed(I64, [zigzag(1)] * size)
    written = footer(chunk(*good(shape), (16, STRUCT, struct((number, LIST, counts)))))
    levels = {2: shape[2], 3: shape[3]}
    expected = size in (0, levels[number] + 1) if number in levels else not (number == 1 and shape == INT)
    assert same(written, [shape]) == [expected]
    as_number = footer(chunk(*good(shape), (16, STRUCT, struct((number, I64, zigzag(1))))))
    assert same(as_number, [shape]) == [number not in levels and not (number == 1 and shape == INT)]


def nested(kind: int, depth: int) -> bytes:
    """A value in ``depth`` structs or lists."""
    value = zigzag(1)
    for level in range(depth):
        inner = kind if level else I32
        value = struct((1, inner, value)) if kind == STRUCT else listed(inner, [value])
    return value


@pytest.mark.parametrize("kind", [STRUCT, LIST])
@pytest.mark.parametrize("depth", [1, 2, *range(26, 34)])
def test_values_that_nobody_asks_for_are_nested_up_to_a_depth(kind: int, depth: int) -> None:
    """Thirty-two structs, with those of the file, the group, the chunk, its description, its statistics and its counts."""
    more = (30, kind, nested(kind, depth))
    group = struct((1, LIST, listed(STRUCT, [chunk(*good())])), more)
    for written, most in (
        (footer(chunk(*good()), behind=[more]), 32),
        (struct((4, LIST, listed(STRUCT, [group]))), 31),
        (footer(chunk(*good(), fields=[more])), 30),
        (footer(chunk(*good(), more)), 29),
        (footer(chunk(*good(), (12, STRUCT, struct(more)))), 28),
        (footer(chunk(*good(), (16, STRUCT, struct(more)))), 28),
        (footer(chunk(*good(), (16, STRUCT, struct((2, LIST, listed(kind, [nested(kind, depth)])))))), 27),
    ):
        assert _native.sound_parquet_columns(written, [INT]) == [depth <= most]


@pytest.mark.parametrize(
    ("value", "kind", "sound"),
    [
        (b"", TRUE, True),
        (b"", FALSE, True),
        (b"\1", BYTE, True),
        (varint(2**64 - 1), I64, True),
        (b"\xff" * 9 + b"\x7f", I64, True),
        (b"\xff" * 10 + b"\1", I64, False),
        (b"\x80" * 9 + b"\0", I16, True),
        (bytes(8), DOUBLE, True),
        (binary(b""), BINARY, True),
        (binary(b"x" * 200), BINARY, True),
        (varint(10**6), BINARY, False),
        (listed(TRUE, [b"\1", b"\2"]), LIST, True),
        (listed(FALSE, [b"\2"] * 14), SET, True),
        (listed(FALSE, [b"\2"] * 15), SET, True),
        (listed(I32, [zigzag(5)] * 16), LIST, True),
        (bytes([15 << 4 | I32]) + varint(10**6), LIST, False),
        (b"\0", MAP, False),
        (b"", 0x0F, False),
        (b"", 0x0D, False),
    ],
)
def test_values_of_every_type_are_passed_over(value: bytes, kind: int, sound: bool) -> None:
    written = footer(chunk(*good(), (30, kind, value)))
    assert same(written, [INT]) == [sound]
    # The last byte of the footer ends it: one less, and it does not.
    assert same(written[:-1], [INT]) == [False]


def test_a_list_may_fill_the_rest_of_the_bytes() -> None:
    """Each element takes a byte at least, and the end of each struct around the list another."""
    for size, sound in ((3, True), (4, False)):
        written = b"\x29" + bytes([size << 4 | BYTE]) + bytes(3) + b"\x29" + listed(STRUCT, []) + b"\0"
        assert same(written, [INT]) == [sound]


def test_numbers_of_fields_follow_each_other_and_wrap_around() -> None:
    by_step = bytes([4 << 4 | LIST]) + listed(STRUCT, []) + b"\0"
    assert same(by_step, [INT]) == [True]
    for first, step, sound in ((1, 3, True), (2, 3, False), (2**16 + 1, 3, True), (-3, 7, True)):
        written = bytes([I32]) + zigzag(first) + zigzag(0) + bytes([step << 4 | LIST]) + listed(STRUCT, []) + b"\0"
        assert same(written, [INT]) == [sound]
