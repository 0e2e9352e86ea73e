"""Ray reads its settings once, when it is imported: here, before any test does. Clients need a token, made for this process."""

import os
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import ctrbox as cb

_folder = tempfile.TemporaryDirectory(prefix="ray-token-")
_token = Path(_folder.name) / "token"
_token.write_text(secrets.token_hex(32))
os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(_token), "RAY_USAGE_STATS_ENABLED": "0"}


@pytest.fixture(scope="package")
def running() -> Iterator[str]:
    """A Ray of this machine for the tests of this folder; its address."""
    ray = pytest.importorskip("ray", reason="needs ray: pip install 'ctrbox[cluster]'")
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        options = {"include_dashboard": False, "log_to_driver": False, "logging_level": "error", "_temp_dir": folder}
        yield ray.init("local", num_cpus=4, **options).address_info["address"]
        ray.shutdown()
    torch.set_num_threads(threads)


@pytest.fixture(scope="package")
def plan(tmp_path_factory: pytest.TempPathFactory) -> "cb.Plan":
    from tests.train.worlds import on_disk

    return on_disk(tmp_path_factory.mktemp("log"), 4000)
