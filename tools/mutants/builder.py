"""The one copy of the tree in which C++ changes are compiled; those who try changes take turns in it.

A build after a change compiles what depends on the changed file and, again, what depended on the one before.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.mutants.sites import Site
from tools.mutants.tree import TOOLS, Tree


class Builder:
    """Compiles the extension, libctrbox and the native tests of a changed tree."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.tree: Tree | None = None  # made when the first C++ change comes
        self.turn = threading.Lock()

    def extension(self, site: Site, into: Path) -> bool:
        """Build the extension with the change and copy it to a file; return False where it does not compile."""
        with self._changed(site) as tree:
            options = ["-DSKBUILD_STATE=editable", f"-DPython_EXECUTABLE={tree.python}"]
            if not self._built(tree, tree.place / "build/mutants", options):
                return False
            (built,) = (tree.place / "src/ctrbox").glob("_native*.so")
            shutil.copy2(built, into)
            return True

    def library_compiles(self, site: Site) -> bool:
        """Build libctrbox with the change. The tests of the library build it again, each in their own tree."""
        with self._changed(site) as tree:
            options = ["-DCTRBOX_CAPI=ON", "-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS_DEBUG=-O0"]
            return self._built(tree, tree.place / "build/capi", options)

    def native_tests_pass(self, site: Site) -> bool:
        """Build and run the native tests with the change, under the sanitizers of `make test`."""
        with self._changed(site) as tree:
            folder = tree.place / "build/native-tests"
            if not self._built(tree, folder, ["-DCTRBOX_SANITIZE=address,undefined"]):
                return False
            asked: list[object] = ["-j", os.cpu_count(), "--timeout", "300", "--stop-on-failure"]
            return tree.ran([_tool("ctest"), "--test-dir", folder, *asked], 3600) == 0

    @contextmanager
    def _changed(self, site: Site) -> Iterator[Tree]:
        with self.turn:
            self.tree = self.tree or Tree(self.place)
            path = self.tree.place / site.path
            original = path.read_text(encoding="utf-8")
            try:
                path.write_text(site.applied(original), encoding="utf-8")
                yield self.tree
            finally:
                path.write_text(original, encoding="utf-8")

    def _built(self, tree: Tree, folder: Path, options: list[str]) -> bool:
        if not (folder / "build.ninja").exists():
            command = [_tool("cmake"), "-S", tree.place, "-B", folder, "-G", "Ninja", *options]
            command.append(f"-DCMAKE_MAKE_PROGRAM={_tool('ninja')}")
            if shutil.which("ccache"):
                command.append("-DCMAKE_CXX_COMPILER_LAUNCHER=ccache")
            if tree.ran(command, 600) != 0:
                raise RuntimeError(f"cmake cannot configure {tree.place}: {tree.output.read_text()[-1000:]}")
        return tree.ran([_tool("cmake"), "--build", folder, "-j", os.cpu_count()], 3600) == 0


def _tool(name: str) -> Path:
    """A program beside the interpreter, else of the system."""
    return TOOLS / name if (TOOLS / name).exists() else Path(shutil.which(name) or name)
