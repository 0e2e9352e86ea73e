"""Calls of libctrbox with arguments at and behind their bounds: the status, the sentence, and what is accepted just before."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import ctrbox as cb
from tests.capi.library import Examples
from tests.capi.models import BAD_ARGUMENT, CANNOT_READ, OK, opened

NOT_FINITE = 7
NAMES = ["user", "ad", "words"]
Model = ctypes.c_void_p


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.ffm"
    cb.DeepFFM(NAMES, bits=6, k=2, hidden=(3,), context=("user",)).save(path)
    return path


@pytest.fixture(scope="module")
def model(lib: ctypes.CDLL, path: Path) -> Iterator[Model]:
    with opened(lib, path) as model:
        yield model


def said(lib: ctypes.CDLL) -> str:
    return str(lib.ctrbox_last_error().decode())


def examples(
    offsets: list[int] | None,
    fields: list[int] | None = None,
    keys: list[int] | None = None,
    values: list[float] | None = None,
    rows: int | None = None,
) -> Examples:
    rows = len(offsets or [0]) - 1 if rows is None else rows
    given = ((ctypes.c_uint64, offsets), (ctypes.c_uint32, fields), (ctypes.c_uint64, keys), (ctypes.c_float, values))
    return Examples(rows, *(None if part is None else (kind * max(1, len(part)))(*part) for kind, part in given))


def scored(lib: ctypes.CDLL, model: Model, asked: Examples, room: int = 3) -> tuple[int, list[float]]:
    scores = (ctypes.c_float * room)(*[-1.0] * room)
    return lib.ctrbox_score(model, ctypes.byref(asked), scores), list(scores)


# ---- a model and its fields


def test_a_model_tells_its_fields_by_name_and_by_number(lib: ctypes.CDLL, model: Model) -> None:
    assert lib.ctrbox_fields(model) == 3
    number, size = ctypes.c_uint32(), ctypes.c_size_t()
    for place, name in enumerate(NAMES):
        assert lib.ctrbox_field_name(model, place, ctypes.byref(size)) == name.encode()
        assert size.value == len(name)
        assert lib.ctrbox_field_name(model, place, None) == name.encode()
        assert lib.ctrbox_field(model, name.encode(), ctypes.c_size_t(len(name)), ctypes.byref(number)) == OK
        assert number.value == place
    assert lib.ctrbox_field_name(model, 3, None) is None
    assert lib.ctrbox_field_name(None, 0, None) is None
    assert lib.ctrbox_fields(None) == lib.ctrbox_learned(None) == lib.ctrbox_context_fields(None) == 0
    assert (lib.ctrbox_learned(model), lib.ctrbox_context_fields(model)) == (0, 1)


def test_no_message_is_kept_before_a_call_fails_and_a_missing_file_is_named(lib: ctypes.CDLL, tmp_path: Path) -> None:
    model = ctypes.c_void_p(1)
    assert lib.ctrbox_open(str(tmp_path / "none").encode(), ctypes.byref(model)) == CANNOT_READ
    assert said(lib) == f"cannot read {tmp_path / 'none'}: No such file or directory"
    assert model.value is None
    assert lib.ctrbox_open(str(tmp_path).encode(), ctypes.byref(model)) == CANNOT_READ
    assert said(lib) == f"cannot read {tmp_path}: it is not a regular file"
    assert lib.ctrbox_open(None, ctypes.byref(model)) == BAD_ARGUMENT
    assert said(lib) == "path is NULL"
    for size in (0, 7, 8):
        (tmp_path / "short").write_bytes(b"CTRWGHTS"[:size])
        assert lib.ctrbox_open(str(tmp_path / "short").encode(), ctypes.byref(model)) == 3
        expected = "it is not a weight file: only 8 bytes" if size == 8 else "it is not"
        assert said(lib).startswith(f"cannot read {tmp_path / 'short'}: {expected}")


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (b"", ""),
        (b"add", "add"),
        (b"use", "use"),
        (b" ~", " ~"),
        (b"\x1f\x7f\n\xc3\xa4", "?????"),
        (b"n" * 40, "n" * 40),
        (b"n" * 41, "n" * 40 + "..."),
    ],
)
def test_an_unknown_field_is_shown_in_at_most_forty_plain_characters(
    lib: ctypes.CDLL, model: Model, name: bytes, shown: str
) -> None:
    number = ctypes.c_uint32()
    assert lib.ctrbox_field(model, name, ctypes.c_size_t(len(name)), ctypes.byref(number)) == BAD_ARGUMENT
    assert said(lib) == f"the model has no field '{shown}'"


# ---- keys


def test_keys_are_made_for_fields_of_the_model_alone(lib: ctypes.CDLL, model: Model) -> None:
    key, one = ctypes.c_uint64(), ctypes.c_size_t(1)
    for field, status in ((2, OK), (3, BAD_ARGUMENT), (2**32 - 1, BAD_ARGUMENT)):
        calls = [
            lib.ctrbox_key_of_text(model, ctypes.c_uint32(field), b"x", one, ctypes.byref(key)),
            lib.ctrbox_key_of_string(model, ctypes.c_uint32(field), b"x", one, ctypes.byref(key)),
            lib.ctrbox_key_of_int(model, ctypes.c_uint32(field), ctypes.c_int64(1), ctypes.byref(key)),
            lib.ctrbox_key_of_key(model, ctypes.c_uint32(field), ctypes.c_uint64(1), ctypes.byref(key)),
            lib.ctrbox_key_of_dense(model, ctypes.c_uint32(field), ctypes.byref(key)),
        ]
        assert calls == [status] * 5
        if status:
            assert said(lib) == f"field {field}; the model has fields 0 to 2"


def test_a_name_may_be_empty_and_has_at_most_4_gib(lib: ctypes.CDLL, model: Model) -> None:
    key, other = ctypes.c_uint64(), ctypes.c_uint64()
    assert lib.ctrbox_key_of_text(model, 0, None, ctypes.c_size_t(0), ctypes.byref(key)) == OK
    assert lib.ctrbox_key_of_text(model, 0, b"", ctypes.c_size_t(0), ctypes.byref(other)) == OK
    assert key.value == other.value != 0
    assert lib.ctrbox_key_of_text(model, 0, None, ctypes.c_size_t(1), ctypes.byref(key)) == BAD_ARGUMENT
    assert said(lib) == "name is NULL"
    assert lib.ctrbox_key_of_string(model, 0, b"x", ctypes.c_size_t(2**32), ctypes.byref(key)) == BAD_ARGUMENT
    assert said(lib) == "value has more than 4 GiB"


def test_a_key_of_a_plan_is_not_zero_and_an_interaction_has_two_features(lib: ctypes.CDLL, model: Model) -> None:
    key, keys = ctypes.c_uint64(), (ctypes.c_uint64 * 3)(5, 6, 7)
    assert lib.ctrbox_key_of_key(model, 0, ctypes.c_uint64(0), ctypes.byref(key)) == BAD_ARGUMENT
    assert said(lib) == "key 0 stands for a missing value and cannot be a feature"
    assert lib.ctrbox_key_of_key(model, 0, ctypes.c_uint64(1), ctypes.byref(key)) == OK
    found = []
    for count in (0, 1, 2, 3):
        status = lib.ctrbox_key_of_interaction(model, 2, keys, ctypes.c_size_t(count), ctypes.byref(key))
        assert status == (OK if count >= 2 else BAD_ARGUMENT)
        if status:
            assert said(lib) == "an interaction must have two or more features"
        else:
            found.append(key.value)
    keys[2] = 8
    assert lib.ctrbox_key_of_interaction(model, 2, keys, ctypes.c_size_t(3), ctypes.byref(key)) == OK
    assert len({*found, key.value}) == 3


# ---- examples


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (examples(None, rows=1), "examples->offsets is NULL"),
        (examples([1, 1], rows=2**32 - 1), "offsets[0] must be 0"),
        (examples([1, 1], rows=2**32), "the call has more than 4,294,967,295 examples; split it"),
        (examples([0, 2**32]), "the call has more than 4,294,967,295 features; split it"),
        (examples([0, 2**32 - 1], [0], [1]), "example 0: it has more than 65,535 features"),
        (examples([0, 65_536], [0], [1]), "example 0: it has more than 65,535 features"),
        (examples([0, 65_535], [9], [1]), "example 0: field 9; the model has 3"),
        (examples([0, 2, 1], [0, 0], [1, 1]), "example 1: its features end before they begin"),
        (examples([0, 1], None, [1]), "examples->fields is NULL"),
        (examples([0, 1], [0], None), "examples->keys is NULL"),
        (examples([0, 0, 1], [3], [1]), "example 1: field 3; the model has 3"),
        (examples([0, 1], [2], [1], [math.nan]), "example 0: a value is not finite"),
        (examples([0, 1, 2], [2, 2], [1, 1], [1.0, -math.inf]), "example 1: a value is not finite"),
    ],
)
def test_examples_that_cannot_be_are_refused(lib: ctypes.CDLL, model: Model, asked: Examples, sentence: str) -> None:
    assert scored(lib, model, asked) == (BAD_ARGUMENT, [-1.0] * 3)
    assert said(lib) == sentence


def test_examples_may_be_empty_and_what_lies_behind_them_is_not_read(lib: ctypes.CDLL, model: Model) -> None:
    assert lib.ctrbox_score(model, ctypes.byref(examples([0])), None) == OK
    status, (nothing, again, behind) = scored(lib, model, examples([0, 0, 0]))
    assert (status, behind, nothing) == (OK, -1.0, again)
    assert 0 < nothing < 1
    # The last entry has a field that the model lacks; no example has it.
    status, (one, _, _) = scored(lib, model, examples([0, 1], [2, 9], [7, 7], [1.0, math.nan]))
    assert status == OK
    assert scored(lib, model, examples([0, 1], [2], [7]))[1][0] == one  # values are 1 where none are given


def test_scores_that_are_not_finite_name_their_example(lib: ctypes.CDLL, model: Model) -> None:
    large = examples([0, 1, 3], [0, 0, 1], [1, 1, 2], [1.0, 3e38, 3e38])
    assert scored(lib, model, large)[0] == NOT_FINITE
    assert said(lib) == "the score of example 1 is not finite"


def test_a_null_is_refused_by_its_name(lib: ctypes.CDLL, model: Model) -> None:
    asked, scores = ctypes.byref(examples([0, 0])), (ctypes.c_float * 1)()
    number, made = ctypes.byref(ctypes.c_uint32()), ctypes.byref(ctypes.c_void_p())
    one = ctypes.c_size_t(1)
    for call, name in (
        (lambda: lib.ctrbox_score(None, asked, scores), "model"),
        (lambda: lib.ctrbox_score(model, None, scores), "examples"),
        (lambda: lib.ctrbox_score(model, asked, None), "scores"),
        (lambda: lib.ctrbox_field(None, b"x", one, number), "model"),
        (lambda: lib.ctrbox_field(model, None, one, number), "name"),
        (lambda: lib.ctrbox_field(model, b"x", one, None), "field"),
        (lambda: lib.ctrbox_key_of_dense(None, 0, number), "model"),
        (lambda: lib.ctrbox_key_of_dense(model, 0, None), "key"),
        (lambda: lib.ctrbox_key_of_interaction(model, 0, None, one, number), "keys"),
        (lambda: lib.ctrbox_context_make(model, asked, None), "context"),
        (lambda: lib.ctrbox_context_make(None, asked, made), "model"),
        (lambda: lib.ctrbox_context_make(model, None, made), "example"),
        (lambda: lib.ctrbox_context_score(model, None, asked, scores), "context"),
        (lambda: lib.ctrbox_apply_patch(None, b"b", b"c", ctypes.c_uint64(0)), "base"),
        (lambda: lib.ctrbox_apply_patch(b"a", None, b"c", ctypes.c_uint64(0)), "patch"),
        (lambda: lib.ctrbox_apply_patch(b"a", b"b", None, ctypes.c_uint64(0)), "result"),
    ):
        assert (call(), said(lib)) == (BAD_ARGUMENT, f"{name} is NULL")
    assert lib.ctrbox_context_bytes(None) == 0
    lib.ctrbox_close(None)
    lib.ctrbox_context_free(None)


# ---- a context and its candidates


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (examples([0]), "a context is one example; got 0"),
        (examples([0, 0, 0]), "a context is one example; got 2"),
        (examples([0, 2], [0, 1], [1, 1]), "field 1 of a context; the fields below 1 are the context's"),
    ],
)
def test_a_context_is_one_example_of_its_fields(lib: ctypes.CDLL, model: Model, asked: Examples, sentence: str) -> None:
    made = ctypes.c_void_p(1)
    assert lib.ctrbox_context_make(model, ctypes.byref(asked), ctypes.byref(made)) == BAD_ARGUMENT
    assert (said(lib), made.value) == (sentence, None)


def test_candidates_have_no_field_of_the_context_and_belong_to_its_model(
    lib: ctypes.CDLL, model: Model, path: Path
) -> None:
    made, scores = ctypes.c_void_p(), (ctypes.c_float * 2)(-1, -1)
    assert lib.ctrbox_context_make(model, ctypes.byref(examples([0, 1], [0], [7])), ctypes.byref(made)) == OK
    whole = scored(lib, model, examples([0, 2, 3], [0, 1, 0], [7, 8, 7]))[1]
    candidates = ctypes.byref(examples([0, 1, 1], [1], [8]))
    assert lib.ctrbox_context_score(model, made, candidates, scores) == OK
    assert np.array(scores, np.float32).tobytes() == np.array(whole[:2], np.float32).tobytes()
    assert lib.ctrbox_context_score(model, made, ctypes.byref(examples([0])), None) == OK
    assert lib.ctrbox_context_score(model, made, candidates, None) == BAD_ARGUMENT
    assert said(lib) == "scores is NULL"
    assert lib.ctrbox_context_score(model, made, ctypes.byref(examples([0, 1], [0], [7])), scores) == BAD_ARGUMENT
    assert said(lib) == "field 0 of a candidate; the fields below 1 are the context's"
    with opened(lib, path) as other:
        assert lib.ctrbox_context_score(other, made, candidates, scores) == BAD_ARGUMENT
    assert said(lib) == "the context belongs to another model"
    large = examples([0, 0, 2], [1, 2], [8, 9], [3e38, 3e38])
    assert lib.ctrbox_context_score(model, made, ctypes.byref(large), scores) == NOT_FINITE
    assert said(lib) == "the score of example 1 is not finite"
    lib.ctrbox_context_free(made)
