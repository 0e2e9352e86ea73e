"""Criteo, Avazu, VW and libffm text become Arrow streams; bad lines are named or counted."""

from __future__ import annotations

import datetime as dt
import gzip
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctrbox.datasets import TextLog, avazu, criteo, libffm, public_text_logs, vw
from ctrbox.errors import DataError, SourceError
from ctrbox.views.view import View

UNKNOWN = "unknown: it was not named and does not occur in the first lines, from which the names are taken"  # in errors
AVAZU_HEADER = "id,click,hour,C1,banner_pos,site_id,device_type,C14"


def write(path: Path, *text: str) -> Path:
    path.write_bytes("".join(line + "\n" for line in text).encode())
    return path


def rows(log: TextLog) -> list[dict[str, Any]]:
    """Through the C interface, as a view reads it."""
    found = pa.RecordBatchReader.from_stream(log).read_all()
    assert found.schema.equals(log.schema)
    found.validate(full=True)
    return found.to_pylist()


def criteo_line(label: int = 1, count: str = "5", category: str = "68fd1e64") -> str:
    return "\t".join([str(label), count, *[""] * 12, category, *[""] * 25])


def test_criteo_counts_are_integers_and_gaps_are_null(tmp_path: Path) -> None:
    log = criteo(write(tmp_path / "day_0", criteo_line(), criteo_line(0, "-1", "")))
    first, second = rows(log)
    assert first["row"] == 0
    assert (first["label"], first["I1"], first["I2"], first["C1"], first["C26"]) == (
        1,
        5,
        None,
        "68fd1e64",
        None,
    )
    assert (second["row"], second["label"], second["I1"], second["C1"]) == (1, 0, -1, None)
    assert log.schema.names[:3] == ["row", "label", "I1"]
    assert len(log.schema) == 41


def test_criteo_keeps_the_largest_integers_also_beside_a_bad_line(tmp_path: Path) -> None:
    ends = ["9223372036854775807", "-9223372036854775808", "0000000000000000000005"]
    good = [criteo_line(1, count) for count in ends]
    wanted = [int(count) for count in ends]
    assert [row["I1"] for row in rows(criteo(write(tmp_path / "good", *good)))] == wanted
    beside = write(tmp_path / "beside", *good, criteo_line(1, "x"), criteo_line(1, "9223372036854775808"))
    log = criteo(beside, on_error="skip")
    assert [row["I1"] for row in rows(log)] == wanted
    assert log.skipped == 2
    with pytest.raises(DataError, match="line 4: I1 is 'x'"):
        list(criteo(beside).batches())


def test_a_log_can_be_read_again_and_again(tmp_path: Path) -> None:
    log = criteo(write(tmp_path / "day_0", criteo_line()))
    assert rows(log) == rows(log)
    assert log.streaming
    assert log.name.endswith("day_0")


@pytest.mark.parametrize("ending", ["gz", "zst", "bz2"])
def test_compressed_files_read_like_plain_ones(tmp_path: Path, ending: str) -> None:
    plain = write(tmp_path / "day_0", *[criteo_line(i % 2, str(i)) for i in range(500)])
    packed = tmp_path / f"day_0.{ending}"
    with pa.output_stream(packed, compression="detect") as out:
        out.write(plain.read_bytes())
    assert rows(criteo(packed)) == rows(criteo(plain))


def test_a_truncated_gz_is_a_source_error_naming_the_file(tmp_path: Path) -> None:
    packed = tmp_path / "day_0.gz"
    whole = gzip.compress("".join(criteo_line(1, str(i)) + "\n" for i in range(5_000)).encode())
    packed.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(SourceError, match=r"day_0\.gz cannot be read"):
        list(criteo(packed).batches())


def test_rows_are_numbered_over_a_glob_in_order_of_name(tmp_path: Path) -> None:
    for name, count in (("day_1", "11"), ("day_0", "10"), ("day_2", "12")):
        write(tmp_path / name, criteo_line(1, count))
    found = rows(criteo(str(tmp_path / "day_*")))
    assert [(r["row"], r["I1"]) for r in found] == [(0, 10), (1, 11), (2, 12)]
    found = rows(criteo([tmp_path / "day_2", tmp_path / "day_0"]))
    assert [(r["row"], r["I1"]) for r in found] == [(0, 12), (1, 10)]


def test_criteo_test_files_have_no_label(tmp_path: Path) -> None:
    log = criteo(write(tmp_path / "test.txt", criteo_line().partition("\t")[2]), label=False)
    assert "label" not in log.schema.names
    assert rows(log)[0]["I1"] == 5


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("1\t2\t3", "found 3 values; expected 40"),
        (criteo_line(count="many"), "I1 is 'many'; expected an integer of 64 bits, or nothing"),
        (criteo_line(label=300), "label is '300'; expected an integer of 8 bits, or nothing"),
    ],
)
def test_a_bad_criteo_line_is_named_or_counted(tmp_path: Path, line: str, problem: str) -> None:
    path = write(tmp_path / "day_0", criteo_line(), "", line, criteo_line(0))
    with pytest.raises(DataError, match=f"day_0 line 3: {problem}"):
        list(criteo(path).batches())
    log = criteo(path, on_error="skip")
    assert [(r["row"], r["label"]) for r in rows(log)] == [(0, 1), (1, 0)]
    assert log.skipped == 1


def test_bytes_that_are_not_utf8_are_named(tmp_path: Path) -> None:
    path = tmp_path / "day_0"
    path.write_bytes(criteo_line().encode() + b"\n" + criteo_line(category="x").encode().replace(b"x", b"\xff") + b"\n")
    with pytest.raises(DataError, match="line 2: byte 16 is 0xff; expected UTF-8"):
        list(criteo(path).batches())


def test_lines_are_numbered_through_blocks_and_long_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = [criteo_line(1, str(i), "c" * (i % 90)) for i in range(150)]
    path = write(tmp_path / "day_0", *good, "bad")
    monkeypatch.setattr(public_text_logs.blocks, "__defaults__", (None, 100))
    log = criteo(path, on_error="skip")
    assert [r["I1"] for r in rows(log)] == list(range(150))
    with pytest.raises(DataError, match="line 151: found 1 values"):
        list(criteo(path).batches())


def test_last_line_needs_no_end_and_windows_ends_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "day_0"
    path.write_bytes(f"{criteo_line()}\r\n{criteo_line(0, category='z')}".encode())
    assert [(r["label"], r["C26"]) for r in rows(criteo(path))] == [(1, None), (0, None)]


@pytest.mark.parametrize("reader", [criteo, vw, libffm])
def test_an_empty_file_is_an_empty_log(tmp_path: Path, reader: Any) -> None:
    path = tmp_path / "empty"
    path.touch()
    assert rows(reader(path)) == []
    write(path, "", "  ")
    assert rows(reader(path)) == []


def test_absent_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"nothing_here.* matches no file"):
        criteo(tmp_path / "nothing_here*")
    with pytest.raises(SourceError, match="is a folder"):
        criteo(tmp_path)
    with pytest.raises(SourceError, match="no file was given"):
        criteo([])
    for wrong in (None, 5, [None]):
        with pytest.raises(SourceError, match=r"cannot read a (NoneType|int); expected a path"):
            criteo(wrong)  # type: ignore[arg-type]
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SourceError, match="pipe is a pipe, a socket or a device"):
        criteo(tmp_path / "pipe")
    with pytest.raises(DataError, match="on_error must be 'raise' or 'skip', got 'ignore'"):
        criteo(write(tmp_path / "x", ""), on_error="ignore")  # type: ignore[arg-type]


def test_avazu_hours_become_moments(tmp_path: Path) -> None:
    path = write(
        tmp_path / "train",
        AVAZU_HEADER,
        "1000009418151094273,0,14102100,1005,0,1fbe01fe,1,15706",
        "10000169349117863715,1,16022923,1005,1,,1,",
    )
    log = avazu(path)
    first, second = rows(log)
    assert first["id"] == "1000009418151094273"
    assert (first["row"], first["click"], first["hour"], first["C14"]) == (0, 0, 14102100, 15706)
    assert first["ts"] == dt.datetime(2014, 10, 21, 0)
    assert second["ts"] == dt.datetime(2016, 2, 29, 23)
    assert (second["site_id"], second["C14"]) == (None, None)


@pytest.mark.parametrize("hour", ["14102124", "14130100", "15022900", "14043100", "-1", "114102100", "soon"])
def test_an_hour_that_is_none_is_named_or_counted(tmp_path: Path, hour: str) -> None:
    path = write(tmp_path / "train", AVAZU_HEADER, "1,0,14102100,1,1,a,1,1", f"2,0,{hour},1,1,a,1,1")
    with pytest.raises(DataError, match=r"train line 3: hour is .*; expected"):
        list(avazu(path).batches())
    log = avazu(path, on_error="skip")
    assert [r["id"] for r in rows(log)] == ["1"]
    assert log.skipped == 1


def test_avazu_without_an_hour_keeps_a_null(tmp_path: Path) -> None:
    path = write(tmp_path / "train", AVAZU_HEADER, "1,0,,1,1,a,1,1", "2,0,14102105,1,1,a,1,1")
    assert [r["ts"] for r in rows(avazu(path))] == [None, dt.datetime(2014, 10, 21, 5)]


def test_avazu_headers_are_checked(tmp_path: Path) -> None:
    good = write(tmp_path / "a", AVAZU_HEADER, "1,0,14102100,1,1,a,1,1")
    other = write(tmp_path / "b", AVAZU_HEADER.replace("C14", "C15"), "1,0,14102100,1,1,a,1,1")
    assert len(rows(avazu([good, good]))) == 2
    with pytest.raises(DataError, match=r"b line 1: .*expected the header"):
        list(avazu([good, other]).batches())
    with pytest.raises(DataError, match="has no column 'hour'; nearest: 'hours'"):
        avazu(write(tmp_path / "c", "id,hours"))
    with pytest.raises(DataError, match="column name 'id' occurs twice in the header"):
        avazu(write(tmp_path / "d", "id,id,hour"))
    (tmp_path / "e").touch()
    with pytest.raises(DataError, match="is empty; expected a header"):
        avazu(tmp_path / "e")
    assert rows(avazu(write(tmp_path / "f", AVAZU_HEADER))) == []


def test_vw_namespaces_become_list_columns(tmp_path: Path) -> None:
    path = write(
        tmp_path / "log.vw",
        "1 2.5 'first|user age:25 paid |ad:0.5 red shoe:3 |user male",
        "-1 |ad łódź",
        "+1 third|user",
        "| plain",
    )
    log = vw(path)
    lists = ["user", "user.weights", "ad", "ad.weights", "default", "default.weights"]
    assert log.schema.names == ["row", "label", "weight", "tag", *lists]
    one, two, three, four = rows(log)
    assert (one["label"], one["weight"], one["tag"]) == (1.0, 2.5, "first")
    assert (one["user"], one["user.weights"]) == (["age", "paid", "male"], [25.0, 1.0, 1.0])
    assert (one["ad"], one["ad.weights"]) == (["red", "shoe"], [0.5, 1.5])
    assert (two["label"], two["weight"], two["tag"], two["user"], two["ad"]) == (
        -1.0,
        1.0,
        None,
        [],
        ["łódź"],
    )
    assert (three["label"], three["tag"], three["user"]) == (1.0, "third", [])
    assert (four["label"], four["tag"], four["default"], four["default.weights"]) == (
        None,
        None,
        ["plain"],
        [1.0],
    )


def test_vw_binary_labels(tmp_path: Path) -> None:
    path = write(tmp_path / "log.vw", "1 |a x", "-1 |a x", "0 |a x", "|a x")
    assert [r["label"] for r in rows(vw(path, binary=True))] == [1.0, 0.0, 0.0, None]
    assert [r["label"] for r in rows(vw(path))] == [1.0, -1.0, 0.0, None]
    with pytest.raises(DataError, match=r"line 5: label is '3\.5'; binary=True expects"):
        list(vw(write(path, "1 |a x", "-1 |a x", "0 |a x", "|a x", "3.5 |a x"), binary=True).batches())


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("1 no bar", "expected 'label |namespace"),
        ("click |a x", "the text before the first | is 'click '"),
        (
            "1 2 -0.5 |a x",
            "the base (initial prediction) after label and importance is '-0.5'; expected 0 or none, because initial "
            "predictions are not supported",
        ),
        ("1 1 1e9999 'tag|a x", "the base (initial prediction) after label and importance is '1e9999'; expected 0"),
        ("1 |a x:heavy", "feature 'x:heavy' has the value 'heavy'; expected a number"),
        ("1 |a x:nan", "expected a number"),
        ("1 |a:big x", "namespace 'a' has the scale 'big'"),
        ("1 |new x", f"namespace 'new' is {UNKNOWN} (known: a)"),
    ],
)
def test_a_bad_vw_line_is_named_or_counted(tmp_path: Path, line: str, problem: str) -> None:
    path = write(tmp_path / "log.vw", "1 |a x", line, "-1 |a y")
    log = vw(path, namespaces=["a"], on_error="skip")
    assert [r["a"] for r in rows(log)] == [["x"], ["y"]]
    assert log.skipped == 1
    with pytest.raises(DataError) as raised:
        list(vw(path, namespaces=["a"]).batches())
    assert str(raised.value).startswith(f"{path} line 2: ")
    assert problem in str(raised.value)


def test_vw_namespaces_found_late_are_an_error_unless_given(tmp_path: Path) -> None:
    path = write(tmp_path / "log.vw", *["1 |a x"] * 1_200, "1 |late y")
    with pytest.raises(DataError, match="line 1201: namespace 'late'"):
        list(vw(path).batches())
    assert rows(vw(path, namespaces=["a", "late"]))[-1]["late"] == ["y"]


def test_vw_columns_may_not_collide(tmp_path: Path) -> None:
    path = write(tmp_path / "log.vw", "1 |tag x")
    with pytest.raises(DataError, match="two columns would be called 'tag'"):
        vw(path)
    assert rows(vw(path, prefix="ns_"))[0]["ns_tag"] == ["x"]


def test_libffm_fields_become_list_columns(tmp_path: Path) -> None:
    log = libffm(write(tmp_path / "log.ffm", "1 0:12:1 2:7:0.5 0:13:2", "+1", "-1 1:99:1 "))
    assert log.schema.names == ["row", "label", "f0", "f0.weights", "f1", "f1.weights", "f2", "f2.weights"]
    one, two, three = rows(log)
    assert (one["label"], one["f0"], one["f0.weights"], one["f1"]) == (1.0, ["12", "13"], [1.0, 2.0], [])
    assert (one["f2"], one["f2.weights"]) == (["7"], [0.5])
    assert (two["label"], two["f0"]) == (1.0, [])
    assert (three["label"], three["f1"]) == (-1.0, ["99"])
    assert [r["label"] for r in rows(libffm(tmp_path / "log.ffm", binary=True))] == [1.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("1 0:1", "found '0:1'; expected field:index:value"),
        ("1 x:1:1", "found 'x:1:1'; expected field:index:value"),
        ("1 0:1:", "found '0:1:'; expected field:index:value"),
        ("1 -1:1:1", "found '-1:1:1'; expected field:index:value"),
        ("1 0x1:1:1", "found '0x1:1:1'; expected field:index:value"),
        ("yes 0:1:1", "label is 'yes'; expected a number"),
        ("1 7:1:1", f"field 7 is {UNKNOWN} (known: f0, f1)"),
    ],
)
def test_a_bad_libffm_line_is_named_or_counted(tmp_path: Path, line: str, problem: str) -> None:
    path = write(tmp_path / "log.ffm", "1 0:1:1", line, "0 1:2:1")
    with pytest.raises(DataError) as raised:
        list(libffm(path, fields=2).batches())
    assert str(raised.value) == f"{path} line 2: {problem}"
    log = libffm(path, fields=2, on_error="skip")
    assert [r["label"] for r in rows(log)] == [1.0, 0.0]
    assert log.skipped == 1


name = st.text(
    st.characters(codec="utf-8", exclude_characters="|: \t\r\n\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"),
    min_size=1,
)
number = st.floats(allow_nan=False, allow_infinity=False, width=32)
example = st.tuples(
    st.sampled_from([-1.0, 1.0]),
    st.dictionaries(st.sampled_from(["a", "b", "c"]), st.lists(st.tuples(name, number), max_size=4), min_size=1),
)


@settings(max_examples=25, deadline=None)
@given(st.lists(example, max_size=8))
def test_vw_reads_back_what_was_written(tmp_path_factory: pytest.TempPathFactory, examples: list[Any]) -> None:
    text = [
        f"{label:g} " + " ".join(f"|{ns} " + " ".join(f"{n}:{v!r}" for n, v in found) for ns, found in spaces.items())
        for label, spaces in examples
    ]
    path = write(tmp_path_factory.mktemp("vw") / "log.vw", *text)
    found = rows(vw(path, namespaces=["a", "b", "c"]))
    assert len(found) == len(examples)
    for row, (label, spaces) in zip(found, examples, strict=True):
        assert row["label"] == label
        for ns in ("a", "b", "c"):
            assert list(zip(row[ns], row[f"{ns}.weights"], strict=True)) == spaces.get(ns, [])


def test_a_view_of_a_bad_log_raises_the_readers_own_error(tmp_path: Path) -> None:
    log = criteo(write(tmp_path / "day_0", criteo_line(), "1\t2"))
    with pytest.raises(DataError, match=r"day_0 line 2: [^\n]*$"):
        list(View(log, key="row").source.scan(["label"]))


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_log_that_changes_is_refused_and_has_another_fingerprint(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"train.txt{ending}"
    text = "1 |a x:1\n" * 2000

    def write(text: str) -> None:
        path.write_bytes(gzip.compress(text.encode(), mtime=0) if ending else text.encode())
        os.utime(path, ns=(10**18, 10**18))

    write(text)
    log = vw(path)
    before = log.fingerprint()
    assert sum(batch.num_rows for batch in log.batches()) == 2000
    assert log.fingerprint() == before
    write(text.replace("x", "y"))
    for read in (lambda: list(log.batches()), log.fingerprint, lambda: list(View(log).source.scan(["row"]))):
        with pytest.raises(SourceError, match=r"train\.txt.* changed after it was opened"):
            read()
    assert vw(path).fingerprint() != before


@pytest.mark.parametrize("count", ["0x1F", " 5", "5 "])
def test_an_integer_that_is_not_written_in_digits_is_refused(tmp_path: Path, count: str) -> None:
    """Arrow reads 0x1F as 31 and takes spaces around a number."""
    fields = ["1", *["5"] * 13, *["abc"] * 26]
    good = "\t".join(fields)
    bad = "\t".join(["1", count, *fields[2:]])
    path = tmp_path / "day.tsv"
    path.write_text(f"{good}\n{bad}\n")
    with pytest.raises(DataError, match=rf"day\.tsv line 2: I1 is '{count}'; expected an integer"):
        list(criteo(path).batches())
    kept = criteo(path, on_error="skip")
    assert sum(batch.num_rows for batch in kept.batches()) == 1
    path.write_text("\t".join([*fields[:-1], "0x 1F"]) + "\n")
    assert next(iter(criteo(path).batches())).column("C26").to_pylist() == ["0x 1F"]


def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    path.write_text("\ufeffid,click,hour\n7,0,14102100\n", encoding="utf-8")
    assert avazu(path).schema.names == ["row", "id", "click", "hour", "ts"]
    assert next(iter(avazu(path).batches())).column("id").to_pylist() == ["7"]
