"""Check the subject of a commit message: its length, its kind and the part of CTRBox that it names.

    python tools/check_subject.py .git/COMMIT_EDITMSG

pre-commit runs this on each commit once `.venv/bin/pre-commit install` was called.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

LONGEST = 72  # characters; git and code hosts cut longer subjects
KINDS = ("feat", "fix", "perf", "refactor", "test", "docs", "bench", "build", "style")
WHOLE_TREE = ("refactor", "test", "docs", "build", "style")  # a change of these kinds may concern no single part
FORM = re.compile(rf"(?P<kind>{'|'.join(KINDS)})(?P<part>\([a-z0-9_/., -]+\))?!?: \S.*[^.\s]")


def fault(subject: str) -> str | None:
    """Return what is wrong with a subject, or None where nothing is. Merges, reverts and fixups are git's own words."""
    if re.match(r"(merge|Merge|Revert|fixup!|squash!)[ :]", subject):
        return None
    if len(subject) > LONGEST:
        return f"the subject has {len(subject)} characters; expected at most {LONGEST}, and the reasons in the body"
    form = FORM.fullmatch(subject)
    if form is None:
        kinds = ", ".join(KINDS)
        return f"expected a subject such as 'fix(table): refuse a budget of 0', with one of the kinds {kinds}, and no full stop"
    if form["part"] is None and form["kind"] not in WHOLE_TREE:
        return f"a {form['kind']} names the part that it changes, such as '{form['kind']}(views): …'"
    return None


def subject_of(message: str) -> str:
    """Return the first line of a message that is neither empty nor a comment."""
    lines = (line for line in message.splitlines() if line.strip() and not line.startswith("#"))
    return next(lines, "")


def main(path: str) -> int:
    subject = subject_of(Path(path).read_text(encoding="utf-8"))
    wrong = fault(subject)
    if wrong is not None:
        print(f"{subject!r}: {wrong}", file=sys.stderr)
    return int(wrong is not None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
