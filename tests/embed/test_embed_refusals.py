"""What tables, vector files, Model Servers and their optimizers refuse, and the words in which they do."""

from __future__ import annotations

import errno
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

import ctrbox as cb
from ctrbox import col
from ctrbox.embed.embedder import Row
from ctrbox.embed.settings_of_tables import MOST_PERIODS, checked_counts
from ctrbox.embed.ssd import repair, several_dims
from ctrbox.embed.ssd.folder import absolute, described, saved_part
from ctrbox.embed.vectors import model_server_file
from ctrbox.embed.vectors.model_server_file import read_server, write_server
from ctrbox.embed.vectors.published_table import PublishedTable
from ctrbox.embed.vectors.submodels import IMAGE, kind_of_shapes, unfilled
from ctrbox.embed.vectors.vector_file import HEAD
from ctrbox.errors import BudgetError, DataError, PlanError, SourceError
from ctrbox.optimizers.of_dense_weights import dense_optimizer, optimizer_state, restore_optimizer

KEYS = np.array([3, 5])
VECTORS = np.arange(8, dtype=np.float32).reshape(2, 4)


# ---- dense optimizers


def weights(count: int = 2) -> list[nn.Parameter]:
    return [nn.Parameter(torch.ones(3)) for _ in range(count)]


MUST_BE = "optimizer must be cb.optim.Adam(…), cb.optim.AdamW(…), cb.Adagrad(…), cb.optim.SGD(…) or a function"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (cb.optim.Adam, f"{MUST_BE}, got Adam"),
        (0.1, f"{MUST_BE}, got 0.1"),
        (lambda w: "x", "the optimizer function returned a str; expected a torch optimizer"),
    ],
)
def test_a_dense_optimizer_is_one_of_ours_or_makes_one(given: Any, says: str) -> None:
    with pytest.raises(PlanError) as caught:
        dense_optimizer(given)(weights())
    assert says in str(caught.value)


def test_a_state_belongs_to_an_optimizer(tmp_path: Path) -> None:
    optimizer = torch.optim.Adam(weights())
    for group in optimizer.param_groups:
        for one in group["params"]:
            one.grad = torch.ones(3)
    optimizer.step()
    tensors, plain = optimizer_state(optimizer)
    restore_optimizer(torch.optim.Adam(weights()), tensors, plain, tmp_path)
    with pytest.raises(
        DataError,
        match="contains the optimizer state of more weights than this model has; load it with the model that it was "
        "saved with",
    ):
        restore_optimizer(torch.optim.Adam(weights(1)), tensors, plain, tmp_path)
    for name in ("exp_avg", "x.exp_avg", "0.", ".x"):
        with pytest.raises(
            DataError, match=f"holds an optimizer state named {name!r}; expected one such as '0.exp_avg'"
        ):
            restore_optimizer(torch.optim.Adam(weights()), {name: torch.ones(3)}, {}, tmp_path)


# ---- tables


def test_the_clock_of_a_table_has_a_last_period() -> None:
    table = cb.MemoryTable(2, counters=cb.tables.Counters())
    table.open(Row(2))
    table.advance(MOST_PERIODS)
    table.advance(0)
    with pytest.raises(PlanError, match=f"the table is in period {MOST_PERIODS:,}, so it cannot advance by 1 periods"):
        table.advance()
    assert table.clock == MOST_PERIODS


def test_counts_are_a_number_a_key() -> None:
    assert checked_counts("shows", None, KEYS) is None
    for wrong in ([[1], [1, 2]], [1], [[1, 2]], ["a", "b"], [True, False]):
        with pytest.raises(DataError, match=r"expected shows of shape \(2,\), one number per key"):
            checked_counts("shows", wrong, KEYS)


def test_a_published_table_is_only_looked_up() -> None:
    table = PublishedTable(KEYS, VECTORS, Row(4))
    assert table.pull(KEYS).tolist() == VECTORS.tolist()
    table.open(Row(4))
    for ask, says in (
        (lambda: table.push(KEYS, VECTORS), "a published table cannot be trained; train the table of the run instead"),
        (lambda: table.save("x"), "a published table cannot be saved; copy the file of its version instead"),
        (lambda: table.restore("x"), "a published table cannot be restored; open the file of its version instead"),
        (lambda: table.open(Row(5)), "this published table holds rows of .*, but the model reads "),
    ):
        with pytest.raises(PlanError, match=says):
            ask()
    for rows in (VECTORS[:, :3], VECTORS[:1], VECTORS.astype(np.float64)):
        with pytest.raises(
            DataError, match=r"rows of 2 keys have shape \(.*\) and type float\d\d; expected .* for each key"
        ):
            PublishedTable(KEYS, rows, Row(4))


def test_a_sparse_table_of_first_order_weights_is_opened_first(tmp_path: Path) -> None:
    with cb.SparseTable(tmp_path / "t", 0, ram="1MB") as table:
        with pytest.raises(
            PlanError,
            match="a table with dim=0 holds only first-order weights, and this table was opened without them; call open",
        ):
            table.pull(KEYS)
        table.open(Row(0, linear=True))
        assert table.pull(KEYS).shape == (2, 1)


def test_paths_of_tables_are_text(tmp_path: Path) -> None:
    assert absolute(tmp_path / "t") == tmp_path / "t"
    for path in ("", "a\0b"):
        with pytest.raises(PlanError, match="a table needs the path of a folder, got "):
            absolute(path)
    with pytest.raises(SourceError, match="is not UTF-8; rename it, or choose another path"):
        absolute(b"/tmp/\xff".decode("utf-8", "surrogateescape"))


def test_a_folder_of_tables_of_several_dims(tmp_path: Path) -> None:
    with cb.tables.SparseTables(tmp_path / "t", (2, 4), ram="4MB") as tables:
        tables.save(tmp_path / "saved")
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "file").write_text("")
        with pytest.raises(
            PlanError, match="other contains other files than tables, so it is not replaced; choose a new folder"
        ):
            tables.save(tmp_path / "other")
        tables._process += 1
        with pytest.raises(
            PlanError, match="were opened in the parent process before a fork; open them in one process only"
        ):
            tables.checkpoint()
        tables._process -= 1
    with pytest.raises(PlanError, match="are closed"):
        tables.checkpoint()
    assert saved_part(tmp_path / "saved", 2).is_dir()
    with pytest.raises(PlanError, match="holds tables of dims 2, 4, not 8"):
        saved_part(tmp_path / "saved", 8)
    with pytest.raises(SourceError, match=r"saved holds tables of several dims \(cb\.tables\.SparseTables\)"):
        described(tmp_path / "saved")


def test_the_list_of_tables_must_be_readable(tmp_path: Path) -> None:
    assert several_dims.named_in(tmp_path) is None
    (tmp_path / "TABLES").write_bytes(b"\xff")
    with pytest.raises(SourceError, match=r"cannot read .*TABLES: "):
        several_dims.named_in(tmp_path)
    (tmp_path / "LOCK").mkdir()
    with pytest.raises(SourceError, match=r"cannot use .* as the folder of tables: Is a directory"):
        several_dims._locked(tmp_path)


def test_a_table_is_repaired_from_another(tmp_path: Path) -> None:
    with cb.SparseTable(tmp_path / "t", 2, ram="1MB") as table:
        table.pull(KEYS)
    (tmp_path / "link").symlink_to(tmp_path / "t")
    for same in (tmp_path / "t", tmp_path / "link"):
        with pytest.raises(
            SourceError, match="cannot be repaired from itself; pass a copy that was saved earlier, on another disk"
        ):
            repair.repair(tmp_path / "t", same)


def test_a_sparse_table_that_is_not_there_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"missing"):
        cb.SparseTable.load(tmp_path / "missing", read_only=True)


# ---- sub-models and their files


def test_a_file_of_a_model_server_describes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "server"
    write_server(path, {"a": torch.ones(2)}, {"b": 1})
    tensors, about = read_server(path)
    assert (list(tensors), about) == (["a"], {"b": 1})
    with pytest.raises(SourceError, match=r"cannot read .*missing: No such file or directory"):
        read_server(tmp_path / "missing")
    with monkeypatch.context() as changed:
        changed.setattr(model_server_file, "dict", lambda about: [1], raising=False)
        write_server(path, {}, {})
    with pytest.raises(DataError, match="server is damaged: it does not describe its sub-model"):
        read_server(path)
    with monkeypatch.context() as changed:
        changed.setattr(model_server_file, "save", lambda tensors: b"\0" * 16)
        write_server(path, {}, {})
    with pytest.raises(DataError, match="server is damaged: "):
        read_server(path)


def test_weights_of_a_sub_model_fit_together() -> None:
    shapes = {n: tuple(t.shape) for n, t in cb.tables.ImageEmbedding(5, (4,), 3).state_dict().items()}
    assert kind_of_shapes(shapes) == IMAGE
    assert {n: tuple(t.shape) for n, t in unfilled(IMAGE, shapes).state_dict().items()} == shapes
    with pytest.raises(DataError, match="there is no sub-model of kind 'sound'; expected "):
        unfilled("sound", shapes)
    name = next(n for n in shapes if n.endswith("bias"))
    with pytest.raises(
        DataError, match=rf"weight '{name}' of a sub-model of kind 'image' has shape \(9,\), expected \(\d,\)"
    ):
        unfilled(IMAGE, {**shapes, name: (9,)})


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> cb.tables.VectorFile:
    data = {"k": np.arange(1, 5), "v": np.ones((4, 3), np.float32)}
    return cb.tables.write_vectors(tmp_path_factory.mktemp("vectors") / "v", data, key="k", vector="v")


def test_a_sub_model_gives_one_vector_a_row(vectors: cb.tables.VectorFile) -> None:
    class Moody(nn.Module):
        """Two rows are answered as they should be; later ones are not."""

        def __init__(self) -> None:
            super().__init__()
            self.inner, self.moody = nn.Linear(3, 2), False

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.inner(rows)
            return out[:, :1] if self.moody else out

    model = Moody()
    server = cb.tables.ModelServer(vectors, model)
    server.open(Row(2))
    server.submodel.moody = True  # type: ignore[assignment]
    with pytest.raises(PlanError, match=r"the sub-model returned shape \(3, 1\) for 3 rows; expected \(3, 2\)"):
        server.pull(np.array([1, 2, 3]))


def test_the_optimizer_of_a_sub_model_has_numbers_of_its_weights(vectors: cb.tables.VectorFile) -> None:
    server = cb.tables.ModelServer(vectors, nn.Linear(3, 2))
    server._check_states({"0.exp_avg": torch.ones(2, 3), "1.step": torch.tensor(1.0)}, {"0.step": 1}, "f")
    server._check_states({}, None, "f")
    for plain in ([1], {"0.step": "x"}):
        with pytest.raises(DataError, match="f is damaged: its optimizer state is "):
            server._check_states({}, plain, "f")
    for name, shape in (("0.exp_avg", (3, 2)), ("2.exp_avg", (2, 3)), ("x.exp_avg", (2, 3))):
        with pytest.raises(DataError, match=rf"f holds the state of another optimizer: '{name}' has shape "):
            server._check_states({name: torch.ones(shape)}, {}, "f")


# ---- vector files


@pytest.mark.parametrize(
    ("data", "options", "says"),
    [
        ({"k": [1], "v": [[1.0]]}, {"key": 5}, "key must name a column or be an expression such as"),
        (5, {}, "vectors come from a Parquet file or folder, from Arrow or from a dict of columns, got"),
        ({"k": [1], "v": ["x"]}, {}, "column 'v' is string; expected lists of numbers"),
        ({"k": [1], "v": [["x"]]}, {}, "column 'v' is list<item: string>; expected lists of numbers"),
        ({"k": [1], "v": [[]]}, {}, "has 0 numbers; expected 1 to"),
        (
            {"k": [1], "v": [[1.0]]},
            {"key": col("k").cast("float")},
            "the key expression gives double; expected keys, such as",
        ),
    ],
)
def test_vectors_that_cannot_be_written(tmp_path: Path, data: Any, options: dict[str, Any], says: str) -> None:
    given = data
    if isinstance(data, dict):
        kind = pa.list_(pa.float32()) if data["v"] == [[]] else None
        given = pa.table({"k": pa.array(data["k"]), "v": pa.array(data["v"], kind)})
    with pytest.raises((PlanError, DataError)) as caught:
        cb.tables.write_vectors(tmp_path / "v", given, **{"key": "k", "vector": "v", **options})
    assert says in str(caught.value)


def test_tokens_are_whole_numbers(tmp_path: Path) -> None:
    floats = pa.table({"k": [1], "t": pa.array([[1.0]], pa.list_(pa.float32()))})
    with pytest.raises(PlanError, match="tokens 't' are float32; expected whole numbers above 0"):
        cb.tables.write_tokens(tmp_path / "v", floats, key="k", tokens="t", width=2)


def test_a_folder_without_parquet_has_no_vectors(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match="empty holds no Parquet files"):
        cb.tables.write_vectors(tmp_path / "v", tmp_path / "empty", key="k", vector="v")


def test_a_head_that_no_file_of_vectors_has(vectors: cb.tables.VectorFile, tmp_path: Path) -> None:
    data = bytearray(Path(vectors.path).read_bytes())
    names = ["magic", "version", "kind", "width", "shard", "of", "zero", "rows", "crc"]
    fields = dict(zip(names, HEAD.unpack_from(data), strict=True))
    for changed in ({"kind": 99}, {"width": 0}, {"shard": 1}, {"of": 0}):
        made = HEAD.pack(*{**fields, **changed}.values())
        file = tmp_path / "v"
        file.write_bytes(made + struct.pack("<I", zlib.crc32(made)) + bytes(data[HEAD.size + 4 :]))
        with pytest.raises(SourceError, match=r"v is damaged: its header says kind \d+, width \d+, shard \d+ of \d+"):
            cb.tables.VectorFile(file)


def test_a_file_of_vectors_tells_its_shards(vectors: cb.tables.VectorFile, tmp_path: Path) -> None:
    assert repr(vectors) == f"VectorFile({str(vectors.path)!r}, 4 x 3 float32)"
    data = {"k": np.arange(1, 5), "v": np.ones((4, 3), np.float32)}
    parts = cb.tables.write_vectors(tmp_path / "v", data, key="k", vector="v", shards=2)
    assert repr(parts) == f"VectorFile({str(parts.path)!r}, 4 x 3 float32, 2 of 2 shards)"


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (errno.ENOSPC, "the disk of {0} is full; no data was lost: free some space and continue"),
        (errno.EDQUOT, "the disk of {0} is full; no data was lost: free some space and continue"),
        (errno.EIO, "cannot use the table in {0}: Input/output error"),
    ],
)
def test_a_table_says_whether_its_disk_is_full_or_fails(tmp_path: Path, number: int, says: str) -> None:
    with cb.SparseTable(tmp_path / "t", 2, ram="1MB", threads=1) as table:
        with pytest.raises(SourceError) as caught, table._calling():
            raise OSError(number, os.strerror(number))
        assert str(caught.value) == says.format(table.path)
        with pytest.raises(SourceError) as caught, table._calling():
            raise OSError("no number")
        assert str(caught.value) == f"cannot use the table in {table.path}: no number"
        with (
            pytest.raises(BudgetError, match="this machine does not have ram=1,048,576 bytes of free memory"),
            table._calling(),
        ):
            raise MemoryError
