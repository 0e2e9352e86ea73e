"""Signed versions: what a key signs is believed, and nothing else; key files keep their format and their permissions."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ctrbox.errors import CtrboxError, DataError, PlanError, SignatureError, SourceError, WriteError
from ctrbox.files.sealed_json import sealed
from ctrbox.publish import Part, PrivateKey, PublicKey, Published, Trust, Weights, keygen, write_weights
from ctrbox.publish.chain_of_sealed_lines import sealed_line
from ctrbox.publish.signed_statement import MOST_BYTES, MOST_STATEMENT, SIGNED, FileFacts, Statement, claim_of, opened
from tests.publish import forged


def publish(folder: Published, place: Path, seed: int) -> None:
    weights = np.zeros(50_000, np.float32)
    weights[:3] = np.random.default_rng(seed).random(3)
    write_weights(place / "w.fbw", Weights("test", {}, [Part.floats("w", weights)]), quantize=False)
    folder.publish(place / "w.fbw")


@pytest.fixture
def key(tmp_path: Path) -> Path:
    keygen(tmp_path / "key")
    return tmp_path / "key"


@pytest.fixture
def folder(tmp_path: Path, key: Path) -> Published:
    """Three versions, signed."""
    made = Published(tmp_path / "published", sign_with=key)
    for seed in range(3):
        publish(made, tmp_path, seed)
    return made


def reader(folder: Published, key: Path, **options: str) -> Published:
    return Published(folder.folder, trust=Trust([f"{key}.pub"], **options))


def test_a_signed_folder_is_read_followed_and_rolled_back(folder: Published, key: Path, tmp_path: Path) -> None:
    trusting = reader(folder, key)
    copy = tmp_path / "served.fbw"
    assert trusting.update(copy).number == 3
    publish(folder, tmp_path, 4)
    made = trusting.updated(copy)
    assert (made.version.number, made.how) == (4, "patch")
    folder.rollback(2)
    assert trusting.update(copy).number == 5
    assert copy.read_bytes() == folder.file(2).read_bytes()
    assert trusting.verify() == []
    statement, other = trusting.statement(), reader(folder, key).statement()
    assert statement is not None
    assert statement == other
    assert (statement.version, statement.files) == (5, {})
    # Whoever does not ask for signatures reads the folder as before, and cannot publish unsigned versions into it.
    plain = Published(folder.folder)
    assert plain.file() == folder.file()
    assert plain.claimed() == {"model": statement.model, "key": PublicKey.read(f"{key}.pub").id}
    with pytest.raises(
        PlanError, match=r"are signed, and its servers would refuse an unsigned one; give the private key"
    ):
        publish(plain, tmp_path, 5)
    assert trusting.update(copy).number == 5


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def rewritten(folder: Published, change: Callable[[list[dict[str, object]]], None]) -> None:
    """Change the version list and make its seals true again, as whoever can write the folder is able to do."""
    pointer = json.loads((folder.folder / "CURRENT").read_text())
    lines = [json.loads(line) for line in (folder.folder / "log.jsonl").read_text().splitlines()]
    for line in lines:
        del line["seal"]
    change(lines)
    text, seal = b"", ""
    for line in lines:
        one, seal = sealed_line(seal, line)
        text += one
    (folder.folder / "log.jsonl").write_bytes(text)
    facts = {**pointer, "log_bytes": len(text), "log_seal": seal}
    del facts["seal"]
    (folder.folder / "CURRENT").write_bytes(sealed_line("", facts)[0])


def test_a_forged_version_list_is_refused(folder: Published, key: Path) -> None:
    plain = Published(folder.folder)

    def other_weights(lines: list[dict[str, object]]) -> None:
        lines[-1]["sha256"] = lines[0]["sha256"]

    rewritten(plain, other_weights)
    assert plain.log()[-1].number == 3  # its checksums are true
    with pytest.raises(SignatureError, match="is for another version than the one that CURRENT names"):
        reader(folder, key).log()


def test_an_older_version_is_not_taken_for_a_new_one(folder: Published, key: Path, tmp_path: Path) -> None:
    old = tmp_path / "old"
    shutil.copytree(folder.folder, old)
    trusting = reader(folder, key, memory=str(tmp_path / "trust"))
    publish(folder, tmp_path, 4)
    assert trusting.log()[-1].number == 4
    for name in ("CURRENT", "log.jsonl"):
        shutil.copyfile(old / name, folder.folder / name)
    with pytest.raises(
        SignatureError, match="is version 3, older than version 4, which was accepted before; to go back to old weights"
    ):
        trusting.log()
    # After a restart the trust file knows; without one any signed version is accepted.
    with pytest.raises(SignatureError, match="older than version 4"):
        reader(folder, key, memory=str(tmp_path / "trust")).log()
    assert reader(folder, key).log()[-1].number == 3
    # Another version 4: the publisher was restored from a backup.
    publish(Published(folder.folder, sign_with=key), tmp_path, 5)
    with pytest.raises(
        SignatureError, match="is version 4 with other contents than those that were accepted before; ask its publisher"
    ):
        trusting.log()
    publish(Published(folder.folder, sign_with=key), tmp_path, 6)
    assert trusting.log()[-1].number == 5
    (folder.folder / "CURRENT").unlink()
    shutil.rmtree(folder.folder / "patches")
    with pytest.raises(SignatureError, match="holds no version, but version 5 was accepted before"):
        trusting.log()


def test_another_model_of_the_same_key_is_refused(folder: Published, key: Path, tmp_path: Path) -> None:
    other = Published(tmp_path / "other", sign_with=key)
    for seed in range(5):
        publish(other, tmp_path, seed)
    mine, theirs = folder.statement(), other.statement()
    assert mine is not None
    assert theirs is not None
    assert mine.model != theirs.model
    trusting = reader(folder, key)
    trusting.log()
    shutil.rmtree(folder.folder)
    shutil.copytree(other.folder, folder.folder)
    with pytest.raises(
        SignatureError, match=f"is signed for another model, {theirs.model}; expected the model {mine.model}"
    ):
        trusting.log()
    with pytest.raises(SignatureError, match="signed for another model"):
        reader(folder, key, model_id=mine.model).log()
    assert reader(folder, key, model_id=theirs.model).log()[-1].number == 5


def test_another_key_and_no_signature_are_refused_and_keys_can_be_changed(
    folder: Published, key: Path, tmp_path: Path
) -> None:
    keygen(tmp_path / "next")
    both = Trust([f"{key}.pub", tmp_path / "next.pub"])
    ids = {name: PublicKey.read(f"{tmp_path / name}.pub").id for name in ("key", "next")}
    with pytest.raises(
        SignatureError, match=f"by the key {ids['key']}, which is not trusted here; trusted: {ids['next']}"
    ):
        Published(folder.folder, trust=Trust([tmp_path / "next.pub"])).log()
    with pytest.raises(SignatureError, match="not trusted here"):
        publish(Published(folder.folder, sign_with=tmp_path / "next"), tmp_path, 9)
    following = Published(folder.folder, trust=both)
    before = following.statement()
    changing = Published(folder.folder, sign_with=tmp_path / "next", trust=Trust([f"{key}.pub"]))
    assert changing.sign().number == 3
    after = following.statement()
    assert before is not None
    assert after is not None
    assert (after.model, after.version) == (before.model, 3)
    publish(Published(folder.folder, sign_with=tmp_path / "next"), tmp_path, 9)
    assert following.log()[-1].number == 4

    unsigned = Published(tmp_path / "unsigned")
    publish(unsigned, tmp_path, 0)
    with pytest.raises(SignatureError, match=r"is not signed; expected a signature by the key .* ctrbox publish sign"):
        Published(unsigned.folder, trust=both).log()
    signing = Published(unsigned.folder, sign_with=key)
    with pytest.raises(SignatureError, match="is not signed"):
        publish(signing, tmp_path, 1)  # whoever removed a signature must not get it back by waiting
    assert signing.sign().number == 1
    assert reader(unsigned, key).log()[-1].number == 1
    flip(unsigned.file(), 200)
    with pytest.raises(DataError, match="cannot be signed, because it is damaged"):
        signing.sign()
    with pytest.raises(PlanError, match="needs the private key"):
        unsigned.sign()
    with pytest.raises(PlanError, match="no public key was given"):
        Published(folder.folder, trust=Trust([])).log()


@pytest.mark.parametrize("how", ["cut", "flipped", "longer", "another's", "gone"])
@pytest.mark.parametrize("what", ["patches/00000003.patch", "versions/00000003.fbw"])
def test_changed_files_are_refused_before_a_copy_changes(
    folder: Published, key: Path, tmp_path: Path, what: str, how: str
) -> None:
    trusting, copy, path = reader(folder, key), tmp_path / "served.fbw", folder.folder / what
    if what.startswith("patches"):
        shutil.copyfile(folder.file(2), copy)
    before = copy.read_bytes() if copy.exists() else None
    whole = path.read_bytes()
    another = path.with_name(path.name.replace("3", "2")).read_bytes()
    path.write_bytes(
        {"cut": whole[:-9], "flipped": b"C" * len(whole), "longer": whole + b"\0", "another's": another}.get(how, b"")
    )
    if how == "gone":
        path.unlink()
    with pytest.raises(CtrboxError, match="version 3 ") as met:
        trusting.update(copy)
    assert isinstance(met.value, SourceError | DataError)
    assert (copy.read_bytes() if copy.exists() else None) == before
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []
    if what.startswith("versions") and how != "gone":
        with pytest.raises(DataError, match="damaged"):
            trusting.file()


def test_key_files_are_checked_and_never_replaced(key: Path, tmp_path: Path) -> None:
    public, private = PublicKey.read(f"{key}.pub"), PrivateKey.read(key)
    assert private.public == public
    secret = json.loads(key.read_text())["key"]
    assert secret not in repr(private)
    assert secret not in str(vars(private))
    assert key.stat().st_mode & 0o777 == 0o600
    signature = private.sign(b"text")
    assert public.verifies(signature, b"text")
    assert not public.verifies(signature, b"texts")
    assert not public.verifies(b"\0" * 64, b"text")
    assert not public.verifies(b"", b"text")
    with pytest.raises(
        WriteError, match="exists already and is not replaced, because a lost private key cannot be restored"
    ):
        keygen(key)
    (tmp_path / "taken.pub").write_text("mine")
    with pytest.raises(WriteError, match=r"taken\.pub exists"):
        keygen(tmp_path / "taken")
    assert not (tmp_path / "taken").exists()
    for mode in (0o644, 0o640, 0o620, 0o604):
        key.chmod(mode)
        with pytest.raises(
            DataError, match=rf"has the mode {mode:04o}, so other users can read or change it; .* chmod 600 "
        ):
            PrivateKey.read(key)
    key.chmod(0o400)
    (tmp_path / "link").symlink_to(key)  # as Kubernetes mounts secrets
    assert PrivateKey.read(tmp_path / "link").id == public.id
    Path(f"{key}.pub").chmod(0o666)
    with pytest.raises(DataError, match="other users can change it"):
        PublicKey.read(f"{key}.pub")
    Path(f"{key}.pub").chmod(0o644)
    with pytest.raises(DataError, match=r"is a public key, expected a private key; it may be in .*key$"):
        PrivateKey.read(f"{key}.pub")
    with pytest.raises(DataError, match=r"is a private key, expected a public key; it may be in .*key\.pub$") as met:
        PublicKey.read(key)
    assert secret not in str(met.value)
    with pytest.raises(SourceError, match="cannot read the public key"):
        PublicKey.read(tmp_path / "none")
    (tmp_path / "other").write_text(
        sealed({"kind": "ctrbox public key", "algorithm": "RSA", "id": "", "key": "00" * 32})
    )
    (tmp_path / "id").write_text(
        sealed({"kind": "ctrbox public key", "algorithm": "Ed25519", "id": "", "key": "00" * 32})
    )
    (tmp_path / "large").write_bytes(b" " * 5000)
    for name, told in (
        ("other", "is not a public key that"),
        ("id", "does not belong to its key"),
        ("large", "more than 4,096"),
    ):
        with pytest.raises(DataError, match=told):
            PublicKey.read(tmp_path / name)


def test_trust_files_and_model_ids_are_checked(folder: Published, key: Path, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="a model id has 32 hexadecimal digits, got 'ads'"):
        reader(folder, key, model_id="ads")
    memory = tmp_path / "trust"
    reader(folder, key, memory=str(memory)).log()
    with pytest.raises(PlanError, match=r"says that this server trusts the model .* was requested"):
        reader(folder, key, memory=str(memory), model_id="0" * 32)
    memory.write_text(sealed({"model": "x"}))
    with pytest.raises(DataError, match="is not a trust file; remove it"):
        reader(folder, key, memory=str(memory))
    memory.write_text("{")
    with pytest.raises(DataError, match="is damaged"):
        reader(folder, key, memory=str(memory))


@pytest.mark.parametrize(("length", "told"), [(MOST_STATEMENT, ""), (MOST_STATEMENT + 1, "its statement is not valid")])
def test_a_statement_has_at_most_65536_characters(key: Path, length: int, told: str) -> None:
    signer = PrivateKey.read(key)
    statement = Statement("0" * 32, 1, 10, "0" * 64, {"plan.ctr": FileFacts(5, "1" * 64)}, "2026-01-02T03:04:05Z")
    text = statement.signed_by(signer)["statement"].ljust(length)  # JSON may end in spaces
    signed = {"key": signer.id, "statement": text, "signature": signer.sign(SIGNED + text.encode()).hex()}
    keys = {signer.id: PublicKey.read(f"{key}.pub")}
    if told:
        with pytest.raises(SignatureError, match=told):
            opened(signed, keys, "CURRENT")
    else:
        assert opened(signed, keys, "CURRENT") == statement


def test_forged_statements_and_key_files_are_refused_in_one_sentence(tmp_path: Path) -> None:
    met = forged.run(150, 1, tmp_path)
    assert met["statement", "refused"] > 100
    assert met["statement", "another that was signed"] > 0
    assert met["private key", "refused"] > 100
    assert met["public key", "refused"] > 100


# ---- a statement and a key file, each with one thing wrong

MODEL, SEAL, SHA = "ab" * 16, "cd" * 32, "ef" * 32
GOOD = Statement(MODEL, 7, 4000, SEAL, {"plan.ctr": FileFacts(9, SHA)}, "2026-11-18T09:30:00Z")
SIGNER = PrivateKey(bytes(range(32)))
KEYS = {SIGNER.id: SIGNER.public}
FACTS = json.loads(GOOD.signed_by(SIGNER)["statement"])
PLAN = {"bytes": 9, "sha256": SHA}


def signed_text(text: str) -> dict[str, str]:
    return {"key": SIGNER.id, "statement": text, "signature": SIGNER.sign(SIGNED + text.encode()).hex()}


@pytest.mark.parametrize(
    "changed",
    [
        {"version": 1},
        {"version": MOST_BYTES},
        {"log_bytes": 0},
        {"log_bytes": MOST_BYTES},
        {"files": {}},
        {"files": dict.fromkeys(("serve.json", "plan.ctr", "log.arrow"), PLAN)},
        {"files": {"plan.ctr": {"bytes": MOST_BYTES, "sha256": SHA}}},
        {"files": {"plan.ctr": {"bytes": 0, "sha256": SHA}}},
    ],
)
def test_a_signed_statement_is_read_up_to_its_limits(changed: dict[str, Any]) -> None:
    found = opened(signed_text(json.dumps({**FACTS, **changed})), KEYS, "here")
    files = {name: FileFacts(**entry) for name, entry in changed.get("files", FACTS["files"]).items()}
    expected = {name: value for name, value in {**FACTS, **changed, "files": files}.items() if name != "format"}
    assert vars(found) == expected


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{",
        *(
            json.dumps({name: value for name, value in {**FACTS, **changed}.items() if value is not None})
            for changed in (
                {"more": 1},
                *({name: None} for name in FACTS),
                {"format": 2},
                {"files": []},
                {"files": {"other": PLAN}},
                {"files": {"plan.ctr": []}},
                {"files": {"plan.ctr": {"bytes": 9}}},
                {"files": {"plan.ctr": {**PLAN, "more": 1}}},
                *({"files": {"plan.ctr": {**PLAN, "bytes": size}}} for size in (-1, True, 1.0, "1", MOST_BYTES + 1)),
                *({"files": {"plan.ctr": {**PLAN, "sha256": sha}}} for sha in (5, SHA[1:], SHA + "0")),
                *({"model": model} for model in (5, MODEL[1:], MODEL.upper())),
                *({"version": version} for version in (0, -1, True, "7", 1.0, MOST_BYTES + 1)),
                *({"log_bytes": size} for size in (-1, False, MOST_BYTES + 1)),
                *({"log_seal": seal} for seal in (5, SEAL[1:])),
                *({"time": time} for time in (5, "2026-11-18", "2026-11-18T09:30:00Z ")),
            )
        ),
    ],
)
def test_what_a_key_signed_is_read_only_if_all_of_it_is_known(text: str) -> None:
    with pytest.raises(SignatureError) as told:
        opened(signed_text(text), KEYS, "here")
    assert (
        str(told.value)
        == "here has a signed statement that this version of CTRBox cannot read; use the version that signed it"
    )


ENTRY = GOOD.signed_by(SIGNER)
AGAIN = "its publisher can sign it again: ctrbox publish sign"
UNREAD = f"here has a malformed signature: its key id or its statement is not valid; {AGAIN}"
DIGITS = f"here has a malformed signature; expected 128 hexadecimal digits; {AGAIN}"


@pytest.mark.parametrize(
    ("signed", "told"),
    [
        (
            None,
            f"here is not signed; expected a signature by the key {SIGNER.id}. Its publisher can sign it: ctrbox publish sign",
        ),
        *(
            (entry, f"here has a malformed signature; expected key, statement and signature; {AGAIN}")
            for entry in ([], "x", {}, {**ENTRY, "more": 1}, {"key": SIGNER.id, "statement": ENTRY["statement"]})
        ),
        ({**ENTRY, "key": 5}, UNREAD),
        ({**ENTRY, "key": SIGNER.id[1:]}, UNREAD),
        ({**ENTRY, "statement": 5}, UNREAD),
        ({**ENTRY, "statement": ["x"]}, UNREAD),
        ({**ENTRY, "signature": 5}, DIGITS),
        ({**ENTRY, "signature": ENTRY["signature"][2:]}, DIGITS),
        (
            {**ENTRY, "key": "0" * 16},
            f"here is signed by the key {'0' * 16}, which is not trusted here; trusted: {SIGNER.id}",
        ),
        (
            {**ENTRY, "statement": ENTRY["statement"].replace("plan.ctr", "log.arrow")},
            f"here was changed after it was signed: the signature by the key {SIGNER.id} does not match",
        ),
    ],
)
def test_what_is_wrong_with_a_signature_is_told(signed: object, told: str) -> None:
    with pytest.raises(SignatureError) as met:
        opened(signed, KEYS, "here")
    assert str(met.value) == told


def test_a_signature_is_checked_by_at_least_one_key() -> None:
    with pytest.raises(PlanError, match=r"^no public key was given to check the signature; give at least one$"):
        opened(ENTRY, {}, "here")
    assert opened(ENTRY, KEYS, "here") == GOOD


@pytest.mark.parametrize(
    ("signed", "known"),
    [
        (ENTRY, True),
        (None, False),
        ([], False),
        ({**ENTRY, "key": 5}, False),
        ({**ENTRY, "key": "0" * 15}, False),
        ({**ENTRY, "statement": 5}, False),
        ({**ENTRY, "statement": "{"}, False),
        ({**ENTRY, "statement": "[]"}, False),
        ({**ENTRY, "statement": '{"model": "ads"}'}, False),
        ({**ENTRY, "statement": "[" * 100_000}, False),
    ],
)
def test_what_a_signature_claims_is_read_unchecked(signed: object, known: bool) -> None:
    assert claim_of(signed) == ({"model": MODEL, "key": SIGNER.id} if known else None)


KEY_FILE = {"kind": "ctrbox public key", "algorithm": "Ed25519", "id": SIGNER.id, "key": SIGNER.public.raw.hex()}
NO_DIGITS = "is damaged: its key is not 64 hexadecimal digits; restore it from a copy"
OTHER_KIND = "is not a public key that this version of CTRBox reads; make one: ctrbox publish keygen"


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({}, ""),
        ({"key": 5}, NO_DIGITS),
        ({"key": KEY_FILE["key"][1:]}, NO_DIGITS),
        ({"id": 5}, NO_DIGITS),
        ({"id": "0" * 16}, "is damaged: its id does not belong to its key; restore it from a copy"),
        ({"algorithm": "RSA"}, OTHER_KIND),
        ({"kind": "mine"}, OTHER_KIND),
        ({"kind": 5}, OTHER_KIND),
        ({"more": 1}, OTHER_KIND),
    ],
)
def test_what_is_wrong_with_a_key_file_is_told(tmp_path: Path, changed: dict[str, Any], told: str) -> None:
    path = tmp_path / "key.pub"
    path.write_text(sealed({**KEY_FILE, **changed}))
    path.chmod(0o644)
    if not told:
        assert PublicKey.read(path) == SIGNER.public
        return
    with pytest.raises(DataError) as met:
        PublicKey.read(path)
    assert str(met.value) == f"{path} {told}"


def test_key_files_that_cannot_be_written_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(WriteError, match=rf"^cannot write the public key {tmp_path}/file/key\.pub: File exists$"):
        keygen(tmp_path / "file" / "key")
    written: list[int] = []

    def full(handle: int, mode: int) -> None:
        written.append(mode)
        if len(written) == failing:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("ctrbox.publish.signing_keys.os.fchmod", full)
    for failing in (1, 2):  # the public key comes first
        written.clear()
        with pytest.raises(WriteError, match="No space left on device"):
            keygen(tmp_path / "key")
        assert written == [0o644, 0o600][:failing]
        assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_trust_in_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"^cannot read the trust file {tmp_path}: "):
        Trust([SIGNER.public], memory=tmp_path)
    wrong = (
        {"model": 5},
        {"model": MODEL[1:]},
        {"version": True},
        {"version": -1},
        {"log_seal": 5},
        {"log_seal": SEAL[1:]},
    )
    for changed in wrong:
        (tmp_path / "trust").write_text(sealed({"model": MODEL, "version": 3, "log_seal": SEAL, **changed}))
        with pytest.raises(
            DataError, match=r"trust is not a trust file; remove it, and the next signed version is trusted$"
        ):
            Trust([SIGNER.public], memory=tmp_path / "trust")
    (tmp_path / "trust").write_text(sealed({"model": MODEL, "version": 3, "log_seal": SEAL}))
    trust = Trust(SIGNER.public for _ in range(1))
    assert (trust.model, trust.version, trust.log_seal) == ("", 0, "")
    trust = Trust([SIGNER.public], memory=tmp_path / "trust", model_id=MODEL)
    assert (trust.model, trust.version, trust.log_seal) == (MODEL, 3, SEAL)


def test_a_version_is_accepted_unless_it_is_older_or_another_of_the_same_number(tmp_path: Path) -> None:
    trust = Trust([SIGNER.public], memory=tmp_path / "trust")
    trust.remember(trust.accept(GOOD.signed_by(SIGNER), "here"))
    before = (tmp_path / "trust").stat().st_mtime_ns
    trust.remember(trust.accept(GOOD.signed_by(SIGNER), "here"))  # the same again writes nothing
    assert (tmp_path / "trust").stat().st_mtime_ns == before
    for version, model, seal, told in (
        (
            6,
            MODEL,
            SEAL,
            "here is version 6, older than version 7, which was accepted before; to go back to old weights",
        ),
        (
            7,
            MODEL,
            SHA,
            "here is version 7 with other contents than those that were accepted before; ask its publisher",
        ),
        (8, SHA[:32], SEAL, f"here is signed for another model, {SHA[:32]}; expected the model {MODEL}"),
    ):
        other = Statement(model, version, 4000, seal, {}, GOOD.time)
        with pytest.raises(SignatureError) as met:
            trust.accept(other.signed_by(SIGNER), "here")
        assert str(met.value).startswith(told)
    newer = Statement(MODEL, 8, 4000, SHA, {}, GOOD.time)
    trust.remember(trust.accept(newer.signed_by(SIGNER), "here"))
    again = Trust([SIGNER.public], memory=tmp_path / "trust")
    assert (again.model, again.version, again.log_seal) == (MODEL, 8, SHA)
