"""What runbooks name is there: a reason that no program gives sends whoever is on call looking for nothing."""

from __future__ import annotations

import pathlib
import re

REPOSITORY = pathlib.Path(__file__).parents[2]
RUNBOOKS = sorted((REPOSITORY / "docs" / "runbooks").glob("*.md"))


def named_reasons(page: str) -> set[str]:
    """Words in the first column of a table of reasons, and those called a reason in the text."""
    found = set(re.findall(r"reason `(\w+)`", page))
    for table in re.findall(r"^\| reason \|.*\n\|[- |]+\|\n((?:\|.*\n?)+)", page, re.M):
        for row in table.splitlines():
            found |= set(re.findall(r"`([\w.]+)`", row.split("|")[1]))
    return found


def test_reasons_that_runbooks_name_exist_in_the_exporter() -> None:
    code = "\n".join(path.read_text() for path in sorted((REPOSITORY / "exporter" / "mx_exporter").rglob("*.py")))
    named = {reason for path in RUNBOOKS for reason in named_reasons(path.read_text())}
    assert {"denied", "frozen", "no_pma", "rate_..."} <= named
    unknown = {
        reason
        for reason in named
        if (f'f"{reason.removesuffix("...")}' if reason.endswith("...") else f'"{reason}"') not in code
    }
    assert unknown == set()


def test_options_of_our_programs_that_runbooks_name_exist() -> None:
    """`mx-select rank --server ADDR`: command and option are in that program's source."""
    rooms = {"mx-exporter": "exporter", "mx-operator": "operator", "mx-select": "selector", "mx-server": "server"}
    for path in RUNBOOKS:
        for program, rest in re.findall(
            r"`[^`\n]*\b(mx-(?:exporter|operator|select|server))\b([^`\n]*)`", path.read_text()
        ):
            code = "\n".join(source.read_text() for source in (REPOSITORY / rooms[program]).rglob("*.py"))
            for option in re.findall(r" --?([a-z][\w-]*)", rest):
                assert f'"--{option}"' in code or f'"{option}"' in code, (path.name, program, option)
