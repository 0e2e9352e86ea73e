"""What embedders declare: the defaults, the declarations of our own, and wrong ones."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ctrbox as cb
import ctrbox.embed
from ctrbox.embed.embedder import Embedder, FullEmbedder
from ctrbox.embed.embedder_traits import PROMISED, Initial, settings_of, traits_of
from ctrbox.errors import PlanError
from tests.train.worlds import checkerboard, plan_of

SRC = Path(cb.__file__).parent


class Smallest:
    """The least that an embedder of one's own has to have: vectors of 4 floats that a gradient moves."""

    dim, nbytes = 4, 0

    def __init__(self) -> None:
        self.rows: dict[int, np.ndarray] = {}
        self.row: Any = None

    def open(self, row: Any) -> None:
        self.row = row

    def prefetch(self, keys: Any) -> None: ...

    def pull(self, keys: Any, *, create: bool = True) -> np.ndarray:
        zeros = np.zeros(self.row.width, np.float32)
        return np.stack([self.rows.get(key, zeros) for key in keys.tolist()]).reshape(-1, self.row.width)

    def push(self, keys: Any, gradients: np.ndarray) -> None:
        for key, row, gradient in zip(keys.tolist(), self.pull(keys), gradients, strict=True):
            self.rows[key] = row - np.float32(0.01) * gradient

    def save(self, path: Path) -> None: ...
    def restore(self, path: Path) -> None: ...
    def __len__(self) -> int:
        return len(self.rows)


def declaring(traits: Any, **methods: Any) -> Any:
    return type("Mine", (Smallest,), {"traits": traits, **methods})()


def test_an_embedder_that_declares_nothing_has_the_defaults() -> None:
    assert isinstance(Smallest(), Embedder)
    assert traits_of(Smallest()) == cb.tables.Traits()


def test_our_own_embedders_have_the_methods_that_their_traits_promise(tmp_path: Path) -> None:
    memory = cb.MemoryTable(4, init=0.5, seed=3, counters=cb.tables.Counters())
    found = traits_of(memory)
    assert (found.shows, found.counts, found.copies, found.look_ahead) == (True, True, True, False)
    assert found.initial == Initial(0.5, 3)
    assert not traits_of(cb.MemoryTable(4)).shows
    with cb.SparseTable(tmp_path / "table", 4, ram="64MB") as sparse:
        found = traits_of(sparse)
        assert (found.look_ahead, found.statistics, found.folder) == (True, True, tmp_path / "table")
    rows = {"key": np.arange(1, 5), "vector": np.ones((4, 3), np.float32)}
    cb.tables.write_vectors(tmp_path / "v.ctrvec", rows, key="key", vector="vector")
    server = cb.tables.ModelServer(tmp_path / "v.ctrvec", torch.nn.Linear(3, 2))
    found = traits_of(server)
    assert (found.gradients, found.initial, found.clears) == ("mean", Initial(0.0, 0), False)
    assert found.objects is not None
    assert found.objects.data is server.data
    assert list(settings_of(server)) == ["row", "optimizer", "seed", "identity"]
    assert list(settings_of(memory)) == ["row", "optimizer", "linear", "init", "seed"]


@pytest.mark.parametrize(
    ("traits", "message"),
    [
        ({"scales_lr": True}, "Mine.traits must be a cb.tables.Traits, got dict"),
        (cb.tables.Traits(scales_lr=True), r"Mine declares the trait 'scales_lr', which needs a method scale_lr\(\)"),
        (
            cb.tables.Traits(shows=True),
            r"Mine declares the trait 'shows', so its method push\(\) must take the argument shows=",
        ),
        (
            cb.tables.Traits(look_ahead=True, folder=Path()),
            r"the trait 'look_ahead', so its method prefetch\(\) must take the argument next_use=",
        ),
        (
            cb.tables.Traits(settings=("seed",)),
            "Mine declares the setting 'seed' in its traits, but it has no such attribute",
        ),
    ],
)
def test_a_declaration_that_is_not_true_names_the_embedder_and_what_is_missing(traits: Any, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        traits_of(declaring(traits))


def test_a_declaration_that_contradicts_itself_is_refused() -> None:
    with pytest.raises(PlanError, match=r"gradients=\) must be 'sum' or 'mean', got 'total'"):
        cb.tables.Traits(gradients="total")  # type: ignore[arg-type]
    with pytest.raises(PlanError, match=r"look_ahead=True\) needs folder="):
        cb.tables.Traits(look_ahead=True)
    with pytest.raises(PlanError, match=r"publishes=True\) needs initial="):
        cb.tables.Traits(publishes=True)


@pytest.mark.parametrize(("attribute", "now"), [("summed", "gradients='mean'"), ("takes_shows", "shows=True")])
def test_an_attribute_that_traits_replace_is_not_ignored_silently(attribute: str, now: str) -> None:
    mine = Smallest()
    setattr(mine, attribute, True)
    with pytest.raises(PlanError, match=f"Smallest has the attribute '{attribute}' but declares no traits") as met:
        traits_of(mine)
    assert now in str(met.value)


def test_a_class_in_the_place_of_a_table_is_refused() -> None:
    with pytest.raises(PlanError, match=r"a table must be an embedder, such as cb.MemoryTable\(dim=16\), got <class"):
        traits_of(cb.MemoryTable)


def test_every_promised_method_is_part_of_the_protocol() -> None:
    for methods in PROMISED.values():
        for method, keywords in methods:
            assert set(keywords) <= set(inspect.signature(getattr(FullEmbedder, method)).parameters)


def test_a_copy_of_a_table_without_vectors_waits_for_its_model() -> None:
    made = cb.MemoryTable(0, seed=5).like(cb.MemoryTable(0).row, seed=7)
    assert (made.dim, made.seed, made.nbytes) == (0, 7, 0)


# ---- training with an embedder of one's own


def trained(embedder: Any, **options: Any) -> cb.Run:
    plan = plan_of(checkerboard(600))
    torch.manual_seed(0)
    return cb.Trainer(cb.models.LR(plan.schema), embedder).fit(
        plan, batch_size=100, epochs=1, progress=False, **options
    )


class Weights(Smallest):
    dim = 0


def test_the_smallest_embedder_trains_and_predicts() -> None:
    mine = Weights()
    run = trained(mine)
    assert len(mine) > 40
    assert 0.0 < run.metrics["logloss"] < 0.7


def test_an_embedder_of_ones_own_is_told_what_its_traits_ask_for(tmp_path: Path) -> None:
    told: dict[str, list[Any]] = {"next_use": [], "shows": [], "factor": []}

    class Asking(Weights):
        traits = cb.tables.Traits(look_ahead=True, folder=tmp_path, shows=True, scales_lr=True)

        def prefetch(self, keys: Any, *, next_use: Any = None) -> None:
            told["next_use"].append(next_use)

        def push(self, keys: Any, gradients: Any, *, shows: Any = None, clicks: Any = None) -> None:
            told["shows"].append((shows >= clicks).all())
            super().push(keys, gradients)

        def scale_lr(self, factor: float) -> None:
            told["factor"].append(factor)

    trained(Asking(), look_ahead=2, schedule=cb.optim.Decay(0.5, every=1))
    assert told["factor"] == [*(0.5**step for step in range(6)), 1.0]  # the schedule has no say after the training
    assert len(told["next_use"]) == 6
    assert all(one is not None and one.dtype == np.uint8 for one in told["next_use"])
    assert told["shows"] == [True] * 6


# ---- the trainer knows nothing else


def embedder_classes() -> dict[str, type]:
    """Every class of ctrbox.embed that is an embedder or a collection of them, and their common base."""
    found: dict[str, type] = {}
    for module in pkgutil.walk_packages(ctrbox.embed.__path__, "ctrbox.embed."):
        for name, value in vars(importlib.import_module(module.name)).items():
            protocol = isinstance(value, type) and vars(value).get("_is_protocol", False)
            if isinstance(value, type) and not protocol and (hasattr(value, "of_dim") or hasattr(value, "push")):
                found[name] = value
    return {name: cls for name, cls in found.items() if name != "Reading"}  # of a batch, not of a table


def probes(source: str, classes: dict[str, type]) -> list[str]:
    """Lines that ask what class an embedder is of, or which attributes it has."""
    attributes = {name for cls in classes.values() for name in dir(cls) if not name.startswith("_")}
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or len(node.args) < 2:
            continue
        about, second = node.args[:2]
        if node.func.id == "isinstance":
            named = {n.id for n in ast.walk(second) if isinstance(n, ast.Name)}
            named |= {n.attr for n in ast.walk(second) if isinstance(n, ast.Attribute) and ast.unparse(n.value) != "pa"}
            if named & set(classes):
                found.append(f"line {node.lineno}: {ast.unparse(node)}")
        elif node.func.id in ("getattr", "hasattr"):
            of_table = any(word in ast.unparse(about) for word in ("embedder", "table", "server"))
            if of_table or (isinstance(second, ast.Constant) and second.value in attributes):
                found.append(f"line {node.lineno}: {ast.unparse(node)}")
    return found


def test_the_trainer_knows_an_embedder_only_by_its_protocol() -> None:
    classes = embedder_classes()
    assert {"Table", "MemoryTable", "SparseTable", "SparseTables", "GpuTable", "LevelTable", "ModelServer"} <= set(
        classes
    )
    assert (
        len(probes("isinstance(a, MemoryTable | int); getattr(source.embedder, n); hasattr(x, 'scale_lr')", classes))
        == 3
    )
    assert probes("isinstance(a, int); getattr(model, 'config', None); hasattr(frame, 'tocsr')", classes) == []
    for path in sorted((SRC / "train").rglob("*.py")):
        assert probes(path.read_text(encoding="utf-8"), classes) == [], path.name
