"""Writes the metadata that depend on the address of the repository, and compiles the kernels.

A package index shows README.md where relative links lead nowhere. When the variable STREAMEVAL_REPOSITORY has the
address of the repository, such as https://github.com/OWNER/streameval, they become links to the tag of the version.

Kernels are compiled if Cython, a C compiler and the headers of Python are there. Otherwise the wheel is pure, and runs
the same files uncompiled. STREAMEVAL_PURE=1 always builds a pure wheel, STREAMEVAL_PURE=0 fails if it cannot compile.
"""

from __future__ import annotations

import os
import re
import tempfile
from contextlib import chdir
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

RELATIVE_LINK = re.compile(r"(?P<picture>!?)\[(?P<text>[^\]]*)\]\((?!https?:|mailto:|#)(?P<target>[^)\s]+)\)")

IMPORT = re.compile(r"^import cython$", re.MULTILINE)
"""A module with this line is a kernel."""
DIRECTIVES = {
    "language_level": 3,
    "boundscheck": False,
    "wraparound": False,
    "cdivision": True,
    "initializedcheck": False,
}
# Contraction to fused operations would give other bits, as would -ffast-math; -march=native would not run elsewhere.
FLAGS = ["-O3", "-g0", "-ffp-contract=off"]


class RepositoryLinks(MetadataHookInterface):
    """Adds `readme` and `urls`, which pyproject.toml declares as dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add both fields."""
        repository = os.environ.get("STREAMEVAL_REPOSITORY", "").rstrip("/")
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        if repository:
            text = with_absolute_links(text, repository, f"v{metadata['version']}")
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        metadata["urls"] = urls(repository)


def with_absolute_links(text: str, repository: str, tag: str) -> str:
    """Markdown in which relative links and pictures lead to a tag of the repository."""

    def absolute(link: re.Match[str]) -> str:
        kind = "raw" if link["picture"] else "blob"
        return f"{link['picture']}[{link['text']}]({repository}/{kind}/{tag}/{link['target']})"

    return RELATIVE_LINK.sub(absolute, text)


def urls(repository: str) -> dict[str, str]:
    """The links of the project; none without a repository."""
    if not repository:
        return {}
    pages = {"Documentation": "#readme", "Changelog": "/blob/main/CHANGELOG.md", "Issues": "/issues"}
    return {"Source": repository, **{name: f"{repository}{page}" for name, page in pages.items()}}


class CompiledKernels(BuildHookInterface):
    """Adds the compiled kernels to a wheel, next to their sources; an editable install gets them in the checkout."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the kernels.

        Raises:
            RuntimeError: They cannot be compiled, and STREAMEVAL_PURE=0.
        """
        root, wish = Path(self.root), os.environ.get("STREAMEVAL_PURE", "")
        self.made = tempfile.TemporaryDirectory(prefix="streameval-kernels-")
        for path in extension_modules(root) if version == "editable" else ():
            path.unlink()
        reason = "STREAMEVAL_PURE=1" if wish == "1" else obstacle(Path(self.made.name))
        if reason:
            if wish == "0":
                raise RuntimeError(f"the kernels cannot be compiled: {reason}")
            self.app.display_warning(f"the kernels are not compiled, and will be slow: {reason}")
            return
        target = root if version == "editable" else Path(self.made.name, "package")
        compile_kernels(root, target)
        if version != "editable":
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
            build_data["force_include"] |= {
                str(path): str(path.relative_to(target)) for path in extension_modules(target)
            }

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the temporary files."""
        self.made.cleanup()


def extension_modules(root: Path) -> list[Path]:
    """The compiled kernels below a directory, of every version of Python."""
    return sorted((root / "streameval").rglob("*.so"))


def obstacle(scratch: Path) -> str:
    """Why nothing can be compiled here; empty if it can."""
    try:
        import Cython  # noqa: F401
        from setuptools import Extension
        from setuptools.errors import BaseError, CCompilerError
    except ImportError as error:
        return f"no module {error.name} (package of Python)"
    (scratch / "probe.c").write_text("#include <Python.h>\nPyMODINIT_FUNC PyInit_probe(void) { return NULL; }\n")
    try:
        build_extensions([Extension("probe", [str(scratch / "probe.c")])], scratch, scratch)
    except (BaseError, CCompilerError) as error:
        return f"no C compiler, or no headers of Python (Debian: gcc, python3-dev): {error}"
    return ""


def compile_kernels(root: Path, target: Path) -> None:
    """Compile the kernels in the checkout `root` to extension modules below `target`."""
    from Cython.Build import cythonize
    from setuptools import Extension

    with tempfile.TemporaryDirectory() as scratch, chdir(root):
        kernels = [path for path in sorted(Path("streameval").rglob("*.py")) if IMPORT.search(path.read_text("utf-8"))]
        names = [".".join(path.with_suffix("").parts) for path in kernels]
        modules = [
            Extension(name, [str(path)], extra_compile_args=FLAGS) for name, path in zip(names, kernels, strict=True)
        ]
        translated = cythonize(modules, build_dir=scratch, compiler_directives=DIRECTIVES, quiet=True)
        build_extensions(translated, target, Path(scratch))


def build_extensions(modules: list[Any], target: Path, scratch: Path) -> None:
    """Compile extension modules from C, by the `build_ext` command of setuptools."""
    from setuptools import Distribution

    command = Distribution({"name": "streameval", "ext_modules": modules}).get_command_obj("build_ext")
    command.build_lib, command.build_temp, command.force = str(target), str(scratch), True
    command.ensure_finalized()
    command.run()
