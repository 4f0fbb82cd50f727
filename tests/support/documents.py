"""Run the code that a Markdown document shows, from top to bottom, in one directory and one Python namespace.

```python      runs. With `>>>` its output must be what is shown
```console     every `$ command` runs in a shell. Stdout and stderr must be what is shown (`...`: anything)
```yaml        is saved as the file named in its first line, `# name.yaml`

`<!-- not run: reason -->` right above a block leaves it out. `<!-- given: path/in/repository as name -->` anywhere puts
a file of the repository into the directory. Blocks in other languages are only text.
"""

from __future__ import annotations

import doctest
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from support.paths import ROOT

BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^\n]+) -->\n+)?^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.M | re.S
)
FILE = re.compile(r"^<!-- given: (\S+) as (\S+) -->$", re.M)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class NotAsShown(AssertionError):
    """Report that the document shows something that does not happen."""


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    line: int
    left_out: bool


def blocks(markdown: str) -> Iterator[Block]:
    for match in BLOCK.finditer(markdown):
        line = markdown.count("\n", 0, match.start("text")) + 1
        yield Block(match["language"], match["text"], line, left_out=match["reason"] is not None)


def run_document(markdown: str, directory: Path) -> int:
    """Run all blocks inside `directory`, which must be the working directory, and return how many ran."""
    for source, name in FILE.findall(markdown):
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / source, directory / name)
    document = sys.modules["document"] = ModuleType("document")  # types of classes are looked up in a module
    namespace = vars(document)
    run = {"python": lambda block: run_python(block, namespace), "console": run_console, "yaml": save_yaml}
    ran = [block for block in blocks(markdown) if block.language in run and not block.left_out]
    for block in ran:
        run[block.language](block)
    return len(ran)


def run_python(block: Block, namespace: dict[str, Any]) -> None:
    if ">>> " in block.text:
        example = doctest.DocTestParser().get_doctest(block.text, namespace, f"line {block.line}", None, block.line)
        result: list[str] = []
        doctest.DocTestRunner(optionflags=FLAGS).run(example, out=result.append, clear_globs=False)
        namespace.update(example.globs)
        if result:
            raise NotAsShown("".join(result))
    else:
        exec(compile("\n" * (block.line - 1) + block.text, "<document>", "exec"), namespace)


def run_console(block: Block) -> None:
    for step in re.split(r"^\$ ", block.text, flags=re.M)[1:]:
        command, _, shown = step.partition("\n")
        while command.endswith("\\"):
            more, _, shown = shown.partition("\n")
            command = f"{command[:-1]}{more.removeprefix('>')}"
        printed = shell(command)
        if not doctest.OutputChecker().check_output(shown.rstrip() + "\n", printed.rstrip() + "\n", FLAGS):
            raise NotAsShown(f"line {block.line}: `{command}` is shown with\n{shown}\nbut prints\n{printed}")


def shell(command: str) -> str:
    tools = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    plain = {"NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "120", "STREAMEVAL_HTTP__PORT": "0"}
    result = subprocess.run(
        ["bash", "-c", command],
        env={**os.environ, **tools, **plain},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=250,
        check=False,
    )
    return result.stdout


def save_yaml(block: Block) -> None:
    name = re.match(r"# (\S+\.ya?ml)\n", block.text)
    if name is None:
        raise NotAsShown(
            f"line {block.line}: a yaml block starts with `# name.yaml`, or has `<!-- not run: why -->` above"
        )
    Path(name[1]).write_text(block.text)
