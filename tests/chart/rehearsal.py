"""Runs images/Dockerfile without Docker: each stage is a bare Debian root, each step runs in it with chroot.

`scripts/images --rehearse` starts this; `test_images` does so in the long run. It knows the instructions that our
Dockerfile has, and no others. What it cannot show is the base image itself, of which debootstrap makes a likeness, and
the other architecture.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence

REPOSITORY = pathlib.Path(__file__).parents[2]
DOCKERFILE = REPOSITORY / "images" / "Dockerfile"
TARGETS = ("exporter", "operator", "server")
#: What a build reaches its package registries with.
_PASSED_ON = re.compile(r"PIP_(INDEX_URL|EXTRA_INDEX_URL|TRUSTED_HOST|DEFAULT_TIMEOUT)|.*_(proxy|PROXY)")
#: The machine's own authorities, at a path that no package writes to.
_AUTHORITIES = "/etc/rehearsal-authorities.pem"


def missing() -> str | None:
    """Why it cannot be done here; None when it can."""
    if os.geteuid() != 0:
        return "the rehearsal needs root, for chroot"
    return None if shutil.which("debootstrap") else "no debootstrap: apt-get install debootstrap"


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """One instruction and what follows it."""

    name: str
    rest: str


@dataclasses.dataclass(slots=True)
class Stage:
    """A stage as far as it was built."""

    root: pathlib.Path
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    folder: str = "/"
    user: str = "0:0"
    shell: tuple[str, ...] = ("/bin/sh", "-c")
    entrypoint: tuple[str, ...] = ()

    def run(self, command: Sequence[str], **more: object) -> subprocess.CompletedProcess[str]:
        """Run a command inside, as its user."""
        passed_on = {name: value for name, value in os.environ.items() if _PASSED_ON.fullmatch(name)}
        inside = [str(shutil.which("chroot")), f"--userspec={self.user}", str(self.root)]
        change = ["/bin/sh", "-c", 'cd "$0" && exec "$@"', self.folder, *command]
        env = {"HOME": "/tmp", "PIP_CERT": _AUTHORITIES, **passed_on, "PATH": os.environ["PATH"], **self.environment}
        return subprocess.run([*inside, *change], env=env, text=True, check=True, **more)  # type: ignore[call-overload, no-any-return]


def steps(text: str) -> list[Step]:
    """The instructions, with continued lines joined and comments gone."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [Step(name.upper(), rest.strip()) for name, _, rest in (s.partition(" ") for s in joined.splitlines() if s)]


class Rehearsal:
    """Builds every stage of a Dockerfile under one folder."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder, self._context = folder, folder / "context"
        self._arguments: dict[str, str] = {}
        self.stages: dict[str, Stage] = {}

    def build(self) -> dict[str, Stage]:
        """Run all steps; the stages by name.

        Raises:
            subprocess.CalledProcessError: A step failed.
        """
        self._context.mkdir()
        archive = subprocess.run(["git", "-C", REPOSITORY, "archive", "HEAD"], check=True, capture_output=True)
        subprocess.run(["tar", "-x", "-C", self._context], input=archive.stdout, check=True)
        stage: Stage | None = None
        for step in steps(DOCKERFILE.read_text()):
            print(f"rehearsal: {step.name} {step.rest[:100]}", flush=True)  # noqa: T201
            if step.name == "ARG":
                name, _, value = step.rest.partition("=")
                self._arguments[name] = value
            elif step.name == "FROM":
                stage = self._from(step.rest)
            else:
                assert stage is not None
                getattr(self, f"_{step.name.lower()}")(stage, step.rest)
        return self.stages

    def _from(self, rest: str) -> Stage:
        base, _, name = rest.partition(" AS ")
        base = re.sub(r"\$\{(\w+)\}", lambda match: self._arguments[match[1]], base)
        root = self._folder / name
        if base in self.stages:
            known = self.stages[base]
            subprocess.run(["cp", "-a", "--reflink=auto", known.root, root], check=True)
            made = dataclasses.replace(known, root=root, environment=dict(known.environment))
        else:
            made = Stage(_debian(base, root))
        self.stages[name] = made
        return made

    def _run(self, stage: Stage, rest: str) -> None:
        stage.run([*stage.shell, rest])

    def _env(self, stage: Stage, rest: str) -> None:
        stage.environment |= dict(re.findall(r"(\w+)=(\S+)", rest))

    def _shell(self, stage: Stage, rest: str) -> None:
        stage.shell = tuple(json.loads(rest))

    def _workdir(self, stage: Stage, rest: str) -> None:
        stage.folder = rest
        (stage.root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)

    def _user(self, stage: Stage, rest: str) -> None:
        stage.user = rest

    def _entrypoint(self, stage: Stage, rest: str) -> None:
        stage.entrypoint = tuple(json.loads(rest))

    def _label(self, stage: Stage, rest: str) -> None:
        """Nothing to do."""

    def _expose(self, stage: Stage, rest: str) -> None:
        """Nothing to do."""

    def _copy(self, stage: Stage, rest: str) -> None:
        words, origin = rest.split(), self._context
        if words[0].startswith("--from="):
            origin = self.stages[words.pop(0).partition("=")[2]].root
        *sources, target = words
        inside = stage.root / os.path.join(stage.folder, target).lstrip("/")
        for source in (origin / source.lstrip("/") for source in sources):
            if source.is_dir():
                shutil.copytree(source, inside, symlinks=True, dirs_exist_ok=True)
            else:
                into = inside / source.name if target.endswith("/") else inside
                into.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, into)


def _debian(image: str, root: pathlib.Path) -> pathlib.Path:
    """A root like Debian's image of that name: its smallest set of packages."""
    suite = re.match(r"debian:(\w+)", image)
    assert suite is not None, image
    subprocess.run(["debootstrap", "--variant=minbase", suite[1], str(root)], check=True, stdout=subprocess.DEVNULL)
    authorities = os.environ.get("PIP_CERT", "/etc/ssl/certs/ca-certificates.crt")
    for path, inside in (("/etc/resolv.conf", "/etc/resolv.conf"), (authorities, _AUTHORITIES)):
        if pathlib.Path(path).exists():
            shutil.copy(path, root / inside.lstrip("/"))
    return root


@contextlib.contextmanager
def rehearsed() -> Iterator[dict[str, Stage]]:
    """All stages, built; removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="mx-images-") as folder:
        yield Rehearsal(pathlib.Path(folder)).build()


def problems(stage: Stage, target: str) -> list[str]:
    """What an image must not be: root, with tools to build with, with other components, unable to start."""
    found = []
    if stage.user != "65532:65532":
        found.append(f"runs as {stage.user}")
    folders = [stage.root / folder for folder in ("usr/bin", "usr/local/bin", "opt/mx/bin")]
    tools = ("pip", "pip3", "gcc", "cc", "make", "curl", "wget", "git")
    found += [f"holds {tool}" for tool in tools if any((folder / tool).exists() for folder in folders)]
    doors = sorted(path.name for path in (stage.root / "opt/mx/bin").glob("mx-*"))
    if doors != [f"mx-{target}"]:
        found.append(f"holds {doors}")
    said = stage.run([*stage.entrypoint, "--help"], capture_output=True).stdout
    if f"usage: mx-{target}" not in said:
        found.append(f"--help says {said[:200]!r}")
    return found


def main() -> int:
    """Build everything and look at it."""
    if reason := missing():
        print(f"rehearsal: {reason}", file=sys.stderr)  # noqa: T201
        return 3
    with rehearsed() as stages:
        failed = False
        for target in TARGETS:
            found = problems(stages[target], target)
            size = subprocess.run(["du", "-sm", stages[target].root], check=True, capture_output=True, text=True)
            print(f"rehearsal: {target}: {size.stdout.split()[0]} MB, {', '.join(found) or 'starts'}")  # noqa: T201
            failed = failed or bool(found)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
