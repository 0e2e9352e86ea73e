"""Settings of a server at the ends of their ranges, and what a server is made of; nothing listens here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ctrbox.errors import PlanError, SourceError
from ctrbox.publish.weights_of_models import CLICK_MODEL, DEEP_FFM
from ctrbox.serve import server as module
from ctrbox.serve.model_folder import RUN
from ctrbox.serve.server import TOKEN, TOKEN_FILE_BYTES, Server, Settings, bracketed, check, loopback, read_token
from ctrbox.serve.service import Limits


class _Other:
    """A model of one label that is no run."""

    tasks = ()
    past = None
    views = SimpleNamespace(refreshable=[])


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("localhosts", False),
        ("", False),
    ],
)
def test_only_this_machine_reaches_a_loopback_address(host: str, expected: bool) -> None:
    assert loopback(host) is expected
    if expected:
        check(Settings(host=host))
    else:
        with pytest.raises(PlanError, match="can be reached from other machines, so a token is required:"):
            check(Settings(host=host))
    check(Settings(host=host, token="secret"))


@pytest.mark.parametrize(
    ("token", "good"),
    [("x", True), ("x" * 4096, True), ("x" * 4097, False), ("é", False), ("a\tb", False), ("a b", True)],
)
def test_a_token_is_short_printable_ascii(token: str, good: bool) -> None:
    if good:
        check(Settings(token=token))
        return
    with pytest.raises(PlanError, match="a token must be printable ASCII of at most 4096 characters"):
        check(Settings(token=token))


def test_a_token_comes_from_its_file_or_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN, raising=False)
    assert read_token(None) == ""
    monkeypatch.setenv(TOKEN, " from outside\n")
    assert read_token(None) == "from outside"
    path = tmp_path / "token"
    path.write_text(" secret\n")
    assert read_token(path) == "secret"
    path.write_bytes(b"x" * TOKEN_FILE_BYTES)
    assert len(read_token(path)) == TOKEN_FILE_BYTES
    for content, says in (
        (b"x" * (TOKEN_FILE_BYTES + 1), "is larger than"),
        (b" \n", "is empty"),
        (b"\xff", "cannot read the token file"),
    ):
        path.write_bytes(content)
        with pytest.raises(SourceError, match=says):
            read_token(path)
    with pytest.raises(SourceError, match="No such file"):
        read_token(tmp_path / "none")
    with pytest.raises(SourceError, match="is a folder, a pipe or a device"):
        read_token(tmp_path)


def test_addresses_of_ipv6_stand_in_brackets() -> None:
    assert [bracketed(host) for host in ("127.0.0.1", "::1", "here")] == ["127.0.0.1", "[::1]", "here"]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """Open a server over a folder of a kind, whose model is nothing."""
    threads = torch.get_num_threads()

    def made(kind: str, **settings: Any) -> Server:
        place = tmp_path / "clicks"
        place.mkdir(exist_ok=True)
        folder = SimpleNamespace(
            kind=kind, folder=place, online=place / "online.json", published="versions", stored=None, trust=None
        )
        monkeypatch.setattr(module, "ModelFolder", SimpleNamespace(open=lambda path, **how: folder))
        monkeypatch.setattr(module, "ServedRun", SimpleNamespace)
        served = SimpleNamespace(tasks=(), past=None, views=_Other.views) if kind == RUN else _Other()
        monkeypatch.setattr(module, "open_served", lambda *_, **how: served)
        monkeypatch.setattr(module, "OwnCopy", lambda published: None)
        monkeypatch.setattr(module, "Reloader", lambda *given, **how: given)
        return Server.open(place, Settings(**settings))

    yield made
    torch.set_num_threads(threads)  # a server of a torch model uses one


def test_a_run_is_scored_by_a_thread_and_other_models_on_the_loop(opened: Any) -> None:
    torch.set_num_threads(3)
    for kind, threads in ((RUN, 1), (DEEP_FFM, 0), (CLICK_MODEL, 0)):
        server = opened(kind)
        assert len(server.service.queue.threads) == threads
        assert (server.reloader is None) == (kind == RUN)
        assert torch.get_num_threads() == (3 if kind == DEEP_FFM else 1)  # only torch's models need torch
        torch.set_num_threads(3)
        server.service.queue.drain(1.0)
    server = opened(RUN, threads=0)
    assert not server.service.queue.threads
    server = opened(DEEP_FFM, threads=2, limits=Limits(waiting=7, deadline_ms=250, client_share=0.5))
    queue = server.service.queue
    assert (len(queue.threads), queue.most, queue.deadline, queue.most_of_client) == (2, 9, 0.25, 4)
    assert server.reloader[1] == "versions"
    queue.drain(1.0)


def test_a_model_has_the_name_of_its_folder_and_a_token_takes_the_place_of_names(opened: Any) -> None:
    plain = opened(DEEP_FFM)
    assert (plain.service.name, plain.service.token) == ("clicks", b"")
    assert plain.service.hosts is not None
    named = opened(DEEP_FFM, name="ads", token="secret", host="0.0.0.0")
    assert (named.service.name, named.service.token, named.service.hosts) == ("ads", b"secret", None)
