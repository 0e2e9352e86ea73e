"""The synthetic ad log keeps its promises: shapes, shares, order, a truth that fits the clicks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from ctrbox.datasets import adlog_text as text_module
from ctrbox.datasets.adlog_vocabulary import COUNTRIES, TOPICS, vocabulary
from ctrbox.datasets.adlog_world import power_law
from ctrbox.datasets.write_adlog import ADS, BASIC, IMPRESSIONS, TRUTH, USERS, AdLog, _Score, adlog
from ctrbox.errors import CtrboxError, DataError, WriteError

ROWS = 40_000


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> AdLog:
    return adlog(ROWS, 3, tmp_path_factory.mktemp("adlog") / "log")


def read(path: Path) -> pa.Table:
    return pq.read_table(path)


def auc(scores: np.ndarray, clicked: np.ndarray) -> float:
    """The plain definition: the share of (click, miss) pairs in the right order, ties half."""
    _, rank, count = np.unique(scores, return_inverse=True, return_counts=True)
    middle = (np.cumsum(count) - (count - 1) / 2)[rank]
    clicks = int(clicked.sum())
    return float((middle[clicked].sum() - clicks * (clicks + 1) / 2) / (clicks * (len(clicked) - clicks)))


@pytest.mark.parametrize(
    ("view", "schema"),
    [("impressions", IMPRESSIONS), ("users", USERS), ("ads", ADS), ("basic", BASIC), ("truth", TRUTH)],
)
def test_every_file_of_a_view_has_its_schema_and_checked_pages(log: AdLog, view: str, schema: pa.Schema) -> None:
    files = sorted((log.path / view).glob("*.parquet"))
    assert files
    for file in files:
        assert pq.read_schema(file).equals(schema)
        pq.ParquetFile(file, page_checksum_verification=True).read()


def test_counts_are_those_asked_for(log: AdLog) -> None:
    assert (log.rows, log.users_count, log.ads_count) == (ROWS, ROWS // 10, ROWS // 40)
    assert read(log.impressions).num_rows == read(log.truth).num_rows == ROWS
    assert read(log.users).num_rows == log.users_count
    assert read(log.ads).num_rows == log.ads_count


def test_impressions_are_in_order_of_id_and_time(log: AdLog) -> None:
    impressions = read(log.impressions)
    assert (np.diff(impressions["instance_id"].to_numpy()) > 0).all()
    ts = impressions["ts"].cast(pa.int64()).to_numpy()
    assert (np.diff(ts) >= 0).all()
    assert 6.9 < (ts[-1] - ts[0]) / 86_400e6 < 7


def test_dimension_keys_are_unique_and_not_sorted(log: AdLog) -> None:
    for view, key in ((log.users, "user_id"), (log.ads, "ad_id")):
        keys = read(view)[key].to_numpy()
        assert len(np.unique(keys)) == len(keys)
        assert (np.diff(keys) < 0).any()


def test_shares_of_nulls_and_missing_keys(log: AdLog) -> None:
    impressions = read(log.impressions)

    def nulls(table: pa.Table, name: str) -> float:
        return table[name].null_count / table.num_rows

    def missing(key: str, view: Path) -> float:
        return 1 - pc.mean(pc.is_in(impressions[key], read(view)[key].combine_chunks()).cast(pa.float64())).as_py()

    assert nulls(impressions, "query") == pytest.approx(0.03, abs=0.005)
    assert nulls(impressions, "device") == pytest.approx(0.01, abs=0.004)
    assert nulls(impressions, "position") == pytest.approx(0.01, abs=0.004)
    assert nulls(impressions, "price") == pytest.approx(0.02, abs=0.005)
    for name in ("instance_id", "ts", "user_id", "ad_id", "context", "clicked"):
        assert nulls(impressions, name) == 0
    assert missing("user_id", log.users) == pytest.approx(0.025, abs=0.005)
    assert missing("ad_id", log.ads) == pytest.approx(0.015, abs=0.004)
    users, ads = read(log.users), read(log.ads)
    assert nulls(users, "age") == pytest.approx(0.08, abs=0.02)
    assert nulls(users, "gender") == pytest.approx(0.10, abs=0.02)
    assert nulls(ads, "bid") == pytest.approx(0.05, abs=0.02)


def test_basic_follows_the_log_and_lacks_a_few_instances(log: AdLog) -> None:
    ids = read(log.impressions)["instance_id"].to_numpy()
    basic = read(log.basic)
    kept = basic["instance_id"].to_numpy()
    assert (np.diff(kept) > 0).all()
    assert np.isin(kept, ids).all()
    assert 1 - len(kept) / len(ids) == pytest.approx(0.005, abs=0.002)
    assert any(basic[name].null_count for name in basic.column_names)


def test_contexts_are_json_but_for_one_in_a_thousand(log: AdLog) -> None:
    contexts = read(log.impressions)["context"].to_pylist()
    good, bad = [], 0
    for context in contexts:
        try:
            good.append(json.loads(context))
        except ValueError:
            bad += 1
    assert bad / len(contexts) == pytest.approx(0.001, abs=0.0006)
    cities = {g["geo"].get("city") for g in good if g["geo"]}
    assert {"Łódź", "東京", None} <= cities
    assert any("\\u" in context for context in contexts)
    assert any(g.get("slot", 0) is None for g in good)
    assert any("slot" not in g for g in good)
    assert {type(g["page"]["depth"]) for g in good if g.get("page") and "depth" in g["page"]} >= {
        float,
        type(None),
    }
    assert all(g["geo"]["country"] in COUNTRIES for g in good if g["geo"])
    assert 120 < np.mean([len(c.encode()) for c in contexts]) < 200


def test_text_is_of_many_languages_and_mostly_not_a_dictionary(log: AdLog) -> None:
    queries = [q for q in read(log.impressions)["query"].to_pylist() if q is not None]
    assert len(set(queries)) > 0.2 * len(queries)
    text = " ".join(queries[:20_000])
    for sample in ("旅行", "кредит", "łóżko", "🔥", "👩‍👩‍👧"):
        assert sample in text
    assert any(q.isupper() for q in queries)
    assert any(q.endswith("?") for q in queries)


def test_history_and_interests_name_what_exists(log: AdLog) -> None:
    users, ads = read(log.users), read(log.ads)
    known = set(map(str, ads["ad_id"].to_pylist()))
    lengths = []
    for history, interests in zip(users["history"].to_pylist(), users["interests"].to_pylist(), strict=True):
        clicked = history.split("|") if history else []
        lengths.append(len(clicked))
        assert known.issuperset(clicked)
        topics = interests.split("|")
        assert 1 <= len(topics) == len(set(topics)) <= 4
        assert set(topics) <= set(TOPICS)
    assert min(lengths) == 0
    assert 30 < max(lengths) <= 50


def test_keywords_are_the_words_of_the_title(log: AdLog) -> None:
    for row in read(log.ads).slice(0, 300).to_pylist():
        title = row["title"].lower()
        assert all(word in title for word in row["keywords"].split(","))
        assert row["category"].count("/") == 2
        assert row["landing"].endswith(f"?ad={row['ad_id']}")


def test_best_auc_is_that_of_the_truth(log: AdLog) -> None:
    truth, impressions = read(log.truth), read(log.impressions)
    assert truth["instance_id"].equals(impressions["instance_id"])
    p = truth["p_click"].to_numpy()
    clicked = impressions["clicked"].to_numpy() == 1
    assert log.best_auc == pytest.approx(auc(p, clicked), abs=1e-4)
    assert log.logloss == pytest.approx(-np.mean(np.log(np.where(clicked, p, 1 - p))))
    assert log.base_rate == pytest.approx(clicked.mean())
    assert 0.78 <= log.best_auc <= 0.85
    assert 0.15 <= log.base_rate <= 0.21
    # Clicks are drawn from p: in every tenth of the log by p, their share is p.
    order = np.argsort(p)
    for tenth in np.array_split(order, 10):
        assert clicked[tenth].mean() == pytest.approx(p[tenth].mean(), abs=0.025)


def test_drift_moves_the_popular_ads(log: AdLog) -> None:
    impressions = read(log.impressions)
    ids = impressions["ad_id"].to_numpy()
    heads = []
    for part in (ids[: ROWS // 7], ids[-ROWS // 7 :]):
        values, counts = np.unique(part, return_counts=True)
        heads.append(set(values[np.argsort(-counts)[:20]]))
    assert 2 <= len(heads[0] & heads[1]) <= 18


def test_popular_users_dominate(log: AdLog) -> None:
    _, counts = np.unique(read(log.impressions)["user_id"].to_numpy(), return_counts=True)
    counts = np.sort(counts)[::-1]
    assert counts[: len(counts) // 10].sum() > 0.3 * ROWS


def test_same_arguments_give_the_same_values(tmp_path: Path) -> None:
    one, two = adlog(3_000, 5, tmp_path / "one"), adlog(3_000, 5, tmp_path / "two")
    other = adlog(3_000, 6, tmp_path / "other")
    for view in ("impressions", "users", "ads", "basic", "truth"):
        assert read(one.path / view).equals(read(two.path / view))
        assert not read(one.path / view).equals(read(other.path / view))
    assert one.best_auc == two.best_auc


def test_values_do_not_depend_on_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctrbox.datasets.write_adlog.BLOCK", 700)
    many = adlog(3_000, 5, tmp_path / "many")
    monkeypatch.setattr("ctrbox._native.usable_cores", lambda: 1)
    one = adlog(3_000, 5, tmp_path / "one")
    assert len(list(one.impressions.iterdir())) == 5
    for view in ("impressions", "users", "ads", "basic", "truth"):
        assert read(one.path / view).equals(read(many.path / view))
    assert (np.diff(read(one.impressions)["instance_id"].to_numpy()) > 0).all()


def test_a_log_that_is_there_is_reused_and_another_replaced(tmp_path: Path) -> None:
    out = tmp_path / "log"
    first = adlog(1_000, 0, out)
    stamp = (out / "adlog.json").stat().st_mtime_ns
    assert adlog(1_000, 0, out) == first
    assert (out / "adlog.json").stat().st_mtime_ns == stamp
    second = adlog(1_200, 0, out)
    assert read(second.impressions).num_rows == 1_200
    assert [p.name for p in tmp_path.iterdir()] == ["log"]


def test_a_folder_with_other_things_is_refused_and_kept(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(DataError, match="exists and is not the folder of a generated ad log"):
        adlog(1_000, 0, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_failure_leaves_the_old_log_and_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "log"
    first = adlog(1_000, 0, out)

    def full(*_: object) -> pa.Array:
        raise OSError("no space left on device")

    monkeypatch.setattr(text_module, "contexts", full)
    with pytest.raises(WriteError, match=r"cannot write .*log: no space left on device; the previous log is unchanged"):
        adlog(2_000, 0, out)
    assert [p.name for p in tmp_path.iterdir()] == ["log"]
    assert adlog(1_000, 0, out) == first


@pytest.mark.parametrize(
    "bad",
    [
        {"rows": 0},
        {"rows": -1},
        {"rows": 10, "days": 0},
        {"rows": 10, "seed": -1},
        {"rows": 10, "users": 0},
        {"rows": None},
        {"rows": 10, "seed": 1.5},
    ],
)
def test_impossible_sizes_are_named(tmp_path: Path, bad: dict[str, int]) -> None:
    with pytest.raises(CtrboxError, match=r"of adlog"):
        adlog(out=tmp_path / "log", **bad)  # type: ignore[arg-type]
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize(("rows", "days"), [(1, 1), (1, 30), (17, 3), (1_000, 7)])
def test_small_logs_work(tmp_path: Path, rows: int, days: int) -> None:
    log = adlog(rows, 1, tmp_path / "log", users=1, ads=1, days=days)
    assert read(log.impressions).num_rows == rows
    assert 0 <= log.best_auc <= 1


def test_progress_reaches_the_end_from_the_calling_thread(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    adlog(1_000, 0, tmp_path / "log", progress=lambda done, rows: seen.append((done, rows)))
    assert seen == [(1_000, 1_000)]


def test_power_law_stays_in_range_and_prefers_the_head() -> None:
    u = np.linspace(0, 1, 10_001)
    for n in (1, 2, 1_000):
        ranks = power_law(u, n, 0.7)
        assert ranks.min() == 0
        assert ranks.max() == n - 1
    counts = np.bincount(power_law(u[:-1], 1_000, 0.7))
    assert counts[0] > 5 * counts[100] > 0


def test_every_spelling_folds_back_to_its_word() -> None:
    known = vocabulary()
    count = len(known.words)
    for number, spelling in enumerate(known.surface[: 6 * count]):
        assert spelling.strip().lower() == known.words[number % count]


def test_the_best_auc_counts_a_tie_as_half_a_pair_in_order() -> None:
    def total(p: list[float], clicked: list[bool]) -> dict[str, float]:
        return _Score.total([_Score.of(np.array(p), np.array(clicked))])

    found = total([0.1, 0.9, 0.9], [False, True, False])
    assert found["best_auc"] == 0.75
    assert found["base_rate"] == pytest.approx(1 / 3)
    assert found["logloss"] == pytest.approx(-(2 * np.log(0.9) + np.log(0.1)) / 3)
    assert total([0.3] * 4, [True, False, False, True])["best_auc"] == 0.5
    assert total([0.2, 0.4], [True, True])["best_auc"] == 0.5
