"""Which Python an environment runs, and which extension modules and wheels fit it; nothing is executed.

Sources: PEP 3149 and 384 (suffixes of extension modules), PEP 425 (wheel tags), PEP 703 (free-threaded
builds), PEP 405 (pyvenv.cfg).
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from crossgrade.inspect.reading import read_regular

_MOST_BYTES = 1 << 20  # of a settings file
_SUFFIX = re.compile(r"\.((?:cpython|pypy|graalpy)[\w-]*|abi3(?:t)?(?:-[\w-]+)?)\.so$")
_ABI_TAG = re.compile(r"cpython-(\d)(\d{1,4})(t?)(d?)")
_WHEEL_PYTHON = re.compile(r"cp(\d)(\d{1,4})$")


@dataclass(frozen=True)
class Interpreter:
    """A CPython: its resolved path, its version, its ABI tag (``cpython-312-x86_64-linux-gnu``).

    ``prefix`` is the installation that it belongs to, ``site_packages`` the environment's directory for
    packages.
    """

    executable: str
    version: tuple[int, int]
    soabi: str
    prefix: str
    site_packages: str

    @property
    def free_threaded(self) -> bool:
        """Whether it is built without the global interpreter lock."""
        match = _ABI_TAG.match(self.soabi)
        return bool(match and match[3])

    @property
    def wheel_abi(self) -> str:
        """The ABI tag of wheels made for it: ``cp312``, ``cp313t``."""
        return f"cp{self.version[0]}{self.version[1]}{'t' if self.free_threaded else ''}"

    @property
    def name(self) -> str:
        """For messages: ``CPython 3.12``."""
        kind = " free-threaded" if self.free_threaded else ""
        return f"CPython {self.version[0]}.{self.version[1]}{kind}"


def find_interpreter(environment: Path) -> Interpreter | None:
    """The interpreter of a virtual environment, or None where the directory has none.

    The version comes from pyvenv.cfg, else from the name of the library directory; the ABI tag from the
    interpreter's own `_sysconfigdata` file, else it is put together from version and machine.
    """
    program = environment / "bin" / "python"
    libraries = sorted(environment.glob("lib/python3.*"))
    if not program.exists() or not libraries:
        return None
    settings = _settings(environment / "pyvenv.cfg")
    stated = settings.get("version_info", settings.get("version", ""))
    match = re.match(r"(\d{1,4})\.(\d{1,4})", stated) or re.match(r"python(\d{1,4})\.(\d{1,4})", libraries[-1].name)
    if match is None:
        return None
    version = (int(match[1]), int(match[2]))
    executable = os.path.realpath(program)
    prefix = Path(executable).parent.parent
    fitting = [path for path in libraries if re.match(rf"python{version[0]}\.{version[1]}t?$", path.name)]
    library = fitting[-1] if fitting else libraries[-1]
    soabi = _stated_soabi(prefix / "lib" / library.name, prefix / "lib64" / library.name)
    suffix = "t" if library.name.endswith("t") else ""
    guessed = f"cpython-{version[0]}{version[1]}{suffix}-{platform.machine()}-linux-gnu"
    return Interpreter(executable, version, soabi or guessed, str(prefix), str(library / "site-packages"))


def extension_tag(file_name: str) -> str:
    """The ABI tag in the name of an extension module: a SOABI, ``abi3``, or empty for a plain ``.so``."""
    match = _SUFFIX.search(file_name)
    return match[1] if match else ""


def module_stem(file_name: str) -> str:
    """The name of the module without its ABI tag and ``.so``: the same for each variant of one module."""
    return _SUFFIX.sub("", file_name).removesuffix(".so")


def extension_problem(file_name: str, interpreter: Interpreter) -> str:
    """Why the interpreter does not import an extension module of that name; empty where it does."""
    tag = extension_tag(file_name)
    if tag in ("", interpreter.soabi):
        return ""
    if tag.startswith("abi3"):
        problem = f"uses the limited API (abi3), which {interpreter.name} does not load"
        return problem if interpreter.free_threaded and not tag.startswith("abi3t") else ""
    match = _ABI_TAG.match(tag)
    if match is None:
        return f"is built for {tag.split('-')[0]}; this environment runs {interpreter.name}"
    built_for = f"CPython {match[1]}.{match[2]}{' free-threaded' if match[3] else ''}"
    if built_for == interpreter.name:
        return f"is built for {tag}; this environment runs {interpreter.soabi}"
    return f"is built for {built_for}; this environment runs {interpreter.name}"


def wheel_problem(tags: Iterable[str], interpreter: Interpreter) -> str:
    """Why a wheel with these tags (``cp312-cp312-linux_x86_64``) does not fit; empty where one does."""
    tags = list(tags)
    for tag in tags:
        python, _, rest = tag.partition("-")
        abi = rest.partition("-")[0]
        if abi == interpreter.wheel_abi or (abi == "none" and _fits(python, interpreter)):
            return ""
        match = _WHEEL_PYTHON.match(python)
        old_enough = match is not None and (int(match[1]), int(match[2])) <= interpreter.version
        if abi == "abi3" and old_enough and not interpreter.free_threaded:
            return ""
    if not tags:
        return ""
    return f"comes from a wheel for {', '.join(sorted(set(tags)))}; this environment runs {interpreter.name}"


def _fits(python: str, interpreter: Interpreter) -> bool:
    """Whether a wheel without an ABI fits: ``py37`` means 3.7 and later, ``cp37`` that one Python."""
    major, minor = interpreter.version
    earlier = {f"py{major}{number}" for number in range(minor + 1)}
    return any(tag in ("py3", "cp3", f"cp{major}{minor}") or tag in earlier for tag in python.split("."))


def _settings(path: Path) -> dict[str, str]:
    try:
        lines = read_regular(path, _MOST_BYTES).decode("utf-8", "replace").splitlines()
    except OSError:
        return {}
    pairs = (line.partition("=") for line in lines)
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def _stated_soabi(*directories: Path) -> str:
    for directory in directories:
        for path in sorted(directory.glob("_sysconfigdata_*.py")):
            try:
                text = read_regular(path, _MOST_BYTES).decode("utf-8", "replace")
            except OSError:
                continue
            if match := re.search(r"'SOABI': '([^']+)'", text):
                return match[1]
    return ""
