"""Weights that processes share: a mapped file gives the bits of a loaded one, and cannot be written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ctrbox import _native
from ctrbox.errors import SourceError
from ctrbox.ffm.engine import DeepFFM
from ctrbox.publish.shared_weights import write_shared
from ctrbox.publish.weight_file import map_weights, read_directory, read_weights
from ctrbox.publish.weights_of_models import ffm_of, pack
from tests.serve.worlds import World, make_world


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("shared"), rows=400)


@pytest.mark.parametrize("settings", [{}, {"hidden": ()}, {"k": 9, "bits": 12}, {"lr": None}, {"ffm": None}])
def test_a_mapped_model_predicts_the_bits_of_a_loaded_one(
    world: World, tmp_path: Path, settings: dict[str, object]
) -> None:
    made = DeepFFM(world.plan.schema, **{"k": 4, "hidden": (8, 8), "bits": 14, **settings})
    made.learn(world.plan)
    published, shared = tmp_path / "a.fbw", tmp_path / "a.shared"
    pack(made, published)
    write_shared(published, shared)
    assert not read_directory(shared).codes
    loaded, mapped = DeepFFM.load(published, learns=False), DeepFFM._mapped(shared)
    (batch,) = world.plan.batches(400)
    assert np.array_equal(loaded.predict(batch).view(np.uint32), mapped.predict(batch).view(np.uint32))
    assert np.array_equal(loaded._native.weights(), mapped._native.weights())
    assert mapped.fields == loaded.fields
    shared.unlink()  # its memory stays as long as the model
    assert np.array_equal(loaded.predict(batch), mapped.predict(batch))
    with pytest.raises(ValueError, match="belong to a mapped file"):
        mapped._native.give_weights(loaded._native.weights())
    assert not mapped._native.learns
    assert mapped.bytes <= loaded.bytes


def test_a_shared_file_that_is_damaged_or_too_short_is_refused(world: World, tmp_path: Path) -> None:
    published, shared = tmp_path / "a.fbw", tmp_path / "a.shared"
    pack(world.engine, published)
    write_shared(published, shared)
    weights = map_weights(shared)
    assert weights.mapped is not None
    assert not weights.part("ffm").data.flags.writeable
    assert np.array_equal(weights.part("ffm").data, read_weights(published).part("ffm").data)
    settings = ffm_of(weights, "shared", False)[0].settings
    file, dense = weights.mapped, weights.part("dense").data
    places = (file.places["lr"], file.places["ffm"])
    _native.DeepFfm(settings, file.octets, *places, dense)
    # Without the part behind the last row the kernels would read beyond the end.
    end = file.places["ffm"] + weights.part("ffm").data.nbytes
    for octets, at in (
        (file.octets[:end], places),
        (file.octets, (places[0] + 4, places[1])),
        (file.octets, (0, 1 << 60)),
    ):
        with pytest.raises(ValueError, match="lie outside the mapped file"):
            _native.DeepFfm(settings, octets, *at, dense)
    with pytest.raises(ValueError, match="the number of dense weights differs"):
        _native.DeepFfm(settings, file.octets, *places, dense[:-1])
    with pytest.raises(_native.DamagedFile, match="not finite"):
        _native.DeepFfm(settings, file.octets, *places, np.full_like(dense, np.inf))
    settings.bits = 3
    with pytest.raises(ValueError, match="bits must be 4 to 36"):
        _native.DeepFfm(settings, file.octets, *places, dense)
    content = bytearray(shared.read_bytes())
    content[places[1] + 5] ^= 1
    (tmp_path / "flipped").write_bytes(content)
    with pytest.raises(SourceError, match="checksum of part 'ffm' is wrong"):
        DeepFFM._mapped(tmp_path / "flipped")
    with pytest.raises(SourceError, match="cannot read"):
        DeepFFM._mapped(tmp_path / "none")
