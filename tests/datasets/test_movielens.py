"""The MovieLens reader: text and Parquet alike, histories against plain Python, refusals by file and line."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ctrbox as cb
from ctrbox import col
from ctrbox.datasets.movielens import MOVIES, RATINGS, MovieLens, movielens
from ctrbox.errors import DataError, SourceError

RATED = [
    "1::10::5::978300760",
    "2::20::3::978300760",
    "1::20::4::978302109",
    "2::10::4::978301968",
    "1::30::1::978302110",
]
PEOPLE = ["1::F::1::10::48067", "2::M::56::16::70072"]
FILMS = [
    "10::Toy Story (1995)::Animation|Children's|Comedy",
    "20::Amélie (2001)::Comedy",
    '30::One; Two, "3" (1999)::Drama',
]


def folder(path: Path, encoding: str = "latin-1", **files: list[str]) -> Path:
    path.mkdir(exist_ok=True)
    for name, lines in {"ratings": RATED, "users": PEOPLE, "movies": FILMS, **files}.items():
        (path / f"{name}.dat").write_bytes("".join(f"{line}\n" for line in lines).encode(encoding))
    return path


@pytest.mark.parametrize("encoding", ["latin-1", "utf-8"])
def test_text_is_read_as_it_is(tmp_path: Path, encoding: str) -> None:
    ml = movielens(folder(tmp_path / "ml", encoding))
    assert ml.ratings.num_rows == 5
    assert ml.movies["title"].to_pylist() == ["Toy Story (1995)", "Amélie (2001)", 'One; Two, "3" (1999)']
    assert ml.users is not None
    assert ml.users.to_pylist()[1] == {"user_id": 2, "gender": "M", "age": 56, "occupation": 16, "zip_code": "70072"}


def test_parquet_of_the_same_columns_is_the_same(tmp_path: Path) -> None:
    text = movielens(folder(tmp_path / "ml"))
    other = tmp_path / "parquet"
    other.mkdir()
    wide = text.ratings.set_column(2, "rating", text.ratings["rating"].cast(pa.float64()))
    pq.write_table(wide.append_column("more", pa.array([1] * 5)), other / "ratings.parquet")
    pq.write_table(text.movies, other / "movies.parquet")
    found = movielens(other)
    assert found.users is None
    assert found.ratings.equals(text.ratings)
    assert found.log().equals(text.log())


RATING = st.tuples(st.integers(1, 4), st.integers(1, 6), st.sampled_from([1.0, 3.5, 4.0, 5.0]), st.integers(0, 6))


@settings(max_examples=80, deadline=None)
@given(rows=st.lists(RATING, max_size=30), history=st.integers(0, 5))
def test_a_history_is_what_was_liked_before(rows: list[tuple[int, int, float, int]], history: int) -> None:
    columns = list(zip(*rows, strict=True)) or [(), (), (), ()]
    table = pa.table([pa.array(c, f.type) for c, f in zip(columns, RATINGS, strict=True)], schema=RATINGS)
    found = MovieLens(table, None, MOVIES.empty_table()).log(history=history).to_pylist()
    in_time = sorted(range(len(rows)), key=lambda k: (rows[k][3], k))
    liked: dict[int, list[tuple[int, int]]] = defaultdict(list)
    assert len(found) == len(rows)
    for number, (k, row) in enumerate(zip(in_time, found, strict=True)):
        user, movie, stars, at = rows[k]
        assert (row["row"], row["user_id"], row["movie_id"], row["clicked"]) == (number, user, movie, int(stars >= 4))
        before = [m for m, then in liked[user] if then < at]
        assert row["history"] == (before[-history:] if history else [])
        if stars >= 4:
            liked[user].append((movie, at))


def test_it_trains_with_vectors_of_movies(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    count = 600
    lines = [
        f"{u}::{m}::{r}::{t}"
        for t, (u, m, r) in enumerate(
            zip(rng.integers(1, 9, count), rng.integers(1, 40, count), rng.integers(1, 6, count), strict=True)
        )
    ]
    films = [f"{k}::Film {k}::Drama" for k in range(1, 40)]
    pq.write_table(
        pa.table({"movie_id": np.arange(1, 40), "vector": list(rng.standard_normal((39, 6)).astype(np.float32))}),
        tmp_path / "posters.parquet",
    )
    ml = movielens(folder(tmp_path / "ml", ratings=lines, movies=films), vectors=tmp_path / "posters.parquet")
    log = cb.View(ml.log(history=5), key="row").fill(history=[])
    key = col("movie_id").key(space="poster")
    sparse = {
        "user": col("user_id"),
        "movie": col("movie_id"),
        "poster": key,
        "liked": col("history").key(space="poster"),
    }
    plan = cb.compile(log, cb.FeatureSet(label=col("clicked"), group=col("user_id"), sparse=sparse))
    assert ml.vectors is not None
    server = cb.tables.ModelServer(cb.tables.write_vectors(tmp_path / "v", ml.vectors, key=key, vector="vector"), dim=4)
    model = cb.models.DICM(plan.schema, 4, ad_image="poster", behavior="liked", query="movie", image_dim=4)
    run = cb.Trainer(model, {"poster": server, "liked": server, "*": cb.MemoryTable(4)}).fit(plan, batch_size=100)
    assert 0 < run.metrics["auc"] < 1
    assert server.stats()["missing"] == 0


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"ratings": [*RATED, "1::10::5"]}, r"ratings\.dat line 6: found 3 values; expected 4: user_id::movie_id"),
        ({"ratings": [*RATED, "1::ten::5::9"]}, r"ratings\.dat line 6: movie_id is 'ten'; expected a number"),
        ({"ratings": ["1::10::9::978300760"]}, r"rating 0 is 9\.0; expected 0 to 5"),
        ({"ratings": ["1::10::5::-7"]}, "timestamp of rating 0 is -7"),
        ({"movies": [*FILMS, "40::Next\x85line::Drama", "50::Lost"]}, r"movies\.dat line 5: found 2 values"),
        ({"users": [*PEOPLE, PEOPLE[0]]}, "user_id 1 occurs twice"),
        ({"movies": [*FILMS, FILMS[2]]}, "movie_id 30 occurs twice"),
    ],
)
def test_bad_files_are_refused_by_line(tmp_path: Path, files: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        movielens(folder(tmp_path / "ml", **files))


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="there is no folder"):
        movielens(tmp_path / "nothing")
    path = folder(tmp_path / "ml")
    (path / "movies.dat").rename(path / "films.dat")
    with pytest.raises(SourceError, match=r"neither movies\.dat nor movies\.parquet; it has films\.dat, ratings\.dat"):
        movielens(path)
    pq.write_table(pa.table({"movieid": [1], "title": ["a"], "genres": ["b"]}), path / "movies.parquet")
    with pytest.raises(DataError, match="no column 'movie_id'; nearest: 'movieid'"):
        movielens(path)
    (path / "films.dat").rename(path / "movies.dat")
    pq.write_table(pa.table({"movie_id": [1], "vectors": [[1.0]]}), tmp_path / "v.parquet")
    with pytest.raises(DataError, match="no column 'vector'; nearest: 'vectors'"):
        movielens(path, vectors=tmp_path / "v.parquet")
    with pytest.raises(SourceError, match="cannot read"):
        movielens(path, vectors=path / "ratings.dat")
    for liked in ("x", None, True, float("nan")):
        with pytest.raises(DataError, match=r"liked must be a rating, such as 4\.0, got"):
            movielens(path).log(liked=liked)
    with pytest.raises(DataError, match="history must be a whole number"):
        movielens(path).log(history=-1)
