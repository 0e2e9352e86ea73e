"""The staged job in PySpark: built-in functions only, so that no row ever visits Python.

What keeps Spark fast here: the context is parsed once, users and ads are broadcast, tokens are hashed once.
A task reads one piece of one file (`openCostInBytes` keeps pieces apart), so the order of the log survives every stage
that does not shuffle.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.end_to_end_job import COLUMNS, FILLS, SEED, emptied, folder
from benchmarks.extract_job import AGES, BASIC, DEVICES, READ

SCHEMA = "geo STRUCT<city STRING>, slot BIGINT, page STRUCT<depth DOUBLE>, app STRING"
IMPRESSION = ["instance_id", "ts", "user_id", "ad_id", "device", "clicked"]
MEMORY = "8g"
PIECE = "8m"  # enough pieces for all cores in the quick log too


@contextmanager
def session(work: Path) -> Iterator[Any]:
    """A local session on all cores, its JVM up and one query done."""
    from pyspark.sql import SparkSession

    scratch = emptied(work / "spark")
    spark = (
        SparkSession.builder.master("local[*]")
        .appName("staged")
        .config("spark.driver.memory", MEMORY)
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.files.maxPartitionBytes", PIECE)
        .config("spark.sql.files.openCostInBytes", PIECE)
        .config("spark.sql.autoBroadcastJoinThreshold", "64m")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.local.dir", str(scratch))
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark.range(1000).selectExpr("sum(id)").collect()
    try:
        yield spark
    finally:
        spark.stop()


def process(spark: Any) -> int:
    """The id of the JVM."""
    return int(spark._jvm.java.lang.ProcessHandle.current().pid())


class Job:
    """The stages on one session."""

    def __init__(self, spark: Any) -> None:
        from pyspark.sql import functions

        self.spark = spark
        self.f = functions

    def read(self, *path: str | Path) -> Any:
        return self.spark.read.parquet(str(Path(*path)))

    def write(self, frame: Any, path: Path) -> None:
        frame.write.mode("overwrite").parquet(str(path))

    def filled(self, values: dict[str, Any]) -> list[Any]:
        f = self.f
        return [f.coalesce(f.col(name), f.lit(value)).alias(name) for name, value in values.items()]

    def floats(self) -> list[Any]:
        return [
            self.f.coalesce(self.f.col(name).cast("float"), self.f.lit(0.0).cast("float")).alias(name) for name in BASIC
        ]

    def clean(self, root: Path, work: Path) -> None:
        f, out = self.f, folder(work, "clean")
        raw = self.read(root, "impressions").select(READ["impressions"]).where(f.col("device").isin(DEVICES))
        tree = raw.withColumn("tree", f.from_json("context", SCHEMA))
        fields = tree.select(
            *IMPRESSION,
            "query",
            "position",
            "price",
            f.col("tree.geo.city").alias("city"),
            f.col("tree.app").alias("app"),
            f.col("tree.slot").alias("slot"),
            f.col("tree.page.depth").alias("depth"),
        )
        log = fields.select(*IMPRESSION, *self.filled(FILLS["impressions"]), *self.filled(FILLS["context"]))
        self.write(log, out / "impressions")
        self.write(self.read(root, "users").select("user_id", *self.filled(FILLS["users"])), out / "users")
        self.write(self.read(root, "ads").select("ad_id", "created", *self.filled(FILLS["ads"])), out / "ads")
        self.write(self.read(root, "basic").select("instance_id", *self.floats()), out / "basic")

    def join(self, root: Path, work: Path) -> None:
        f, out = self.f, folder(work, "clean")
        log, users, ads, basic = (self.read(out, view) for view in ("impressions", "users", "ads", "basic"))
        merged = log.join(f.broadcast(basic), "instance_id", "left")
        joined = merged.join(f.broadcast(users), "user_id", "left").join(f.broadcast(ads), "ad_id", "left")
        known = ["ts", "clicked", "device", "created", *FILLS["impressions"], *FILLS["context"]]
        filled = self.filled(FILLS["users"] | FILLS["ads"])
        self.write(
            joined.select("instance_id", "user_id", "ad_id", *known, *filled, *self.floats()), folder(work, "join")
        )

    def key(self, field: str, *values: Any) -> Any:
        """A 64-bit hash of values within a field."""
        return self.f.xxhash64(self.f.lit(SEED[field]), *values)

    def keys(self, field: str, tokens: Any) -> Any:
        return self.f.transform(tokens, lambda token: self.key(field, token))

    def split(self, name: str, separator: str) -> Any:
        """Tokens; an empty text has none. The text is lowered where words are compared."""
        f = self.f
        return f.when(f.col(name) == "", f.array().cast("array<string>")).otherwise(f.split(name, separator))

    def tokens(self, joined: Any) -> Any:
        """Every text as a list, words as hashes."""
        f = self.f
        lowered = joined.withColumns({"query_low": f.lower("query"), "title_low": f.lower("title")})
        split = lowered.withColumns(
            {
                "words": self.split("query_low", " "),
                "titles": self.split("title_low", " "),
                "categories": self.split("category", "/"),
                "visited": self.split("history", "\\|"),
            }
        )
        hashed = {name: f.transform(name, lambda word: f.xxhash64(word)) for name in ("words", "titles")}
        first = f.coalesce(f.try_element_at("words", f.lit(1)), f.lit(""))
        return split.withColumns({"word": first, **hashed})

    def own(self) -> dict[str, Any]:
        f = self.f
        c = f.col
        bucket = sum(((c("age") >= age).cast("int") for age in AGES), f.lit(0))
        scalar = {
            "user": c("user_id"),
            "ad": c("ad_id"),
            "advertiser": c("advertiser_id"),
            "campaign": c("campaign_id"),
            "hour": f.hour("ts"),
            "weekday": f.weekday("ts"),
            "age_bucket": bucket,
            "query_word": f.coalesce("word_id", f.lit(0)),
            **{name: c(name) for name in ("city", "app", "slot", "device", "gender", "country")},
        }
        several = {
            "user_x_ad": (c("user_id"), c("ad_id")),
            "user_x_advertiser": (c("user_id"), c("advertiser_id")),
            "hour_x_advertiser": (f.hour("ts"), c("advertiser_id")),
            "city_x_app": (c("city"), c("app")),
            "age_x_gender_x_category": (
                bucket,
                c("gender"),
                f.coalesce(f.try_element_at("categories", f.lit(1)), f.lit("")),
            ),
            "device_x_slot": (c("device"), c("slot")),
            "query_x_ad": (c("query"), c("ad_id")),
        }
        last = f.slice("visited", f.greatest(f.size("visited") - 19, f.lit(1)), 20)
        lists = {
            "query": c("words"),
            "title": c("titles"),
            "category": c("categories"),
            "keywords": self.split("keywords", ","),
            "interests": self.split("interests", "\\|"),
            "history": last,
        }
        rest = f.greatest(f.size("words") - 1, f.lit(0))
        bigrams = f.zip_with(
            f.slice("words", f.lit(1), rest), f.slice("words", f.lit(2), rest), lambda a, b: self.key("bigrams", a, b)
        )
        return {
            **{name: self.key(name, value) for name, value in scalar.items()},
            **{name: self.key(name, *values) for name, values in several.items()},
            **{name: self.keys(name, values) for name, values in lists.items()},
            "bigrams": bigrams,
            "token_x_advertiser": f.transform(
                "words", lambda word: self.key("token_x_advertiser", word, c("advertiser_id"))
            ),
        }

    def numbers(self) -> dict[str, Any]:
        f = self.f
        c = f.col
        micros = f.unix_micros(c("ts").cast("timestamp")) - f.unix_micros(c("created").cast("timestamp"))
        either = c("distinct_words") + c("distinct_titles") - c("common")
        values = {
            "label": c("clicked"),
            "log_bid": f.log1p("bid"),
            "log_price": f.log1p("price"),
            "depth": c("depth"),
            "position": f.least(f.greatest("position", f.lit(0)), f.lit(20)),
            "overlap": c("common"),
            "jaccard": f.when(either > 0, c("common") / either).otherwise(0.0),
            "query_chars": f.length("query"),
            "query_tokens": f.size("words"),
            "title_chars": f.length("title"),
            "ad_age": f.greatest(f.coalesce(micros / 3_600_000_000, f.lit(0.0)), f.lit(0.0)),
            "user_age": c("age") / 100,
        }
        return {name: value.cast("float") for name, value in values.items()}

    def extract(self, root: Path, work: Path) -> None:
        f = self.f
        words = self.read(root, "words.parquet").withColumnRenamed("id", "word_id")
        listed = self.tokens(self.read(folder(work, "join"))).join(f.broadcast(words), "word", "left")
        sets = listed.withColumns(
            {
                "common": f.size(f.array_intersect("words", "titles")),
                "distinct_words": f.size(f.array_distinct("words")),
                "distinct_titles": f.size(f.array_distinct("titles")),
            }
        )
        features = {**self.own(), **self.numbers()}
        kept = [features[name].alias(name) if name in features else name for name in COLUMNS]
        self.write(sets.select(kept), folder(work, "extract"))
