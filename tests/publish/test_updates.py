"""Which files a folder of versions keeps, and how a copy is brought up to date."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ctrbox.errors import DataError, PlanError, SourceError
from ctrbox.publish import Part, Published, Weights, write_weights


def published(folder: Path, count: int, keep: int = 8, size: int = 3) -> Published:
    """Publish ``count`` versions of weights of which three are other ones each time."""
    made = Published(folder / "published", keep=keep)
    for number in range(1, count + 1):
        weights = np.zeros(size, np.float32)
        weights[:3] = np.random.default_rng(number).random(3)
        write_weights(folder / "w.fbw", Weights("test", {}, [Part.floats("w", weights)]), quantize=False)
        made.publish(folder / "w.fbw", note=f"number {number}")
    return made


def kept(folder: Published) -> list[int]:
    return sorted(int(p.stem) for p in (folder.folder / "versions").glob("*.fbw"))


@pytest.mark.parametrize(
    ("keep", "count", "files"), [(2, 1, [1]), (2, 2, [1, 2]), (2, 3, [2, 3]), (3, 3, [1, 2, 3]), (3, 5, [3, 4, 5])]
)
def test_as_many_files_are_kept_as_asked_for_and_all_patches(
    tmp_path: Path, keep: int, count: int, files: list[int]
) -> None:
    folder = published(tmp_path, count, keep)
    assert kept(folder) == files
    assert [v.number for v in folder.log()] == list(range(1, count + 1))
    assert [v.patch_bytes > 0 for v in folder.log()] == [number > 1 for number in range(1, count + 1)]
    assert sorted(p.stem for p in (folder.folder / "patches").glob("*")) == [f"{n:08}" for n in range(2, count + 1)]
    assert folder.current == folder.log()[-1]
    assert folder.current is not None
    assert folder.current.note == f"number {count}"
    assert folder.verify() == []


def test_two_files_are_the_fewest() -> None:
    with pytest.raises(PlanError, match="keep= must be at least 2, got 1"):
        Published("nowhere", keep=1)


def test_a_version_that_is_not_there_is_told_from_one_that_is_no_longer_kept(tmp_path: Path) -> None:
    folder = published(tmp_path, 3, keep=2)
    assert folder.file().name == "00000003.fbw"
    assert folder.file(2).name == "00000002.fbw"
    with pytest.raises(DataError, match=r"version 1 of .* is no longer kept; the folder still contains 2, 3"):
        folder.file(1)
    for number in (0, 4, -1):
        with pytest.raises(DataError, match=rf"has no version {number}; its versions are 1 to 3"):
            folder.file(number)
    with pytest.raises(SourceError, match="holds no published version"):
        Published(tmp_path / "none").file()


def test_a_copy_takes_patches_while_they_are_smaller_than_the_whole(tmp_path: Path) -> None:
    folder = published(tmp_path, 3, size=60)
    versions = folder.log()
    assert versions[2].patch_bytes <= versions[2].bytes < versions[1].patch_bytes + versions[2].patch_bytes
    patches = [folder.patch(number) for number in (2, 3)]
    whole = {number: folder.file(number).read_bytes() for number in (1, 2, 3)}
    for patch in patches:
        patch.rename(patch.with_suffix(".away"))
    # From version 1 both patches would be more than the file, so that it is copied whole and no patch is read.
    (tmp_path / "copy").write_bytes(whole[1])
    assert folder.update(tmp_path / "copy").number == 3
    assert (tmp_path / "copy").read_bytes() == whole[3]
    # From version 2 one patch is enough: it is needed.
    (tmp_path / "copy").write_bytes(whole[2])
    with pytest.raises(SourceError, match=r"cannot read .*00000003\.patch"):
        folder.update(tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == whole[2]
    patches[1].with_suffix(".away").rename(patches[1])
    folder.update(tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == whole[3]
    # The current version needs nothing; another file becomes it whole.
    patches[1].rename(patches[1].with_suffix(".away"))
    assert folder.update(tmp_path / "copy").number == 3
    (tmp_path / "copy").write_bytes(b"something else")
    folder.update(tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == whole[3]


def test_a_rollback_names_the_version_that_it_repeats(tmp_path: Path) -> None:
    folder = published(tmp_path, 2)
    again = folder.rollback(1, note="back")
    assert (again.number, again.copy_of, again.note) == (3, 1, "back")
    assert [v.copy_of for v in folder.log()] == [0, 0, 1]
    assert folder.file(3).read_bytes() == folder.file(1).read_bytes()
    assert (again.bytes, again.sha256) == (folder.log()[0].bytes, folder.log()[0].sha256)


def test_what_was_never_published_is_removed_by_the_next_publication(tmp_path: Path) -> None:
    folder = published(tmp_path, 2)
    for name in ("versions/00000003.fbw", "versions/00000009.fbw", "patches/00000007.patch", "versions/notes.fbw"):
        (folder.folder / name).write_bytes(b"left behind")
    with (folder.folder / "log.jsonl").open("ab") as file:
        file.write(b"half a line")
    published(tmp_path, 1)
    assert kept_names(folder) == ["00000001.fbw", "00000002.fbw", "00000003.fbw", "notes.fbw"]
    assert sorted(p.name for p in (folder.folder / "patches").iterdir()) == ["00000002.patch", "00000003.patch"]
    assert len(folder.log()) == 3
    (folder.folder / "versions/notes.fbw").unlink()
    assert folder.verify() == []


def kept_names(folder: Published) -> list[str]:
    return sorted(p.name for p in (folder.folder / "versions").iterdir())


def test_fields_that_the_served_plan_lacks_are_refused_by_name(tmp_path: Path) -> None:
    folder = published(tmp_path, 1)
    folder.serves(["user", "ad"])
    assert published(tmp_path, 1).current is not None  # weights of other kinds have no fields
    for names, wrong in ((["ad"], ""), (["ad", "usr"], "usr")):
        other = Published(tmp_path / f"of {names}")
        other.folder.mkdir()
        other.serves(["user", "ad"])
        write_weights(
            tmp_path / "f.fbw", Weights("deep_ffm", {"names": names}, [Part.floats("w", np.ones(1, np.float32))])
        )
        if wrong:
            with pytest.raises(
                DataError, match=r"the model's field 'usr' is not a feature of the plan .*; nearest: 'user'"
            ):
                other.publish(tmp_path / "f.fbw")
            assert other.log() == []
        else:
            assert other.publish(tmp_path / "f.fbw").kind == "deep_ffm"
