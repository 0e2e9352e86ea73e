"""Plans whose Parquet columns a real GPU decodes give the CPU engine's batches and messages."""

from __future__ import annotations

import pytest

from tests.engines.cuda.reading_checks import *  # noqa: F403  # the test bodies

pytestmark = pytest.mark.gpu
