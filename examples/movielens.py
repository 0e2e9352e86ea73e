"""MovieLens: who will like which film? A rating of 4 or more is a click; a user's history is the films they liked before.

ctrbox train examples/movielens.py --batch-size 1024 --epochs 2
ctrbox trial examples/movielens.py --batch-size 1024 --add "user_year=cross('userId', 'year')"

Real data: unpack ml-latest-small, ml-25m or ml-32m of grouplens.org and set CTRBOX_MOVIELENS to the folder with
ratings.csv and movies.csv. Without it, files of the same format are made up (CTRBOX_ROWS ratings, by default 100,000):
people have tastes in genres, films have a quality and decades come in and out of fashion. Everything goes to
CTRBOX_DATA, by default "data".
"""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.parquet as pq

import ctrbox as cb
from ctrbox import col

LIKED = 4.0
HISTORY = 20
GENRES = np.array(
    ["Action", "Animation", "Comedy", "Crime", "Drama", "Fantasy", "Horror", "Musical", "Romance", "Thriller"]
)


def make_up(folder: Path, rows: int, seed: int = 1) -> None:
    """ratings.csv and movies.csv as GroupLens ships them."""
    rng = np.random.default_rng(seed)
    users, movies = max(20, rows // 150), max(50, rows // 60)
    genres = rng.random((movies, len(GENRES))) < 0.2
    genres[np.arange(movies), rng.integers(0, len(GENRES), movies)] = True
    taste, quality, year = (
        rng.normal(0, 1.2, (users, len(GENRES))),
        rng.normal(0, 0.7, movies),
        rng.integers(1950, 2020, movies),
    )
    era = rng.normal(0, 1.0, (users, 7))
    user, movie = (
        rng.integers(0, users, rows),
        (movies * rng.random(rows) ** 2).astype(int),
    )  # some films are seen by all
    likes = (taste[user] * genres[movie]).sum(1) / np.sqrt(genres[movie].sum(1)) + era[user, (year[movie] - 1950) // 10]
    stars = np.clip(np.round(2 * (3.3 + 0.8 * (likes + quality[movie]) + rng.normal(0, 0.6, rows))) / 2, 0.5, 5.0)
    at = np.sort(rng.integers(1_600_000_000, 1_700_000_000, rows))
    folder.mkdir(parents=True, exist_ok=True)
    titles = [f"Film {k}, The ({y})" for k, y in enumerate(year)]
    named = ["|".join(GENRES[row]) for row in genres]
    csv.write_csv(pa.table({"movieId": np.arange(movies) + 1, "title": titles, "genres": named}), folder / "movies.csv")
    ratings = {"userId": user + 1, "movieId": movie + 1, "rating": stars, "timestamp": at}
    csv.write_csv(pa.table(ratings), folder / "ratings.csv")  # written last: it says that all is there


def in_order_of_time(source: Path, out: Path) -> None:
    """Write the ratings in order of time, with a number for each."""
    ratings = csv.read_csv(source).sort_by(
        [("timestamp", "ascending"), ("userId", "ascending"), ("movieId", "ascending")]
    )
    log = ratings.add_column(0, "row", pa.array(np.arange(ratings.num_rows)))
    log = log.set_column(4, "ts", pc.cast(pc.multiply(ratings["timestamp"], 1_000_000), pa.timestamp("us")))
    out.parent.mkdir(parents=True, exist_ok=True)
    aside = out.with_suffix(".part")
    pq.write_table(log, aside, row_group_size=65_536)
    aside.replace(out)


data = Path(os.environ.get("CTRBOX_DATA", "data")) / "movielens"
files = Path(os.environ.get("CTRBOX_MOVIELENS") or data / "made-up")
if "CTRBOX_MOVIELENS" not in os.environ and not (files / "ratings.csv").exists():
    make_up(files, int(os.environ.get("CTRBOX_ROWS", "100000")))
log_file = data / f"{files.name}.parquet"
if not log_file.exists():
    in_order_of_time(files / "ratings.csv", log_file)

movies = (
    cb.View(files / "movies.csv", key="movieId")
    .fill(title="", genres="")
    .with_columns(year=col("title").strip().suffix(5).prefix(4), genre=col("genres").split("|"))
)
liked = cb.history("movieId", by="userId", time="ts", where=col("rating") >= LIKED, last=HISTORY)
log = cb.View(log_file, key="row").with_history(history=liked).join(movies, on="movieId")

features = cb.FeatureSet(
    label=col("rating") >= LIKED,
    group=col("userId"),
    sparse={
        "user": col("userId").key(),
        "movie": col("movieId").key(space="movie"),
        "history": col("history").key(space="movie"),
        "genres": col("genre").key(),
        "year": col("year").key(),
        "hour": col("ts").hour().key(),
        "weekday": col("ts").weekday().key(),
        "user_x_genre": cb.cross("userId", "genre"),
    },
    dense={"liked": (col("history").length() + 0.0).log1p()},
)

plan = cb.compile(log, features)
table = cb.MemoryTable(8, optimizer=cb.Adagrad(lr=0.05), init=0.05)
model = cb.models.DIN(plan.schema, dim=8, target="movie", history="history", hidden=(64, 32))
