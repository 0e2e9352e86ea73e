"""Generates the synthetic ad log, whose true click probabilities are known, and reads public click logs.

A view needs nothing from here: a reader is anything that speaks Arrow, as in `cb.View(cb.datasets.criteo(path), key="row")`,
and a path of an `AdLog` is a folder of Parquet files like any other. Only the log of `movielens` uses a view, for its histories.
"""

from ctrbox.arguments.names import refuse_unknown
from ctrbox.datasets.criteo_avazu import avazu, criteo
from ctrbox.datasets.movielens import movielens
from ctrbox.datasets.public_parquet import ClickSet, criteo_attribution, criteo_sample, frappe, open_bandit
from ctrbox.datasets.public_text_logs import TextLog
from ctrbox.datasets.vw_libffm import libffm, vw
from ctrbox.datasets.write_adlog import adlog
from ctrbox.datasets.write_adlog_events import adlog_events

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
