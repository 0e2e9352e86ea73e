"""Who may ask: names of the machine, pages in a browser, the token over gRPC, TLS."""

from __future__ import annotations

import http.client
import shutil
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import tritonclient.grpc as over_grpc
from tritonclient.utils import InferenceServerException

from ctrbox.errors import CtrboxError, PlanError
from ctrbox.serve.grpc_server import client_of_peer, grpc_server, options
from ctrbox.serve.host_and_origin import AllowedHosts, name_of
from ctrbox.serve.server import Settings, check
from ctrbox.serve.service import Limits
from ctrbox.serve.tls import Certificate
from tests.serve.running import Listening, Running, free_ports, inputs, listening, running
from tests.serve.test_protocols import tensors_of
from tests.serve.test_scoring import body_of
from tests.serve.worlds import World

KEYS = Path(__file__).with_name("certificates")


def get(server: Running, *headers: str, path: str = "/v2") -> int:
    head = "\r\n".join([f"GET {path} HTTP/1.1", *headers, "Connection: close"])
    return int(server.raw(head.encode() + b"\r\n\r\n").split(b" ")[1])


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8000", "localhost.", "127.0.0.1:1", "127.9.9.9", "[::1]", "[::1]:80"]
)
def test_a_server_without_a_token_answers_to_names_of_this_machine(server: Running, host: str) -> None:
    assert get(server, f"Host: {host}") == 200
    assert get(server, f"Host: {host}", f"Origin: http://{host}") == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "8.8.8.8", "[2001:db8::1]", "x@localhost"],
)
def test_a_server_without_a_token_refuses_other_names(server: Running, host: str) -> None:
    """A page of evil.example whose name points at 127.0.0.1 for a moment could read the answers."""
    assert get(server, f"Host: {host}") == 403
    assert get(server, "Host: localhost", f"Origin: http://{host}") == 403
    assert get(server, "Host: localhost", path=f"http://{host}/v2") in (400, 403)


def test_an_origin_that_is_no_name_is_refused(server: Running) -> None:
    for origin in ("null", "file://", "localhost"):
        assert get(server, "Host: localhost", f"Origin: {origin}") == 403


def test_more_names_can_be_allowed_and_the_bound_address_is() -> None:
    hosts = AllowedHosts("10.0.0.7", ["Ads.Example."])
    assert hosts.allows("10.0.0.7:8000")
    assert hosts.allows("ads.example")
    assert not hosts.allows("10.0.0.8")
    assert [name_of(n) for n in ("a:b", "a:1:2", "[::1]x", "[::1", "")] == ["", "", "", "::1", ""]


def test_pages_cannot_be_framed_and_leak_nothing(server: Running) -> None:
    for path in ("/", "/docs"):
        headers = server.get(path).headers
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["x-content-type-options"] == "nosniff"


# ---- gRPC


@pytest.fixture
def rpc(world: World) -> Iterator[tuple[Listening, int]]:
    with listening(world.folder, Limits(body_bytes=20_000, waiting=4), token=b"secret") as server:
        (port,) = free_ports(1)
        made = grpc_server(server.service, f"127.0.0.1:{port}", 2, most_connections=3)
        made.start()
        yield server, port
        made.stop(0).wait()


def test_grpc_asks_for_the_token_before_it_reads_the_message(world: World, rpc: tuple[Listening, int]) -> None:
    server, port = rpc
    asked = inputs(over_grpc, tensors_of(body_of(world.rows(0, 5))))
    larger = [over_grpc.InferInput("query", [30_000], "BYTES")]
    larger[0].set_data_from_numpy(np.array([b"x" * 10] * 30_000, object))
    with over_grpc.InferenceServerClient(f"127.0.0.1:{port}") as client:
        assert client.is_server_live()
        for tensors in (asked, larger):  # the message beyond the limit is not read
            with pytest.raises(InferenceServerException, match="requires a token") as told:
                client.infer("ads", tensors)
            assert "UNAUTHENTICATED" in str(told.value.status())
        with pytest.raises(InferenceServerException, match="requires a token"):
            client.get_server_metadata(headers={"authorization": "Bearer wrong"})
        headers = {"authorization": "Bearer secret"}
        assert len(client.infer("ads", asked, headers=headers).as_numpy("score")) == 5
        with pytest.raises(InferenceServerException, match="larger than max"):
            client.infer("ads", larger, headers=headers)
        with pytest.raises(InferenceServerException):
            client.get_server_metadata(headers={**headers, "more": "x" * 40_000})
    assert server.service.metrics.requests["grpc", 200] == 1


def test_grpc_is_told_the_limits_of_the_service() -> None:
    limits = Limits(body_bytes=5000, waiting=7, body_seconds=1.5)
    assert dict(options(limits, 2, 33)) == {
        "grpc.max_receive_message_length": 5000,
        "grpc.max_metadata_size": 16_384,
        "grpc.absolute_max_metadata_size": 32_768,
        "grpc.max_concurrent_streams": 9,
        "grpc.max_allowed_incoming_connections": 33,
        "grpc.max_connection_idle_ms": 75_000,
        "grpc.server_handshake_timeout_ms": 1500,
        "grpc.so_reuseport": 0,
    }


def test_grpc_takes_no_more_connections_than_it_may(rpc: tuple[Listening, int]) -> None:
    _, port = rpc
    held = [socket.create_connection(("127.0.0.1", port), timeout=5) for _ in range(8)]
    ended = 0
    until = time.monotonic() + 20
    while ended < 5 and time.monotonic() < until:
        ended = 0
        for s in held:
            s.settimeout(0.05)
            try:
                ended += s.recv(1, socket.MSG_PEEK) == b""
            except TimeoutError:
                pass
            except ConnectionError:
                ended += 1
    for s in held:
        s.close()
    assert ended >= 5


def test_the_client_of_a_grpc_call_is_its_address() -> None:
    assert client_of_peer("ipv4:127.0.0.1:4711") == "127.0.0.1"
    assert client_of_peer("ipv6:%5B::1%5D:4711") == client_of_peer("ipv6:[::1]:4711") == "::/64"


# ---- TLS


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    shutil.copytree(KEYS, tmp_path / "keys")
    return tmp_path / "keys"


def name_shown(port: int) -> bytes:
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", port), timeout=20) as s:
        with trusting.wrap_socket(s) as secure:
            assert secure.version() in ("TLSv1.2", "TLSv1.3")
            return secure.getpeercert(binary_form=True) or b""


def test_http_and_grpc_speak_tls_and_take_up_a_new_certificate(world: World, keys: Path) -> None:
    options = ("--tls-cert", str(keys / "one.pem"), "--tls-key", str(keys / "one.key"))
    with running(world.folder, *options, "--name", "ads") as server:
        trusted = ssl.create_default_context(cafile=str(keys / "one.pem"))
        assert httpx.get(f"https://127.0.0.1:{server.port}/v2", verify=trusted, timeout=20).json()["name"] == "ctrbox"
        for _ in range(2):  # one connection, several requests
            connection = http.client.HTTPSConnection("127.0.0.1", server.port, context=trusted, timeout=20)
            for _ in range(3):
                connection.request("POST", "/v1/score", b"{}")
                answer = connection.getresponse()
                assert (answer.status, bool(answer.read())) == (400, True)
            connection.close()
        assert server.raw(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", wait=20) == b""  # no plain HTTP
        with over_grpc.InferenceServerClient(
            f"127.0.0.1:{server.grpc_port}", ssl=True, root_certificates=str(keys / "one.pem")
        ) as client:
            assert client.is_server_live()
        old = name_shown(server.port)
        shutil.copy(keys / "two.pem", keys / "one.pem")  # of another key: the old certificate is kept
        time.sleep(1.2)
        assert name_shown(server.port) == old
        shutil.copy(keys / "two.key", keys / "one.key")
        until = time.monotonic() + 20
        while name_shown(server.port) == old and time.monotonic() < until:
            time.sleep(0.1)
        assert name_shown(server.port) != old
        with over_grpc.InferenceServerClient(
            f"127.0.0.1:{server.grpc_port}", ssl=True, root_certificates=str(keys / "two.pem")
        ) as client:
            assert client.is_server_live()
        assert server.stop() == 0
    assert any("does not belong to the certificate" in line for line in server.said)
    assert not any("Traceback" in line for line in server.said)


def test_tls_older_than_1_2_is_refused() -> None:
    context = Certificate(KEYS / "one.pem", KEYS / "one.key").context
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize(
    ("certificate", "key", "words"),
    [
        ("none.pem", "one.key", r"cannot read .*none\.pem: No such file"),
        ("one.pem", "none.key", r"cannot read .*none\.key: No such file"),
        ("one.pem", "two.key", r"two\.key does not belong to the certificate .*one\.pem"),
        (
            "one.pem",
            "locked.key",
            r"locked\.key is encrypted with a password, which the server cannot ask for; remove the password first",
        ),
        ("one.pem", None, "expected PEM files"),
        ("one.key", "one.key", "expected PEM files"),
        ("README.md", "one.key", "expected PEM files"),
    ],
)
def test_certificates_that_cannot_be_used_are_said_in_words(certificate: str, key: str | None, words: str) -> None:
    with pytest.raises(CtrboxError, match=words):
        Certificate(KEYS / certificate, None if key is None else KEYS / key)


def test_a_key_without_a_certificate_is_refused() -> None:
    with pytest.raises(PlanError, match="--tls-cert"):
        check(Settings(tls_key=KEYS / "one.key"))
