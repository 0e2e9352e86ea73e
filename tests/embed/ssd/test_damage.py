"""Flipped bits, short files and misplaced pages: always found, always named, never a wrong row."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import numpy as np
import pytest

import ctrbox as cb
from tests.embed.ssd.damage import PAGE, SETTINGS, Patient, opened


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Patient:
    return Patient.made(tmp_path_factory.mktemp("damage") / "table", seed=1)


def test_an_unharmed_table_passes_the_same_examination(patient: Patient) -> None:
    with opened(patient.folder) as table:
        assert table.verify() == []
        assert patient.read(table, "nothing", "unharmed") == 0


def test_every_flipped_bit_is_found_and_no_row_is_wrong(patient: Patient) -> None:
    rng = random.Random(2)
    found = [patient.flip(rng) for _ in range(120)]
    assert "verify" in found


def test_a_flipped_bit_in_a_table_with_unused_parts_is_found_or_does_no_harm(tmp_path: Path) -> None:
    patient, rng = Patient.merged(tmp_path / "table", seed=7), random.Random(8)
    found = [patient.flip(rng) for _ in range(60)]
    assert "verify" in found


def test_every_bit_of_the_manifest_is_guarded(patient: Patient) -> None:
    path, rng = patient.folder / "MANIFEST", random.Random(3)
    for bit in rng.sample(range(path.stat().st_size * 8), 150):

        def flipped(data: bytearray, at: int = bit) -> bytearray:
            data[at // 8] ^= 1 << at % 8
            return data

        assert patient.damaged(path, flipped, f"bit {bit}") == "open"


def test_a_short_or_missing_file_is_found(patient: Patient) -> None:
    rng = random.Random(4)
    for path in patient.files():
        size = path.stat().st_size
        cuts = {0, 1, size - 1, size - 8, size // PAGE * PAGE, *(rng.randrange(size) for _ in range(3))}
        for cut in sorted(c for c in cuts if 0 <= c < size):
            patient.damaged(path, lambda data, cut=cut: data[:cut], f"cut to {cut} bytes")
        if path.name != "MANIFEST":  # without one a folder is an empty table
            patient.damaged(path, lambda data: None, "removed")


def test_pages_that_changed_places_are_found(patient: Patient) -> None:
    rng, checked = random.Random(5), 0
    for path in patient.files():
        pages = path.stat().st_size // PAGE
        for _ in range(2 if pages > 1 else 0):
            a, b = rng.sample(range(pages), 2)

            def swapped(data: bytearray, a: int = a, b: int = b) -> bytearray:
                first = bytes(data[a * PAGE : (a + 1) * PAGE])
                data[a * PAGE : (a + 1) * PAGE] = data[b * PAGE : (b + 1) * PAGE]
                data[b * PAGE : (b + 1) * PAGE] = first
                return data

            def copied(data: bytearray, a: int = a, b: int = b) -> bytearray:
                data[a * PAGE : (a + 1) * PAGE] = data[b * PAGE : (b + 1) * PAGE]
                return data

            def zeroed(data: bytearray, a: int = a) -> bytearray:
                data[a * PAGE : (a + 1) * PAGE] = bytes(PAGE)
                return data

            for change in (swapped, copied, zeroed):
                if change(bytearray(path.read_bytes())) != path.read_bytes():
                    patient.damaged(path, change, f"pages {a} and {b} {change.__name__}")
                    checked += 1
    assert checked


def test_damage_below_an_open_table_is_refused_at_read_and_healed_when_the_bytes_are_back(
    patient: Patient, tmp_path: Path
) -> None:
    shutil.copytree(patient.folder, tmp_path / "table")
    rng, refusals = random.Random(6), 0
    for path in sorted((tmp_path / "table" / "segments").iterdir())[::3]:
        for _ in range(3):
            with opened(tmp_path / "table") as table:
                at = rng.randrange(path.stat().st_size)
                with path.open("r+b") as file:
                    file.seek(at)
                    was = file.read(1)[0]
                    file.seek(at)
                    file.write(bytes([was ^ 1 << rng.randrange(8)]))
                    file.flush()
                    refusals += patient.read(table, path.name, f"byte {at} of {path.name}")
                    file.seek(at)
                    file.write(bytes([was]))
                assert patient.read(table, path.name, "healed") == 0
                table.close(checkpoint=False)
    assert refusals


def test_a_push_that_meets_damage_changes_nothing(patient: Patient, tmp_path: Path) -> None:
    shutil.copytree(patient.folder, tmp_path / "table")
    for path in sorted((tmp_path / "table" / "segments").iterdir())[::5]:
        good = path.read_bytes()
        bad = bytearray(good)
        for page in range(0, len(bad), PAGE):
            bad[page + 99] ^= 4
        with opened(tmp_path / "table") as table:
            path.write_bytes(bad)
            pushed, refused = [], 0
            for at in range(0, len(patient.keys), 10):
                keys = patient.keys[at : at + 10]
                gradients = np.full((len(keys), SETTINGS["dim"]), 0.5, np.float32)
                try:
                    table.push(keys, gradients)
                    pushed.append(keys)
                except cb.errors.SourceError as error:
                    assert path.name in str(error)  # noqa: PT017 - the other way out is right as well
                    refused += 1
            path.write_bytes(good)
            assert refused
            expected = _pushed(patient, pushed, tmp_path)
            for mine, right in zip(table.export(), expected, strict=True):
                np.testing.assert_array_equal(mine.view(np.uint32), right.view(np.uint32))
            table.close(checkpoint=False)


def test_a_refused_open_lets_go_of_the_lock(patient: Patient, tmp_path: Path) -> None:
    shutil.copytree(patient.folder, tmp_path / "table")
    manifest = tmp_path / "table" / "MANIFEST"
    good = manifest.read_bytes()
    manifest.write_bytes(good[:-1])
    for _ in range(3):
        with pytest.raises(cb.errors.SourceError, match="MANIFEST"):
            opened(tmp_path / "table")
    manifest.write_bytes(good)
    with opened(tmp_path / "table") as table:
        assert table.verify() == []


def _pushed(patient: Patient, batches: list[np.ndarray], folder: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The rows after these pushes, by a table that met no damage."""
    shutil.copytree(patient.folder, folder / "whole")
    with opened(folder / "whole") as table:
        for keys in batches:
            table.push(keys, np.full((len(keys), SETTINGS["dim"]), 0.5, np.float32))
        rows = table.export()
    shutil.rmtree(folder / "whole")
    return rows
