"""Temporary folders of one process; tests/serve/test_reload.py tries those of processes that were killed."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import os
from ctrbox.files.temporary_folder import OwnFolder
own = OwnFolder("ctrbox-test-")
child = os.fork()
if child == 0:
    own.close()
    os._exit(0)
os.waitpid(child, 0)
assert own.place.is_dir()
own.close()
assert not own.place.exists()
"""


def test_a_forked_process_does_not_remove_the_folder_of_its_parent() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
