"""Explains errors of a checkout whose native extension was built before the sources were changed.

The Python sources then call the extension by names or with arguments that it does not have, and Python's error does not name the
cause. A command calls this only after such an error, so that commands that work do not look at the sources.
"""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
KINDS = (AttributeError, ImportError, TypeError)  # errors of a call of something that does not exist
BUILD_FILES = {".h", ".cpp", ".cu", ".txt"}


def old_native(error: BaseException, package: Path = PACKAGE) -> str:
    """Return one sentence that says what to run, if the error may come from an old extension; otherwise ""."""
    if not isinstance(error, KINDS):
        return ""
    root = package.parents[1]
    sources = [path for path in (root / "native").rglob("*") if path.suffix in BUILD_FILES]
    if not sources:  # an installed wheel: sources and extension are of one version
        return ""
    built = sorted(package.glob("_native*.so"))
    told = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"
    if not built:
        return f"the native extension is not built; run `make native` in {root}, and then this command again ({told})"
    newest = max(sources, key=lambda path: path.stat().st_mtime_ns)
    if newest.stat().st_mtime_ns <= max(path.stat().st_mtime_ns for path in built):
        return ""
    return (
        f"the native extension is older than {newest.relative_to(root)}; run `make native` in {root}, and then this command "
        f"again ({told})"
    )
