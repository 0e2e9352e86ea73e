"""Compares the keys of a plan with the keys of a vector file: hashed keys are never in a file of plain numbers."""

from __future__ import annotations

from ctrbox.compiled_plan.plan import Plan
from ctrbox.embed.vectors.count_keys_without_vector import plain
from ctrbox.errors import DataError
from ctrbox.plan.language.hashed_or_plain_keys import hashed_kind
from ctrbox.predict.model_with_tables import ClickModel


def check_key_kinds(model: ClickModel, plan: Plan) -> None:
    """Raise a DataError if a field with hashed keys has a vector file of plain numbers, which has no key of the field."""
    hashes = {o.name for o in plan.graph.outputs if o.role == "sparse" and hashed_kind(o.node) in ("s", "i")}
    for source in model.sources:
        objects = source.traits.objects
        if objects is None or not plain(objects.data):
            continue
        for name in source.fields:
            if name in hashes:
                raise DataError(
                    f"field {name!r} hashes its values to keys, so none of them can be in {objects.data.path}: the keys in this "
                    f"file are small plain numbers; they were not hashed. The first is {int(objects.data.keys[0])}. Write the "
                    "file with the plan's key expression, for example "
                    "cb.tables.write_vectors(…, key=col('ad_id').key(space='image'))"
                )
