"""Where the programs of the tool tier are: on PATH, in KUBEBUILDER_ASSETS, or in the cache that scripts/tools fills."""

from __future__ import annotations

import os
import pathlib
import shutil

HOW = "build it with scripts/tools"


def cache() -> pathlib.Path:
    """Folder for what is built outside the repository."""
    default = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "mx-source-load"
    return pathlib.Path(os.environ.get("MX_CACHE", default))


def tool(name: str) -> pathlib.Path | None:
    """The built program `name`, or None.

    `prometheus`, `promtool` and `node_exporter` are taken from the cache only: the ones on PATH are Debian's, which
    the tests use under that name of their own.
    """
    built = pathlib.Path(os.environ.get("MX_TOOLS", cache() / "tools")) / "bin" / name
    folders = [pathlib.Path(assets)] if (assets := os.environ.get("KUBEBUILDER_ASSETS")) else []
    for candidate in (*(folder / name for folder in folders), built):
        if os.access(candidate, os.X_OK):
            return candidate
    if name in ("etcd", "kube-apiserver") and (found := shutil.which(name)):
        return pathlib.Path(found)
    return None
