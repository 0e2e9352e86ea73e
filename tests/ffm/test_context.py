"""A context worked out once, and candidates on top of it: the bits of whole examples, whatever the model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ctrbox as cb
from ctrbox import _native
from ctrbox.columns.batch import Batch, Field, Ragged, Schema
from ctrbox.ffm.engine import DeepFFM
from tests.ffm.test_deep_ffm import parsed

FIELDS = tuple("abcdefghijk")


def words(draw: st.DrawFn, fields: tuple[str, ...]) -> str:
    feature = st.tuples(st.sampled_from("uvwxyz"), st.sampled_from(["", "", ":0.5", ":-2", ":0", ":1e-3"])).map("".join)
    met = (
        draw(st.lists(st.tuples(st.sampled_from(fields), st.lists(feature, max_size=3)), max_size=8)) if fields else []
    )
    return " ".join(f"|{name} {' '.join(some)}" for name, some in met)


@st.composite
def requests(draw: st.DrawFn) -> tuple[dict[str, Any], str, str, list[str]]:
    """A model, text to learn from, a context, candidates."""
    fields = FIELDS[: draw(st.integers(1, 11))]
    shared = draw(st.integers(0, len(fields)))
    options = {
        "fields": fields,
        "context": fields[:shared],
        "k": draw(st.sampled_from([1, 4, 4, 7, 8, 9])),
        "hidden": draw(st.lists(st.integers(1, 18), max_size=2)),
        "bits": 11,
        "ffm_init": 1.0,
        "norm": draw(st.booleans()),
        "residual": draw(st.booleans()),
    }
    off = draw(st.sampled_from([None, None, "lr", "ffm"]))
    if off:
        options[off] = None
    learned = "".join(f"{draw(st.sampled_from('10'))} {words(draw, fields)} |a\n" for _ in range(4))
    count = draw(st.integers(0, 19))
    return options, learned, words(draw, fields[:shared]), [words(draw, fields[shared:]) for _ in range(count)]


def examples(lines: list[str], fields: tuple[str, ...]) -> _native.Examples:
    return parsed("".join(f"1 {line} |{fields[0]}\n" for line in lines), fields)


@given(requests())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_candidates_score_as_whole_rows_do(request_: tuple[dict[str, Any], str, str, list[str]]) -> None:
    options, learned, shared, candidates = request_
    fields = options["fields"]
    model = DeepFFM(**options)
    model.learn(parsed(learned, fields))
    whole = model.predict(examples([f"{shared} {c}" for c in candidates], fields))
    for simd in ("scalar", model.simd):
        assert model._native.use(simd)
        context = model.context(examples([shared], fields))
        assert model.score(context, examples(candidates, fields)).tobytes() == whole.tobytes()
        # A second request meets what the first left in the scratch memory.
        again = model.score(context, examples(candidates[::-1], fields))
        assert again.tobytes() == whole[::-1].tobytes()


def test_a_model_that_only_predicts_scores_the_same_in_half_the_memory(tmp_path: Any) -> None:
    model = DeepFFM(FIELDS, context=FIELDS[:6], hidden=(8,), bits=20)
    rows = examples(["|a x |b y |h z", "|c x |i y:2"], FIELDS)
    model.learn(rows)
    cb.publish.pack(model, tmp_path / "m.fbw")
    full, served = (DeepFFM.load(tmp_path / "m.fbw", learns=learns) for learns in (True, False))
    assert served.predict(rows).tobytes() == full.predict(rows).tobytes()
    assert served.context_fields == list(FIELDS[:6])
    assert served.bytes < 0.6 * full.bytes
    for refused in (lambda: served.learn(rows), lambda: served.save(tmp_path / "no.ffm")):
        with pytest.raises(
            cb.errors.PlanError,
            match=r"can only predict, .*; to train or save it, load it again with cb\.DeepFFM\.load",
        ):
            refused()
    assert not (tmp_path / "no.ffm").exists()


def test_a_context_of_other_weights_is_refused() -> None:
    model = DeepFFM(FIELDS, context=FIELDS[:6], bits=12)
    other = DeepFFM(FIELDS, context=FIELDS[:6], bits=12)
    context, candidates = model.context(examples(["|a x"], FIELDS)), examples([], FIELDS)
    assert len(model.score(context, candidates)) == 0
    with pytest.raises(cb.errors.DataError, match="with other weights"):
        other.score(context, candidates)
    model.learn(examples(["|a x |h y"], FIELDS))
    with pytest.raises(cb.errors.DataError, match="with other weights"):
        model.score(context, candidates)


def test_fields_on_the_wrong_side_are_refused() -> None:
    model = DeepFFM(FIELDS, context=("c", "a"), bits=12)
    assert model.fields == ["c", "a", *"bdefghijk"]
    assert model.context_fields == ["c", "a"]
    order = tuple(model.fields)
    with pytest.raises(cb.errors.DataError, match="a context has a field of candidates"):
        model.context(parsed("1 |c x |b y\n", order))
    with pytest.raises(cb.errors.DataError, match="one example"):
        model.context(parsed("1 |c x\n1 |c x\n", order))
    with pytest.raises(cb.errors.DataError, match="a candidate has a field of the context"):
        model.score(model.context(parsed("1 |c x\n", order)), parsed("1 |a x\n", order))
    with pytest.raises(cb.errors.PlanError, match="'z', which is not a field"):
        DeepFFM(FIELDS, context=["z"])
    with pytest.raises(cb.errors.PlanError, match="two fields have the name"):
        DeepFFM(FIELDS, context=["a", "a"])
    with pytest.raises(cb.errors.PlanError, match="expected a Batch or Examples"):
        model.context({"a": 1})


def schema_of(names: list[str], dense: list[str]) -> Schema:
    return Schema(tuple(Field(n, n, False) for n in names), tuple((n, 1) for n in dense), False, False, False)


def test_batches_give_only_the_fields_that_are_asked() -> None:
    def batch(names: list[str], rows: int, values: list[int], dense: list[str]) -> Batch:
        schema = schema_of(names, dense)
        ragged = {n: Ragged(np.array(values[:rows], np.int64), np.arange(rows + 1)) for n in names}
        return Batch(schema, rows, None, np.full((rows, len(dense)), 0.5, np.float32), ragged, None)

    schema = schema_of(["ad", "user"], ["bid", "age"])
    model = DeepFFM(schema, context=["user", "age"], bits=12, ffm_init=1.0)
    context = model.context(batch(["user"], 1, [7], ["age"]))
    scores = model.score(context, batch(["ad"], 3, [1, 2, 3], ["bid"]))
    whole = batch(["ad"], 3, [1, 2, 3], ["bid", "age"])
    whole = Batch(schema, 3, None, whole.dense, whole.sparse | {"user": Ragged(np.full(3, 7), np.arange(4))}, None)
    assert scores.tobytes() == model.predict(whole).tobytes()
    with pytest.raises(cb.errors.PlanError, match="field 'age' is not in this batch"):
        model.context(batch(["user"], 1, [7], []))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: cb.DeepFFM(["a", "b"], context=iter(["a"]), bits=8),
            "context= must be a list of field names, got <list_it",
        ),
        (lambda: cb.DeepFFM(["a", "b"], context="a", bits=8), "context= must be a list of field names, got 'a'"),
        (lambda: cb.DeepFFM(["a", "b"], context=None, bits=8), "context= must be a list of field names, got None"),
        (lambda: cb.DeepFFM(5, bits=8), "fields= must be a list of names, got 5"),
        (
            lambda: cb.DeepFFM(["a", "b"], bits=8).score(None, None),
            "score needs the result of this model's `context` method, got N",
        ),
        (
            lambda: cb.ffm.ExampleText("x", interactions=5),
            "interactions= must be a list of lists of field names, .* got 5",
        ),
        (
            lambda: cb.ffm.ExampleText("x", fields=["a"], interactions=[5]),
            "an interaction must have two or more fields.* got 5",
        ),
        (lambda: cb.ffm.ExampleText("x", fields=5), "fields= must be a list of names, got 5"),
        (lambda: cb.ffm.ExampleText("x", ignore=5), "ignore= must be a list of field names, got 5"),
    ],
)
def test_arguments_of_other_kinds_are_refused_in_our_words(make: Any, said: str) -> None:
    with pytest.raises(cb.errors.PlanError, match=said):
        make()


def test_names_may_come_from_an_iterator() -> None:
    assert cb.DeepFFM(iter(["a", "b"]), bits=8).fields == ["a", "b"]
