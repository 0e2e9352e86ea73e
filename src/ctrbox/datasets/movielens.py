"""Reads MovieLens ratings, users and movies as GroupLens ships them, and derives a click log from them.

ml = cb.datasets.movielens("ml-1m", vectors="posters.parquet")     # ratings.dat, users.dat, movies.dat, or *.parquet
log = ml.log(liked=4.0, history=20)                                # a click is a rating of 4 or more

    ratings.dat   UserID::MovieID::Rating::Timestamp
    users.dat     UserID::Gender::Age::Occupation::Zip-code        may be absent: only the set of a million has it
    movies.dat    MovieID::Title::Genres                           Latin-1 or UTF-8; genres "A|B"

Parquet files have the columns named below. ``vectors``: Parquet with ``movie_id`` and ``vector``, a list of floats, for a Model
Server. Everything is read into memory: the set of a million ratings takes 0.1 GB.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from ctrbox.arguments.names import nearest
from ctrbox.errors import DataError, SourceError
from ctrbox.files.urls import local_path

RATINGS = pa.schema(
    [("user_id", pa.int64()), ("movie_id", pa.int64()), ("rating", pa.float32()), ("timestamp", pa.int64())]
)
USERS = pa.schema(
    [
        ("user_id", pa.int64()),
        ("gender", pa.string()),
        ("age", pa.int32()),
        ("occupation", pa.int32()),
        ("zip_code", pa.string()),
    ]
)
MOVIES = pa.schema([("movie_id", pa.int64()), ("title", pa.string()), ("genres", pa.string())])
BETWEEN = b"\x1f"  # in place of "::", which Arrow's parser does not know; no file has it
YEARS = (0, 4_102_444_800)  # seconds: 1970 to 2100


@dataclass(frozen=True)
class MovieLens:
    """The MovieLens views as Arrow tables; ``vectors`` is the path of the item vectors, if there are any."""

    ratings: pa.Table
    users: pa.Table | None
    movies: pa.Table
    vectors: Path | None = None

    def log(self, liked: float = 4.0, history: int = 20) -> pa.Table:
        """Return the ratings in order of time, as a click log: a rating of ``liked`` or more is a click.

        Its columns are row, user_id, movie_id, rating, ts, clicked and history. The history of a row lists the last movies, at
        most ``history`` of them, that its user liked before that second, the newest last.
        """
        if not isinstance(history, int) or isinstance(history, bool) or not 0 <= history <= 10_000:
            raise DataError(f"history must be a whole number from 0 to 10,000, got {history!r}")
        if isinstance(liked, bool) or not isinstance(liked, int | float | np.number) or not np.isfinite(liked):
            raise DataError(f"liked must be a rating, such as 4.0, got {liked!r}")
        by_time = np.argsort(self.ratings["timestamp"].to_numpy(), kind="stable")
        user, movie, rating, at = (self.ratings[name].to_numpy()[by_time] for name in RATINGS.names)
        log = pa.table(
            {
                "row": np.arange(len(user)),
                "user_id": user,
                "movie_id": movie,
                "rating": rating,
                "ts": pa.array(at * 1_000_000, pa.timestamp("us")),
                "clicked": (rating >= np.float32(liked)).astype(np.int8),
            }
        )
        return log.append_column("history", _liked_before(log, history))


def _liked_before(log: pa.Table, most: int) -> pa.ChunkedArray:
    """Compute the history column of a log, by the operator that a user's own log would use."""
    # Imported here, so that `cb.datasets` and the commands that generate data start without the engine.
    from ctrbox.engines.compute import compute
    from ctrbox.plan.language.expressions import col
    from ctrbox.plan.language.history_columns import history as history_of
    from ctrbox.views.view import View

    lists = pa.large_list(pa.int64())
    if not most or not log.num_rows:
        return pa.chunked_array([pa.array([[]] * log.num_rows, lists)])
    operator = history_of("movie_id", by="user_id", time="ts", where=col("clicked") == 1, last=most)
    view = View(log, key="row").with_history(history=operator)
    return compute({"history": col("history")}, view)["history"].cast(lists)


def movielens(path: str | os.PathLike[str], *, vectors: str | os.PathLike[str] | None = None) -> MovieLens:
    """Read a folder with the MovieLens data, as ``.dat`` or Parquet files, and the vectors of its movies if there are any."""
    folder = local_path(path, "a MovieLens dataset")
    if not folder.is_dir():
        raise SourceError(
            f"there is no folder {folder}; expected one with ratings.dat and movies.dat, or ratings.parquet"
        )
    ratings = _read(folder, "ratings", RATINGS)
    movies = _read(folder, "movies", MOVIES)
    if ratings is None or movies is None:
        lost = "ratings" if ratings is None else "movies"
        names = sorted(p.name for p in folder.iterdir())[:8]
        raise SourceError(f"{folder} has neither {lost}.dat nor {lost}.parquet; it has {', '.join(names) or 'nothing'}")
    seconds = ratings["timestamp"].to_numpy()
    wrong = np.flatnonzero((seconds < YEARS[0]) | (seconds > YEARS[1]))
    if len(wrong):
        raise DataError(f"{folder}: timestamp of rating {wrong[0]} is {seconds[wrong[0]]}; expected seconds since 1970")
    stars = ratings["rating"].to_numpy()
    wrong = np.flatnonzero(~((stars >= 0) & (stars <= 5)))
    if len(wrong):
        raise DataError(f"{folder}: rating {wrong[0]} is {stars[wrong[0]]}; expected 0 to 5")
    users = _read(folder, "users", USERS)
    for name, table in (("user_id", users), ("movie_id", movies)):
        if table is not None:
            _once(folder, table, name)
    return MovieLens(
        ratings, users, movies, None if vectors is None else _vectors(local_path(vectors, "a file of vectors"))
    )


def _read(folder: Path, name: str, schema: pa.Schema) -> pa.Table | None:
    text, parquet = folder / f"{name}.dat", folder / f"{name}.parquet"
    try:
        if text.exists():
            table = _parse(text, schema)
        elif parquet.exists():
            table = _columns(parquet, pq.read_table(parquet), schema)
        else:
            return None
    except (OSError, pa.ArrowException) as error:
        raise SourceError(f"cannot read {text if text.exists() else parquet}: {str(error).splitlines()[0]}") from error
    for column in schema.names:
        if table[column].null_count:
            row = int(np.flatnonzero(table[column].is_null().to_numpy())[0])
            raise DataError(f"{folder / name}: {column} of row {row} is empty")
    return table


def _parse(path: Path, schema: pa.Schema) -> pa.Table:
    data = path.read_bytes()
    try:
        data.decode("utf-8")
        encoding = "utf-8"
    except UnicodeDecodeError:
        encoding = "latin-1"  # as the set of a million has it
    if not data.strip():
        return schema.empty_table()
    try:
        return pacsv.read_csv(
            pa.py_buffer(data.replace(b"::", BETWEEN)),
            pacsv.ReadOptions(column_names=schema.names, encoding=encoding),
            pacsv.ParseOptions(delimiter=BETWEEN.decode(), quote_char=False),
            pacsv.ConvertOptions(column_types=schema),
        )
    except pa.ArrowInvalid as error:
        raise DataError(f"{path} {_complaint(data.decode(encoding), schema) or error}") from None


def _complaint(text: str, schema: pa.Schema) -> str | None:
    """Return what is wrong with the first bad line."""
    # Not splitlines: titles of the set of a million may contain characters that it takes for the end of a line.
    for number, line in enumerate(re.split("\r\n|\r|\n", text), 1):
        values = line.split("::")
        if line and len(values) != len(schema):
            return f"line {number}: found {len(values)} values; expected {len(schema)}: {'::'.join(schema.names)}"
        for field, value in zip(schema, values, strict=False):
            try:
                if line and not pa.types.is_string(field.type):
                    pa.scalar(value).cast(field.type)
            except pa.ArrowException:
                return f"line {number}: {field.name} is {value!r}; expected a number"
    return None


def _columns(path: Path, table: pa.Table, schema: pa.Schema) -> pa.Table:
    for field in schema:
        if field.name not in table.column_names:
            raise DataError(
                f"{path} has no column {field.name!r}{nearest(field.name, table.column_names)}; it has {table.column_names}"
            )
    try:
        return table.select(schema.names).cast(schema)
    except (pa.ArrowException, ValueError) as error:
        raise DataError(
            f"{path}: {str(error).splitlines()[0]}; expected {', '.join(f'{f.name}: {f.type}' for f in schema)}"
        ) from None


def _once(folder: Path, table: pa.Table, name: str) -> None:
    keys = np.sort(table[name].to_numpy())
    again = np.flatnonzero(keys[1:] == keys[:-1])
    if len(again):
        raise DataError(f"{folder}: {name} {keys[again[0]]} occurs twice; expected one row per {name}")


def _vectors(path: Path) -> Path:
    try:
        schema = pq.read_schema(path)
    except (OSError, pa.ArrowException) as error:
        raise SourceError(f"cannot read {path}: {str(error).splitlines()[0]}") from error
    for name in ("movie_id", "vector"):
        if name not in schema.names:
            raise DataError(f"{path} has no column {name!r}{nearest(name, schema.names)}; it has {schema.names}")
    return path
