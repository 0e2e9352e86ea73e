"""Stores by themselves: how often a read is tried, which store a path is on, which files a pattern names."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pyarrow.fs as pafs
import pytest
from fsspec.implementations.local import LocalFileSystem
from hypothesis import given
from hypothesis import strategies as st

from ctrbox.errors import SourceError
from ctrbox.files import filesystems
from ctrbox.files.filesystems import (
    RETRY_PAUSES_S,
    RETRY_TOTAL_S,
    Store,
    natural,
    naturally_sorted,
    open_store,
    path_of_uri,
)
from ctrbox.files.folder_manifest import MANIFEST, StoredFile, manifest_text, object_name
from tests.views.test_refused_sources import settings

HASH = "ab" * 32


class Clock:
    """A clock that only sleeping and failing tries move."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept.append(seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(filesystems, "time", made)
    return made


class Failing:
    """An action that fails so many times, each after some seconds, and then returns 7."""

    def __init__(self, clock: Clock, times: int, seconds: float = 0.0, error: Exception | None = None) -> None:
        self.clock, self.times, self.seconds, self.tries = clock, times, seconds, 0
        self.error = OSError("no answer.\nmore") if error is None else error

    def __call__(self) -> int:
        self.tries += 1
        if self.tries <= self.times:
            self.clock.now += self.seconds
            raise self.error
        return 7


# ---- tries of a store


@pytest.mark.parametrize("error", [OSError("no answer."), RuntimeError("no answer.")])
def test_a_remote_store_is_tried_three_times_and_a_disk_once(clock: Clock, error: Exception) -> None:
    remote, disk = Store(pafs.LocalFileSystem(), "s3://", remote=True), Store(pafs.LocalFileSystem())
    for times in (0, 1, 2):
        clock.slept = []
        assert remote.attempt("s3://a/b", Failing(clock, times, error=error)) == 7
        assert clock.slept == list(RETRY_PAUSES_S[:times])
    clock.now, failing = 0.0, Failing(clock, 3, error=error)
    with pytest.raises(SourceError, match=r"^s3://a/b cannot be read \(3 tries in 1\.5 s\): no answer$"):
        remote.attempt("s3://a/b", failing)
    assert failing.tries == 3
    failing = Failing(clock, 1, error=error)
    with pytest.raises(SourceError, match=r"^here cannot be read: no answer$"):
        disk.attempt("here", failing)
    assert failing.tries == 1


@pytest.mark.parametrize(("seconds", "tries"), [(RETRY_TOTAL_S - 0.3, 2), (RETRY_TOTAL_S - 0.2, 1)])
def test_no_try_begins_after_eight_seconds(clock: Clock, seconds: float, tries: int) -> None:
    failing = Failing(clock, 9, seconds)
    with pytest.raises(SourceError, match=rf"\({tries} tries in"):
        Store(pafs.LocalFileSystem(), "s3://", remote=True).attempt("x", failing)
    assert failing.tries == tries


def test_a_file_that_is_gone_is_not_asked_for_again(clock: Clock) -> None:
    failing = Failing(clock, 1, error=FileNotFoundError("gone"))
    with pytest.raises(SourceError, match=r"^x no longer exists, although it did when the view was opened"):
        Store(pafs.LocalFileSystem(), "s3://", remote=True).attempt("x", failing)
    assert (failing.tries, clock.slept) == (1, [])


# ---- which store a path is on


def test_paths_are_told_apart_by_their_scheme() -> None:
    store, inside = open_store("data/log.parquet")
    assert (store.prefix, store.remote, inside) == ("", False, "data/log.parquet")
    assert open_store("~/x")[1] == str(Path("~/x").expanduser())
    assert open_store("file:///a/b?c#d")[1] == "/a/b?c#d" == path_of_uri("file://host/a/b?c#d")
    for path, message in (
        ("gs://a/b", r"^'gs://a/b' is on gs://, expected a local path, s3:// or hdfs://"),
        ("hdsf://a/b", r"or hdfs://; nearest: 'hdfs' \(other stores"),
    ):
        with pytest.raises(SourceError, match=message):
            open_store(path)
    with pytest.raises(
        SourceError,
        match=r"^storage_options= can be used only with s3:// and hdfs:// paths, but 'a' "
        r"is a local path",
    ):
        open_store("a", None, {"region": "x"})
    own = pafs.LocalFileSystem()
    store, inside = open_store("mine://a/b", own)
    assert (store.fs is own, store.prefix, store.remote, inside, store.show("x")) == (
        True,
        "mine://",
        False,
        "a/b",
        "mine://x",
    )
    assert open_store("a/b", pafs.SubTreeFileSystem("/", own))[0] == Store(pafs.SubTreeFileSystem("/", own), "", True)
    with pytest.raises(SourceError, match=r"^filesystem is a str; expected a pyarrow or fsspec filesystem"):
        open_store("a", "b")


def test_an_s3_path_takes_its_options_from_its_query_and_refuses_others() -> None:
    with pytest.raises(SourceError, match=r"^storage option 'regoin' is not an option for S3; .*nearest: 'region'"):
        open_store("s3://a/b", None, {"regoin": "x"})
    with pytest.raises(SourceError, match=r"^storage option 'x' is not an option for S3"):
        open_store("s3://a/b?x=1&region=eu")
    with pytest.raises(SourceError, match=r"^'s3:///b' has no bucket name; expected s3://bucket/path"):
        open_store("s3:///b", None, {"region": "eu"})
    for path, inside in (("s3://a/b?region=eu&endpoint=http://h:1", "a/b"), ("s3a://a/b?c", "a/b?c")):
        store, found = open_store(path, None, {"region": "eu", "anonymous": True})
        assert (store.prefix, store.remote, found) == ("s3://", True, inside)
        assert store.fs.region == "eu"


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["part-10", "part-2", "part-1"], ["part-1", "part-2", "part-10"]),
        (["b1", "a2", "a10"], ["a2", "a10", "b1"]),
        (["x", "x1", "1"], ["x", "x1", "1"]),
        (["day=2/p", "day=10/p"], ["day=2/p", "day=10/p"]),
    ],
)
def test_files_come_in_the_order_of_their_numbers(names: list[str], expected: list[str]) -> None:
    assert sorted(names, key=natural) == expected


def test_writers_own_files_and_folders_are_hidden(tmp_path: Path) -> None:
    for name in ("a.csv", "_b.csv", ".c.csv", "_temporary/d.csv", "x/.e/f.csv", "_k=1/g.csv", "x/h2.csv", "x/h10.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("a\n1\n")
    root = str(tmp_path)

    def found(pattern: str) -> list[str]:
        return [file.path.removeprefix(root + "/") for file in filesystems.find_files([root + pattern], None, None)]

    assert found("") == found("/") == ["_k=1/g.csv", "a.csv", "x/h2.csv", "x/h10.csv"]
    assert found("/*.csv") == ["a.csv"]
    assert found("/_*.csv") == ["_b.csv"]
    assert found("/x/h?.csv") == ["x/h2.csv"]
    assert found("/**/h*.csv") == ["x/h2.csv", "x/h10.csv"]
    assert found("/x*") == ["x/h2.csv", "x/h10.csv"]
    (tmp_path / "empty").mkdir()
    for pattern, message in (
        ("/b.csv", rf"^{root}/b\.csv does not exist"),
        ("/a.cvs", r"nearest: 'a\.csv'"),
        ("/q*", rf"^{root}/q\* matches no file"),
        ("/empty", rf"^folder {root}/empty holds no data files"),
    ):
        with pytest.raises(SourceError, match=message):
            found(pattern)


@given(st.text("0a9/٣.\udc80²", max_size=8), st.lists(st.text("0123456789٣x", min_size=1, max_size=8), max_size=12))
def test_paths_that_differ_in_digits_alone_have_their_natural_order(shape: str, digits: list[str]) -> None:
    for names in (
        digits,
        ["".join(few[:1] if c == "0" else few[-1:] if c == "9" else c for c in shape) for few in digits],
    ):
        assert naturally_sorted(names) == sorted(names, key=natural)


# ---- HDFS, without asking one


def client(made: list[tuple[str, Any, Any, dict[str, str]]], error: Exception | None = None) -> ModuleType:
    """Return a module in the place of the HDFS client, which notes what it was asked for."""

    def of(kind: str) -> Any:
        class Client(LocalFileSystem):  # type: ignore[misc]
            cachable = False

            def __init__(self, host: Any, port: Any, **settings: str) -> None:
                made.append((kind, host, port, settings))
                if error is not None:
                    raise error
                super().__init__()

        return Client

    module = ModuleType("hdfs_native")
    module.fsspec = SimpleNamespace(HdfsFileSystem=of("hdfs"), ViewfsFileSystem=of("viewfs"))  # type: ignore[attr-defined]
    return module


def test_paths_of_hdfs_are_opened_by_the_client_of_their_scheme(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[str, Any, Any, dict[str, str]]] = []
    monkeypatch.setitem(sys.modules, "hdfs_native", client(made))
    for path, kind, host, port, prefix, inside in (
        ("hdfs://name:9000/a/b?c", "hdfs", "name", 9000, "hdfs://name:9000", "/a/b?c"),
        ("hdfs://name/a", "hdfs", "name", None, "hdfs://name", "/a"),
        ("viewfs://name/a", "viewfs", "name", None, "viewfs://name", "/a"),
    ):
        store, found = open_store(path, None, {"dfs.client.socket-timeout": 5})
        assert (store.prefix, store.remote, found) == (prefix, True, inside)
        assert made[-1][:3] == (kind, host, port)
        assert made[-1][3] == {**filesystems._HDFS_DEFAULTS, "dfs.client.socket-timeout": "5"}
    failing = client(made, RuntimeError("no such name.\nmore"))
    monkeypatch.setitem(sys.modules, "hdfs_native", failing)
    with pytest.raises(SourceError, match=r"^'hdfs://name/a' cannot be opened: no such name$"):
        open_store("hdfs://name/a")


def test_paths_of_one_store_are_found_through_one_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setitem(sys.modules, "hdfs_native", client(made))
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text("x")
    paths = [
        f"hdfs://one{tmp_path}/a.csv",
        f"hdfs://one{tmp_path}/b.csv",
        f"hdfs://two{tmp_path}/a.csv",
        f"{tmp_path}/a.csv",
    ]
    found = filesystems.find_files(paths, None, None)
    assert [file.shown for file in found] == paths
    assert [file.path for file in found] == [f"{tmp_path}/{name}" for name in ("a.csv", "b.csv", "a.csv", "a.csv")]
    assert [host for _, host, _, _ in made] == ["one", "two"]


@pytest.mark.parametrize(
    ("paths", "options", "names"),
    [
        (["s3://b/x?endpoint=http://one", "s3://b/y?endpoint=http://two"], {}, "endpoint"),
        (["s3://b/x?endpoint=http://one", "s3://b/y"], {}, "endpoint"),
        (["s3://b/x", "s3://b/y?endpoint_override=one&region=r"], {}, "endpoint"),
        (["s3://b/x?endpoint=one", "s3://c/y?endpoint=two&scheme=http"], {"region": "r"}, "endpoint, scheme"),
        (["local.csv", "s3://b/x?access_key=a&secret_key=hidden", "s3a://b/y"], {}, "access_key, secret_key"),
    ],
)
def test_paths_of_several_s3_servers_are_refused(paths: list[str], options: dict[str, str], names: str) -> None:
    with pytest.raises(SourceError) as caught:
        filesystems.find_files(iter(paths), None, options)
    first, second = (path.partition("?")[0] for path in paths[-2:])
    assert str(caught.value) == (
        f"{second} and {first} have different options after '?' ({names}), but the files of a view must be on one S3 server; "
        "give all paths the same options, or pass them as storage_options="
    )


@pytest.mark.parametrize(
    ("paths", "options", "regions"),
    [
        (["s3://b/x?endpoint=http://h:1", "s3://b/y?endpoint_override=http://h:1"], {}, ["us-east-1"] * 2),
        (["s3://b/x?endpoint=http://h:1&region=r1", "s3://c/y?endpoint=http://h:1&region=r2"], {}, ["r1", "r2"]),
        (["s3://b/x?endpoint=other", "s3://b/y"], {"endpoint": "http://h:1"}, ["us-east-1"] * 2),
        (["s3://b/x?", "s3://b/?.csv"], {"endpoint": "http://h:1", "region": "r"}, ["r"] * 2),
    ],
)
def test_each_s3_path_is_opened_at_its_server_and_region(
    paths: list[str], options: dict[str, str], regions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    opened: list[Any] = []
    monkeypatch.setattr(filesystems, "_expand", lambda store, path, given: opened.append(settings(store)) or [])
    monkeypatch.setattr(filesystems, "refuse_table_formats", lambda *given: None)
    filesystems.find_files(paths, None, {"access_key": "a", "secret_key": "b", **options})
    assert [(found["endpoint_override"], found["region"]) for found in opened] == [
        ("h:1", region) for region in regions
    ]


def test_a_stored_folder_is_read_as_its_manifest_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hdfs_native", client([]))
    (tmp_path / "run" / "files").mkdir(parents=True)
    held = {}
    for name, text in (("part-10.csv", "ten"), ("part-9.csv", "nine")):
        held[name] = StoredFile(len(text), HASH, object_name(name, HASH))
    (tmp_path / "run" / "files" / held["part-9.csv"].object).write_text("nine")
    other = held["part-10.csv"] = StoredFile(3, "cd" * 32, object_name("part-10.csv", "cd" * 32))
    (tmp_path / "run" / "files" / other.object).write_text("ten")
    (tmp_path / "run" / "files" / "left.csv").write_text("of an upload that was not committed")
    (tmp_path / "run" / MANIFEST).write_bytes(manifest_text(held))
    found = filesystems.find_files([f"hdfs://name{tmp_path}/run/"], None, None)
    assert [(file.path, file.size) for file in found] == [
        (f"{tmp_path}/run/files/{held[name].object}", held[name].bytes) for name in ("part-9.csv", "part-10.csv")
    ]
    (local,) = filesystems.find_files([f"{tmp_path}/run/files/left.csv"], None, None)
    assert local.size == 35
    assert len(filesystems.find_files([f"{tmp_path}/run"], None, None)) == 3  # on a disk, a folder is what it holds
