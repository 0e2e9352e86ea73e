"""What `make fuzz` runs: every target has seeds, and docs/faults.md names it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def targets() -> set[str]:
    text = (ROOT / "native" / "fuzz" / "targets.cmake").read_text()
    plain = set(re.findall(r"^ctrbox_fuzz\((\w+) ", text, re.MULTILINE))
    found = re.search(r"foreach\(file ([\w ]+)\)", text)
    assert found
    files = set(found[1].split())
    return plain | files | {f"{name}_forged" for name in files}


def test_every_target_has_seeds_of_our_own_writers(tmp_path: Path) -> None:
    made = [sys.executable, str(ROOT / "tools" / "fuzz_seeds.py"), str(tmp_path)]
    subprocess.run(made, check=True, capture_output=True)
    assert {folder.name for folder in tmp_path.iterdir()} == targets()
    assert all(any(folder.iterdir()) for folder in tmp_path.iterdir())


def test_every_target_is_described() -> None:
    page = (ROOT / "docs" / "faults.md").read_text()
    assert all(f"`{name}`" in page for name in targets() if not name.endswith("_forged"))
    sources = {p.stem for p in (ROOT / "native" / "fuzz").glob("*.cpp")}
    assert sources - {"operators"} <= targets()
