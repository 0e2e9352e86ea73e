"""The synthetic ad log with a known truth, and readers of public click logs.

This folder knows no view: a reader is anything that speaks Arrow, so `cb.View(cb.datasets.criteo(path),
key="row")` needs nothing from here, and a path of an `AdLog` is a folder of Parquet files like any other.
"""

from ctrbox.datasets.bundled import ClickSet, criteo_attribution, criteo_sample, frappe, open_bandit
from ctrbox.datasets.delimited import avazu, criteo
from ctrbox.datasets.lines import TextLog
from ctrbox.datasets.movielens import MovieLens, movielens
from ctrbox.datasets.synthetic import AdLog, adlog
from ctrbox.datasets.tokens import libffm, vw

__all__ = [
    "AdLog",
    "ClickSet",
    "MovieLens",
    "TextLog",
    "adlog",
    "avazu",
    "criteo",
    "criteo_attribution",
    "criteo_sample",
    "frappe",
    "libffm",
    "movielens",
    "open_bandit",
    "vw",
]
