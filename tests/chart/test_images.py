"""The images: pinned, without root, complete; in the long run their steps are run and their programs started."""

from __future__ import annotations

import re

import pytest
import tomllib
from packaging.requirements import Requirement

from tests.chart import rehearsal
from tests.chart.rehearsal import DOCKERFILE, REPOSITORY, TARGETS, steps

CONSTRAINTS = REPOSITORY / "images" / "constraints.txt"


def stage_of(target: str) -> list[rehearsal.Step]:
    """The instructions of one stage."""
    found: list[rehearsal.Step] = []
    inside = False
    for step in steps(DOCKERFILE.read_text()):
        if step.name == "FROM":
            inside = step.rest.endswith(f" AS {target}")
        elif inside:
            found.append(step)
    return found


def test_the_base_is_pinned_and_nothing_else_is_fetched() -> None:
    text = DOCKERFILE.read_text()
    assert re.search(r"^ARG DEBIAN=debian:[a-z]+-\d{8}-slim@sha256:[0-9a-f]{64}$", text, re.M)
    assert "ADD " not in text
    assert {step.rest.partition(" AS ")[0] for step in steps(text) if step.name == "FROM"} == {
        "${DEBIAN}",
        "runtime",
        "build",
    }


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_is_one_program_for_a_user_without_rights(target: str) -> None:
    found = {step.name: step.rest for step in stage_of(target)}
    assert found["USER"] == "65532:65532"
    assert found["ENTRYPOINT"] == f'["mx-{target}"]'
    assert found["COPY"] == f"--from=build-{target} /opt/mx /opt/mx"
    assert "RUN" not in found


def test_every_file_that_is_copied_is_let_into_the_context() -> None:
    let_in = set(re.findall(r"^!(.+)$", (REPOSITORY / ".dockerignore").read_text(), re.M))
    copied = {
        source
        for step in steps(DOCKERFILE.read_text())
        if step.name == "COPY" and not step.rest.startswith("--from")
        for source in step.rest.split()[:-1]
    }
    assert copied == let_in
    assert all((REPOSITORY / source).exists() for source in copied)


def test_the_constraints_are_within_what_the_project_asks_for() -> None:
    pinned = dict(line.split("==") for line in CONSTRAINTS.read_text().splitlines() if not line.startswith("#"))
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *(line for target in TARGETS for line in extras[target])]
    for requirement in map(Requirement, wanted):
        version = pinned[requirement.name.lower().replace("prometheus-client", "prometheus_client")]
        assert requirement.specifier.contains(version, prereleases=True), requirement


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_steps_make_images_whose_programs_start() -> None:
    if reason := rehearsal.missing():
        pytest.skip(reason)
    with rehearsal.rehearsed() as stages:
        assert {target: rehearsal.problems(stages[target], target) for target in TARGETS} == {
            target: [] for target in TARGETS
        }
