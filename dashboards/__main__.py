"""`python -m dashboards`: writes the generated files; with `--check` only says whether they are up to date."""

from __future__ import annotations

import argparse
import pathlib
import sys

from dashboards import files


def main(argv: list[str] | None = None) -> int:
    """Write or check; the exit status is 1 where `--check` found a difference."""
    parser = argparse.ArgumentParser("python -m dashboards", description="Dashboards and rules from their source.")
    parser.add_argument("--check", action="store_true", help="write nothing; 1 when a file is not up to date")
    parser.add_argument(
        "--runbooks",
        default=files.RUNBOOKS,
        metavar="URL",
        help="where the pages that alerts point to are published (default: %(default)s)",
    )
    parser.add_argument("--out", type=pathlib.Path, default=files.ROOT, help="root of the tree (default: this one)")
    arguments = parser.parse_args(argv)
    made = {arguments.out / path: text for path, text in files.generated(arguments.runbooks.rstrip("/")).items()}
    old = [path for path, text in made.items() if not path.exists() or path.read_text() != text]
    if arguments.check:
        for path in old:
            print(f"dashboards: {path} is not up to date: run python -m dashboards", file=sys.stderr)  # noqa: T201
        return 1 if old else 0
    for path in old:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(made[path])
        print(f"wrote {path}")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
