"""Ray reads its settings once, when it is imported: here, before any test does. Clients need a token, made for this process."""

import os
import secrets
import tempfile
from pathlib import Path

_folder = tempfile.TemporaryDirectory(prefix="ray-token-")
_token = Path(_folder.name) / "token"
_token.write_text(secrets.token_hex(32))
os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(_token), "RAY_USAGE_STATS_ENABLED": "0"}
