"""Generates the synthetic ad log, whose true click probabilities are known, and reads public click logs.

This folder knows no view: a reader is anything that speaks Arrow, so `cb.View(cb.datasets.criteo(path),
key="row")` needs nothing from here, and a path of an `AdLog` is a folder of Parquet files like any other.
"""

from ctrbox.arguments.names import refuse_unknown
from ctrbox.datasets.bundled import ClickSet, criteo_attribution, criteo_sample, frappe, open_bandit
from ctrbox.datasets.delimited import avazu, criteo
from ctrbox.datasets.events import adlog_events
from ctrbox.datasets.lines import TextLog
from ctrbox.datasets.movielens import movielens
from ctrbox.datasets.synthetic import adlog
from ctrbox.datasets.tokens import libffm, vw

__all__ = [
    "ClickSet",
    "TextLog",
    "adlog",
    "adlog_events",
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

refuse_unknown(__name__, __all__)
