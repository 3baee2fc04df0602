"""Runs the fuzzing targets under atheris, one process each; see scripts/fuzz."""

from __future__ import annotations

import hashlib
import importlib
import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable

HERE = pathlib.Path(__file__).parent
CORPUS, FOUND = HERE / "corpus", HERE / "found"
_ROOM = "mx_exporter"
_LARGEST = 4096


def targets() -> dict[str, str]:
    """Every target and the module it is in."""
    sys.path.insert(0, str(HERE.parents[2]))
    modules = [
        f"tests.exporter.fuzz.{file.stem}" for file in sorted(HERE.glob("*_targets.py")) if "test" not in file.stem
    ]
    return {name: module for module in modules for name in importlib.import_module(module).TARGETS}


def keep(name: str, folder: pathlib.Path, most: int = 40) -> int:
    """Keeps the smallest of what was found, under names by content; returns how many are new."""
    known = {file.read_bytes() for file in (CORPUS / name).iterdir()}
    new = sorted((file.read_bytes() for file in folder.iterdir()), key=len)
    kept = [body for body in dict.fromkeys(new) if body not in known][: max(0, most - len(known))]
    for body in kept:
        (CORPUS / name / hashlib.sha256(body).hexdigest()[:16]).write_bytes(body)
    return len(kept)


def run(name: str, module: str, seconds: int) -> bool:
    """Fuzzes one target in a child and keeps what it found; False when a law was broken."""
    FOUND.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        for file in (CORPUS / name).iterdir():
            shutil.copy(file, work)
        command = [sys.executable, __file__, "--child", name, module, str(seconds), work]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds + 120)
        runs = [line for line in done.stderr.splitlines() if line.startswith(("Done ", "#"))][-1:]
        if done.returncode != 0:
            _say("\n".join(done.stderr.splitlines()[-30:]))
            _say(f"{name}: BROKEN; the input is in {FOUND}")
            return False
        _say(f"{name}: {runs[0] if runs else 'done'}; {keep(name, pathlib.Path(work))} new in the corpus")
    return True


def child(name: str, module: str, options: list[str]) -> None:
    """In a child: instruments the room, then fuzzes as the options say. Does not return."""
    import atheris  # type: ignore[import-not-found,import-untyped,unused-ignore]

    with atheris.instrument_imports(include=[_ROOM]):
        target: Callable[[bytes], None] = importlib.import_module(module).TARGETS[name]
    common = [f"-max_len={_LARGEST}", f"-artifact_prefix={FOUND}/{name}-", "-timeout=10"]
    atheris.Setup([sys.argv[0], *common, *options], target)
    atheris.Fuzz()


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--child"]:
        sys.path.insert(0, str(HERE.parents[2]))
        child(arguments[1], arguments[2], [f"-max_total_time={arguments[3]}", arguments[4]])
    seconds = int(arguments[0]) if arguments else 600
    found = targets()
    chosen = arguments[1:] or list(found)
    unknown = [name for name in chosen if name not in found]
    if unknown:
        _say(f"fuzz: no target {unknown[0]}: choose of {', '.join(found)}")
        return 2
    each = max(1, seconds // len(chosen))
    held = [run(name, found[name], each) for name in chosen]  # all of them, whatever the first finds
    return 0 if all(held) else 1


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
