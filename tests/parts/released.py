"""The released MX client (PyPI `modelexpress`), as a peer.

Its package's `__init__` imports torch, which the modules used here do not need: the package is entered by its folder
instead.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import pathlib
import sys
import types
from typing import Any


def folder() -> pathlib.Path | None:
    """Where the installed package is; None when it is not installed."""
    try:
        distribution = importlib.metadata.distribution("modelexpress")
    except importlib.metadata.PackageNotFoundError:
        return None
    return pathlib.Path(str(distribution.locate_file("modelexpress")))


def module(name: str) -> Any:
    """The released client's module `modelexpress.NAME`, without running the packages' `__init__`s."""
    root = folder()
    assert root is not None, "the released client is missing: run scripts/setup"
    _enter("modelexpress", root)
    parts = name.split(".")
    for depth in range(1, len(parts)):
        _enter(".".join(["modelexpress", *parts[:depth]]), root.joinpath(*parts[:depth]))
    return importlib.import_module(f"modelexpress.{name}")


def _enter(name: str, path: pathlib.Path) -> None:
    if name not in sys.modules:
        package = types.ModuleType(name)
        package.__path__ = [str(path)]
        sys.modules[name] = package
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, package)
