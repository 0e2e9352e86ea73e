"""A key from a function that does not belong to its field is refused in one sentence; files without kinds refuse none."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

import ctrbox as cb
from tests.capi.models import BAD_ARGUMENT, OK, learned, opened
from tests.ffm.test_key_kinds import engine_over, plan_over

FUNCTIONS = ("text", "string", "int", "key", "dense")
TAKEN = {  # by field, the functions that make its keys
    "user": {"int", "key"},
    "query": {"string", "key"},
    "title": {"string", "key"},
    "shared": {"key"},
    "cross": {"key"},
    "shown": {"key"},
    "number": {"key"},
    "price": {"dense"},
}
TOLD = {
    "user": "keys of whole numbers; use ctrbox_key_of_int",
    "query": "keys of strings; use ctrbox_key_of_string",
    "cross": "keys that only the plan can compute, such as a cross; use ctrbox_key_of_key",
    "price": "the numbers of a dense column; use ctrbox_key_of_dense",
    "ad": "keys of the text of examples; use ctrbox_key_of_text",
}


def asked(lib: ctypes.CDLL, model: ctypes.c_void_p, field: int) -> tuple[set[str], str]:
    """The functions that make keys of a field, and what the last one that refused says."""
    key, place, one = ctypes.c_uint64(), ctypes.c_uint32(field), ctypes.c_size_t(1)
    statuses = []
    said = ""
    for name, value in (
        ("text", (b"x", one)),
        ("string", (b"x", one)),
        ("int", (ctypes.c_int64(1),)),
        ("key", (ctypes.c_uint64(1),)),
        ("dense", ()),
    ):
        status = getattr(lib, f"ctrbox_key_of_{name}")(model, place, *value, ctypes.byref(key))
        assert status in (OK, BAD_ARGUMENT)
        if status != OK:
            said = lib.ctrbox_last_error().decode()
        statuses.append(status)
    return {name for name, status in zip(FUNCTIONS, statuses, strict=True) if status == OK}, said


@pytest.mark.parametrize("file", ["m.ffm", "m.fbw"])
def test_a_key_of_another_kind_is_refused(lib: ctypes.CDLL, tmp_path: Path, file: str) -> None:
    engine = engine_over(plan_over())
    engine.save(tmp_path / "m.ffm")
    cb.publish.pack(engine, tmp_path / "m.fbw")
    with opened(lib, tmp_path / file) as model:
        for number, name in enumerate(engine.fields):
            found, said = asked(lib, model, number)
            assert found == TAKEN[name]
            if name in TOLD:
                assert said == f"field '{name}' was trained on {TOLD[name]}"


def test_a_model_of_text_takes_keys_of_text(lib: ctypes.CDLL, tmp_path: Path) -> None:
    engine = learned(tmp_path, 20)
    engine.save(tmp_path / "m.ffm")
    with opened(lib, tmp_path / "m.ffm") as model:
        found, said = asked(lib, model, engine.fields.index("ad"))
        assert found == {"text"}
        assert said == f"field 'ad' was trained on {TOLD['ad']}"
        key, keys = ctypes.c_uint64(), (ctypes.c_uint64 * 2)(5, 6)
        assert lib.ctrbox_key_of_interaction(model, 2, keys, ctypes.c_size_t(2), ctypes.byref(key)) == OK


def test_a_file_without_kinds_takes_every_key(lib: ctypes.CDLL, tmp_path: Path) -> None:
    engine = engine_over(plan_over())
    engine.key_kinds = dict.fromkeys(engine.fields, "")
    engine.save(tmp_path / "m.ffm")
    with opened(lib, tmp_path / "m.ffm") as model:
        for number in range(len(engine.fields)):
            assert asked(lib, model, number) == (set(FUNCTIONS), "")


def test_a_scorer_refuses_weights_of_other_keys(lib: ctypes.CDLL, tmp_path: Path) -> None:
    plan = plan_over()
    cb.serve.save_request_plan(plan, tmp_path / "request.ctr", context=["user"])
    engine = engine_over(plan)
    (tmp_path / "train.vw").write_text("1 |user 7 |query red\n")
    scorer = ctypes.c_void_p()

    def opens() -> str:
        engine.save(tmp_path / "m.ffm")
        place = [str(tmp_path / name).encode() for name in ("request.ctr", "m.ffm")]
        if lib.ctrbox_scorer_open(*place, ctypes.byref(scorer)) == OK:
            lib.ctrbox_scorer_close(scorer)
            return ""
        return str(lib.ctrbox_last_error().decode())

    assert opens() == ""
    engine.key_kinds["price"] = "int"
    assert (
        "does not belong to this plan: field 'price' was trained on keys of whole numbers, but the plan makes the"
        in opens()
    )
    engine.key_kinds["price"] = "dense"
    engine.learn(cb.ffm.ExampleText(tmp_path / "train.vw"))
    assert "field 'user' was trained on keys of the text of examples, but the plan makes keys of its columns" in opens()
