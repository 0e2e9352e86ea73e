"""Models called natively: what they refuse by name, which Python does not let through."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ctrbox import _native

native: Any = _native


def model(fields: int = 2, context: int = 1) -> Any:
    settings = native.FfmSettings()
    settings.fields, settings.context, settings.k, settings.bits, settings.hidden = fields, context, 2, 6, []
    return native.DeepFfm(settings)


def examples(rows: int, labels: Any = (), dense: int = 0) -> Any:
    """Rows of one key of field 0."""
    keys = np.arange(1, rows + 1), np.arange(rows + 1)
    label = np.array(labels, np.float32)
    return native.Examples.from_batch([keys], np.ones((rows, dense), np.float32), [7] * (1 + dense), label, label[:0])


def test_only_examples_with_labels_are_learned() -> None:
    made = model(context=0)
    for given in (
        examples(2),
        native.Examples.from_batch([], np.zeros((2, 0), np.float32), [], *[np.zeros(0, np.float32)] * 2),
    ):
        with pytest.raises(ValueError, match="an example has no label"):
            made.learn(given, 1, False)
    scores, broken = made.learn(examples(2, [0.0, 1.0]), 1, False)
    assert (len(scores), broken) == (2, -1)


def test_a_context_is_one_example_of_the_same_weights() -> None:
    made = model()
    for count in (0, 2):
        with pytest.raises(ValueError, match="a context must be exactly one example"):
            made.context(examples(count))
    context = made.context(examples(1))
    nothing = examples(0)
    assert made.score(context, nothing)[0].size == 0
    told = "the context was made with other weights: of another model, or of this one before it learned"
    with pytest.raises(ValueError) as refused:
        model().score(context, nothing)
    assert str(refused.value) == told
    made.learn(examples(1, [1.0]), 1, False)
    with pytest.raises(ValueError) as refused:
        made.score(context, nothing)
    assert str(refused.value) == told


def batch(rows: int) -> Any:
    """A native batch of one field with one key a row."""
    plan = native.BatchPlan()
    plan.keys("k")
    program = native.Program(8)
    number = program.literal("i", 3, 0.0, b"")
    program.emit(0, program.call("hash", "i", [number], ["k"], [False], [], [], [], None, False)[0])
    program.finish()
    return program.run_batch([(rows, [])], plan, [])


def test_candidates_of_a_batch_are_scored_with_the_context_of_the_same_weights() -> None:
    made = model()
    context_fields, fields = native.ModelFields([0], [7], [0]), native.ModelFields([0], [9], [1])
    for count in (0, 2):
        with pytest.raises(ValueError, match="a context must be exactly one example"):
            context_fields.context(made, batch(count))
    context = context_fields.context(made, batch(1))
    scores, broken = fields.score(made, context, batch(3))
    assert (scores.tolist(), broken) == ([scores[0]] * 3, -1)
    with pytest.raises(ValueError) as refused:
        fields.score(model(), context, batch(3))
    assert str(refused.value) == "the context was made with other weights"


def test_kinds_of_keys_are_known_and_one_a_field(tmp_path: Any) -> None:
    made = model()
    with pytest.raises(ValueError, match="a kind of key has an unknown name"):
        made.save(str(tmp_path / "m"), ["a", "b"], 0, ["none such", "none such"])
    kind = next(iter(native.KEY_KINDS))
    name = kind[0] if isinstance(kind, tuple) else kind
    for kinds in ([name], [name] * 3):
        with pytest.raises(ValueError, match="expected one kind of key for each field"):
            made.save(str(tmp_path / "m"), ["a", "b"], 0, kinds)
    for kinds in ([], [name] * 2):
        made.save(str(tmp_path / "m"), ["a", "b"], 5, kinds)
        _, fields, learned, _ = native.DeepFfm.load(str(tmp_path / "m"))
        assert (fields, learned) == (["a", "b"], 5)


def test_the_product_of_an_interaction_is_finite() -> None:
    for value, fits in ((1e19, True), (1e20, False)):
        dense = np.full((1, 2), value, np.float32)
        rows = native.Examples.from_batch([], dense, [7, 9], *[np.zeros(0, np.float32)] * 2)
        crossed = [([0, 1], 2, 11)]
        if fits:
            assert rows.crossed(crossed).features == 3
        else:
            with pytest.raises(ValueError, match="the product of an interaction's values is not finite"):
                rows.crossed(crossed)


def test_vectors_and_logs_have_the_width_of_what_they_are_for() -> None:
    rows = np.eye(3, dtype=np.float32)
    for width in (2, 4):
        with pytest.raises(ValueError, match="the vector and the rows have different widths"):
            native.best_products(rows, np.ones(width, np.float32), None, 1, 1)
    with pytest.raises(ValueError, match="logs are one a number"):
        native.dense_logs(np.ones(3, np.float32), np.ones(2, np.float32), 1)
