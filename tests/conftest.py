"""Settings of all tests: cuts their ids to a length that fits one line of a terminal."""

from __future__ import annotations

MOST_LETTERS = 48  # of one parameter in the id of a test


def pytest_make_parametrize_id(config: object, val: object, argname: str) -> str | None:
    """Cut the text of a long parameter, such as a whole HTTP request; pytest numbers ids that are the same then."""
    if isinstance(val, bytes):
        shown = ascii(val)[2:-1]
    elif isinstance(val, (str, int)) and not isinstance(val, bool):
        shown = ascii(val).strip("'\"")
    else:
        return None
    return f"{shown[: MOST_LETTERS - 3]}..." if len(shown) > MOST_LETTERS else None
