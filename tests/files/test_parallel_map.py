"""A function over files, run by a few threads."""

from __future__ import annotations

import pytest

from ctrbox.files.parallel_map import side_by_side


def test_work_side_by_side_keeps_its_order_and_its_first_error() -> None:
    def work(item: int) -> int:
        if item >= 5:
            raise ValueError(f"item {item}")
        return item * 2

    for count in (0, 1, 3, 4, 5):
        assert side_by_side(work, range(count), "test") == [2 * item for item in range(count)]
    with pytest.raises(ValueError, match="item 5"):
        side_by_side(work, range(9), "test")
