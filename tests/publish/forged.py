"""Key files and signed statements as an enemy writes them: flipped, cut, of other types, and well signed nonsense.

    python -m tests.publish.forged --count 1000000

Each parser must accept what was written, or refuse with one of our errors; any other exception ends the run.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ctrbox.errors import DataError, SignatureError
from ctrbox.files.sealed_json import sealed
from ctrbox.publish.signed_statement import SIGNED, FileFacts, Statement, opened
from ctrbox.publish.signing_keys import PrivateKey, PublicKey, keygen

VALUES: list[Any] = [
    None, True, False, -1, 0, 1, 7, 2**31, 2**63, 10**400, 1.5, float("nan"), float("inf"), "", "x" * 70_000, "\x00", "\ud800",
    "0" * 16, "0" * 32, "0" * 64, "0" * 128, "é" * 32, [], [[]], {}, {"bytes": 1}, {"bytes": -1, "sha256": "0" * 64},
    {"bytes": 1, "sha256": "0" * 64}, "../plan.ctr", "2026-11-18T00:00:00Z", "٢٠٢٦-11-18T00:00:00Z",
]  # fmt: skip
NAMES = [
    "format",
    "model",
    "version",
    "log_bytes",
    "log_seal",
    "files",
    "time",
    "key",
    "statement",
    "signature",
    "x",
    "",
]
GOOD = Statement("ab" * 16, 7, 4000, "cd" * 32, {"plan.ctr": FileFacts(9, "ef" * 32)}, "2026-11-18T09:30:00Z")


def changed(draw: random.Random, text: bytes) -> bytes:
    """Return the text with a byte flipped, cut out or put in, or cut off."""
    at, how = draw.randrange(len(text)), draw.randrange(4)
    if how == 0:
        return text[:at] + bytes([text[at] ^ 1 << draw.randrange(8)]) + text[at + 1 :]
    if how == 1:
        return text[:at] + text[at + draw.randrange(1, 9) :]
    if how == 2:
        return text[:at] + draw.randbytes(draw.randrange(1, 9)) + text[at:]
    return text[:at]


def replaced(draw: random.Random, facts: dict[str, Any]) -> dict[str, Any]:
    """Return the object with some of its values replaced, removed or added."""
    made = dict(facts)
    for _ in range(draw.randrange(1, 3)):
        name = draw.choice([*made, *NAMES])
        if draw.random() < 0.2:
            made.pop(name, None)
        else:
            made[name] = draw.choice(VALUES)
    return made


def one_statement(draw: random.Random, key: PrivateKey) -> str:
    """Offer one forged signature; return what became of it."""
    signed: Any = GOOD.signed_by(key)
    kind = draw.randrange(4)
    if kind == 0:  # without the private key
        name = draw.choice(list(signed))
        signed[name] = changed(draw, signed[name].encode()).decode("utf-8", "surrogateescape")
    elif kind == 1:
        signed = draw.choice([replaced(draw, signed), draw.choice(VALUES)])
    else:  # signed nonsense: a publisher that is broken or hostile
        text = json.dumps(replaced(draw, json.loads(signed["statement"])))
        if kind == 3:
            text = changed(draw, text.encode()).decode("utf-8", "replace")
        signed = {
            **signed,
            "statement": text,
            "signature": key.sign(SIGNED + text.encode("utf-8", "surrogatepass")).hex(),
        }
    try:
        found = opened(signed, {key.id: key.public}, "CURRENT")
    except SignatureError:
        return "refused"
    if kind == 0:
        assert found == GOOD  # nothing that was not signed
        return "the signed one"
    assert 0 < found.version <= 1 << 50
    assert 0 <= found.log_bytes <= 1 << 50
    assert len(found.model) == 32
    assert len(found.log_seal) == 64
    assert set(found.files) <= {"serve.json", "plan.ctr", "log.arrow"}
    return "another that was signed"


def one_key_file(draw: random.Random, place: Path, read: Callable[[Path], Any], text: bytes, key_id: str) -> str:
    """Offer one forged key file; return what became of it."""
    forged = place / "forged"
    if draw.random() < 0.5:
        forged.write_bytes(changed(draw, text))
    else:
        facts = {k: v for k, v in json.loads(text).items() if k not in ("seal", "format")}
        facts = replaced(draw, {k: v if draw.random() < 0.9 else draw.choice(VALUES) for k, v in facts.items()})
        forged.write_text(sealed(facts), encoding="utf-8", errors="surrogatepass")
    forged.chmod(0o600)
    try:
        found = read(forged)
    except DataError:
        return "refused"
    assert found.id == key_id
    return "the key"


def run(count: int, seed: int, place: Path) -> Counter[tuple[str, str]]:
    """Offer so many of each, and return what became of them."""
    draw, met = random.Random(seed), Counter[tuple[str, str]]()
    keygen(place / "key")
    key = PrivateKey.read(place / "key")
    readers: list[tuple[str, Callable[[Path], Any], bytes]] = [
        ("private key", PrivateKey.read, (place / "key").read_bytes()),
        ("public key", PublicKey.read, (place / "key.pub").read_bytes()),
    ]
    for _ in range(count):
        met["statement", one_statement(draw, key)] += 1
        for name, read, text in readers:
            met[name, one_key_file(draw, place, read, text, key.id)] += 1
    return met


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        for (what, became), times in sorted(run(given.count, given.seed, Path(place)).items()):
            print(f"{what}: {became} {times:,}")


if __name__ == "__main__":
    main()
