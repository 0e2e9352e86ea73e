"""Compare what views and operators hand out with plain Python, over random files, JSON values and casts.

    python -m tests.oracle_suite --files 10000 --json 1000000 --casts 100000 --seed 7

Prints what was compared and every difference; the exit status is 1 where there is one. ``--file N`` repeats case N alone.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.oracle_suite.random_casts import check_casts
from tests.oracle_suite.random_files import check_file
from tests.oracle_suite.random_json import check_json

BLOCK = 2000  # JSON values or rows of casts at a time
MOST_SHOWN = 20  # differences


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare CTRBox with plain Python on random data.")
    parser.add_argument("--files", type=int, default=10_000, help="number of random files (default 10,000)")
    parser.add_argument("--json", type=int, default=1_000_000, help="number of JSON values (default 1,000,000)")
    parser.add_argument(
        "--casts", type=int, default=100_000, help="rows of which every cast is compared (default 100,000)"
    )
    parser.add_argument("--seed", type=int, default=20_261_118, help="seed of everything that is random")
    parser.add_argument("--file", type=int, help="compare this file alone, by its number")
    asked = parser.parse_args()
    tally: Counter[str] = Counter()
    differences: list[str] = []
    began = time.monotonic()

    def attempt(what: str, check: object, *arguments: object) -> None:
        try:
            check(*arguments, tally)  # type: ignore[operator]
        except Exception as error:  # an error nobody promised is a difference too
            differences.append(f"{what}: {type(error).__name__}: {error}")
            if len(differences) <= MOST_SHOWN:
                print(differences[-1], flush=True)

    with tempfile.TemporaryDirectory() as folder:
        numbers = range(asked.files) if asked.file is None else [asked.file]
        for number in numbers:
            attempt(f"file {number}", check_file, asked.seed * 1_000_000 + number, Path(folder))
            if number % 1000 == 999:
                print(f"… {number + 1:,} files, {time.monotonic() - began:,.0f} s", flush=True)
    if asked.file is None:
        for block in range(asked.json // BLOCK):
            attempt(f"JSON block {block}", check_json, asked.seed + block, BLOCK)
        for block in range(asked.casts // BLOCK):
            attempt(f"casts block {block}", check_casts, asked.seed + block, BLOCK)
    for name, count in tally.items():
        print(f"{count:>14,}  {name}")
    print(f"{len(differences):,} differences, seed {asked.seed}, {time.monotonic() - began:,.0f} s")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
