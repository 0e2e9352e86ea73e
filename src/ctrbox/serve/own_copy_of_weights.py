"""Keeps the server's own copy of the weights that it serves, in a temporary folder that nobody else writes to.

A file in the published folder could be replaced between its check and its use, so the model is loaded from this copy, and each
patch is applied to it.
"""

from __future__ import annotations

from ctrbox.files.temporary_folder import OwnFolder
from ctrbox.publish.versions import Published

OWN_PREFIX = "ctrbox-serve-"  # of the temporary folder


class OwnCopy:
    """The server's copy of the weight file of version ``number`` (default: the current one). It is at ``file`` until closed."""

    def __init__(self, published: Published, number: int | None = None) -> None:
        self._own = OwnFolder(OWN_PREFIX)
        self.folder = self._own.place
        self.file = self.folder / "served.fbw"
        try:
            self.version = published.copied(self.file, number)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._own.close()
