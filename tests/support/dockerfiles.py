"""Follow a Dockerfile in a directory of this machine, without a container engine.

Every stage has a root below the directory, and absolute paths are taken as paths below this root. A Python environment
in /usr/local stands in for the base image. Owners, users and the isolation of a container are not imitated.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from fnmatch import fnmatch
from importlib.metadata import distribution
from pathlib import Path
from typing import NamedTuple

from support.compiler import quick_compiler


class Instruction(NamedTuple):
    """Represent one instruction, with its lines joined."""

    name: str
    text: str


def instructions(text: str) -> list[Instruction]:
    r"""Return all instructions of a Dockerfile.

    >>> instructions("# a comment\nFROM a:1 AS b\nRUN c && \\\n    d\n")
    [Instruction(name='FROM', text='a:1 AS b'), Instruction(name='RUN', text='c && d')]
    """
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    joined = re.sub(r"\\\n\s*", "", lines)
    return [Instruction(*line.split(None, 1)) for line in joined.splitlines() if line.strip()]


def stages(text: str) -> list[list[Instruction]]:
    """Return the instructions of each stage, starting with its FROM."""
    grouped: list[list[Instruction]] = []
    for instruction in instructions(text):
        if instruction.name == "FROM":
            grouped.append([])
        grouped[-1].append(instruction)
    return grouped


def let_through(path: str, ignore: str) -> bool:
    """Return whether a file of the context reaches the engine. The last line of .dockerignore that matches decides.

    >>> let_through("a/b.py", "*\\n!a"), let_through("c", "*\\n!a")
    (True, False)
    """
    ignored = False
    parts = Path(path).parts
    above = ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]
    for line in ignore.splitlines():
        pattern = line.removeprefix("!")
        compared = parts if pattern.startswith("**/") else above
        if line and any(fnmatch(name, pattern.removeprefix("**/")) for name in compared):
            ignored = not line.startswith("!")
    return not ignored


@dataclass
class Stage:
    """Hold a stage while it is made, with its settings for running."""

    root: Path
    workdir: str = "/"
    environment: dict[str, str] = field(default_factory=dict)
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    healthcheck: list[str] = field(default_factory=list)

    def place(self, path: str) -> Path:
        """Return the path on this machine of a path in the image."""
        return self.root / path.lstrip("/") if path.startswith("/") else self.place(self.workdir) / path

    def moved(self, text: str) -> str:
        """Replace absolute paths of the image in a text by paths on this machine."""
        return re.sub(r"(?<![\w./~-])/(?=(opt|build|var|etc|run)/)", f"{self.root}/", text)

    def variables(self) -> dict[str, str]:
        """Return the environment of its programs. PATH starts with its own Python."""
        outside = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "STREAMEVAL"))}
        inside = {name: self.moved(value) for name, value in self.environment.items()}
        for name in ("PIP_NO_CACHE_DIR", "PYTHONDONTWRITEBYTECODE"):
            inside.pop(name, None)
        # To save time, compile modules once and only when used. "no" turns this option of pip on.
        inside |= {"PIP_NO_COMPILE": "no", "PYTHONPYCACHEPREFIX": str(self.root.parent / "compiled")}
        inside["CC"] = quick_compiler(self.root.parent)
        path = inside.get("PATH", "$PATH").replace("$PATH", f"{self.root}/usr/local/bin:{os.environ['PATH']}")
        return {**outside, **inside, "PATH": path}


def build(dockerfile: Path, context: Path, directory: Path) -> Stage:
    """Do what the Dockerfile says, and return its last stage.

    Raises:
        CalledProcessError: An instruction failed.
    """
    done: dict[str, Path] = {}
    name, stage = "", Stage(directory)
    (directory / "stages").mkdir()
    root = directory / "root"  # environments cannot be moved, so all stages are made here
    base = base_image(directory / "base")
    for first, *steps in stages(dockerfile.read_text()):
        if root.exists():
            done[name] = root.rename(directory / "stages" / name)
        name = first.text.partition(" AS ")[2]
        stage = Stage(root)
        shutil.copytree(base, root / "usr" / "local", symlinks=True)
        for step in steps:
            follow(step, stage, context, done)
    return stage


def base_image(directory: Path) -> Path:
    """Make a Python with pip, without anything that Debian or `venv` may put next to it."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(directory)], check=True, timeout=100)
    (packages,) = directory.glob("lib/python*/site-packages")
    for file in distribution("pip").files or ():
        if ".." not in file.parts and "__pycache__" not in file.parts:
            (packages / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file.locate(), packages / file)
    return directory


def follow(step: Instruction, stage: Stage, context: Path, done: dict[str, Path]) -> None:
    """Do what one instruction says."""
    match step.name:
        case "RUN":
            run(stage, step.text)
        case "COPY":
            copy(stage, step.text, context, done)
        case "WORKDIR":
            stage.workdir = step.text
            stage.place(".").mkdir(parents=True, exist_ok=True)
        case "ENV":
            stage.environment |= dict(pair.split("=", 1) for pair in shlex.split(step.text))
        case "ENTRYPOINT":
            stage.entrypoint = json.loads(stage.moved(step.text))
        case "CMD":
            stage.command = json.loads(stage.moved(step.text))
        case "HEALTHCHECK":
            stage.healthcheck = json.loads(stage.moved(step.text.partition("CMD ")[2]))
        case "LABEL" | "USER" | "VOLUME" | "EXPOSE" | "STOPSIGNAL":
            pass
        case unknown:
            raise NotImplementedError(unknown)


def run(stage: Stage, command: str) -> None:
    """Run a command in the shell, in the working directory of the stage."""
    subprocess.run(
        ["sh", "-c", stage.moved(command)], cwd=stage.place("."), env=stage.variables(), check=True, timeout=300
    )


def copy(stage: Stage, text: str, context: Path, done: dict[str, Path]) -> None:
    """Follow a COPY from the context, limited by .dockerignore, or from an earlier stage."""
    options = dict(word.removeprefix("--").split("=", 1) for word in text.split() if word.startswith("--"))
    *sources, target = (word for word in text.split() if not word.startswith("--"))
    origin = done[options["from"]] if "from" in options else context
    for source in sources:
        if "from" not in options:
            assert let_through(source, (context / ".dockerignore").read_text()), f"{source} is not in the context"
        path = origin / source.lstrip("/")
        if path.is_dir():
            ignore = None if "from" in options else shutil.ignore_patterns("__pycache__", "*.so")
            shutil.copytree(path, stage.place(target), symlinks=True, ignore=ignore, dirs_exist_ok=True)
        else:
            into = stage.place(target)
            shutil.copy(path, into)
