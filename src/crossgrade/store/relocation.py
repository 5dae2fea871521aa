"""Making a venv that was copied or moved name its new place: a venv writes its own path into many of its files.

What is rewritten: shebangs (also the `/bin/sh` form for long paths), activation scripts, `pyvenv.cfg`, `*.pth` and
editable finders, Jupyter kernels, `direct_url.json`, absolute symlinks, and in RECORD the hash and size of each
file that was changed. What is not: the names of source files inside `.pyc` (they only show in tracebacks), and
compiled code, which has no business knowing where its venv lies. Symlinks are never followed: a file behind one is not
the venv's own.

Each file is replaced by a rename, never written in place: it may be a hard link that another venv shares.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import os
import re
import secrets
import shlex
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from urllib.parse import quote, unquote

from crossgrade.store.quoting import ACTIVATION
from crossgrade.store.scanning import scan

_SCRIPT_BYTES = 1 << 20
_LARGEST_BYTES = 1 << 26
# The kernel reads no more than this of a first line (BINPRM_BUF_SIZE is 256 since Linux 5.1, was 128 before).
_SHEBANG_BYTES = 127
# One word of sh, in whatever mixture of quotes: a path with an apostrophe is written as 'o'"'"'ne'
_LONG_SHEBANG = re.compile(
    rb"\A#!/bin/sh\n'''exec' (?P<program>(?:\"(?:[^\"\\\n]|\\.)*\"|'[^'\n]*'|[^\s'\"\\])+) \"\$0\" \"\$@\"\n' '''\n"
)
_SHEBANG = re.compile(rb"\A#!(?P<rest>[^\n]*)\n")

Rewrite = Callable[[bytes, str, str], bytes]


def relocate(venv: Path, old: Sequence[Path], new: Path) -> tuple[str, ...]:
    """Let every file of the venv at `venv` that names one of the `old` places name `new` instead.

    Returns the relative paths of what was changed, in order; a second call changes nothing. Raises OSError, StoreError.
    """
    places = sorted({os.fspath(place) for place in old} - {os.fspath(new)}, key=len, reverse=True)
    changed: list[str] = []
    for path, rewrite in _files(venv):
        before = path.read_bytes()
        after = before
        for place in places:
            after = rewrite(after, place, os.fspath(new))
        if after != before:
            _replace(path, after)
            changed.append(str(path.relative_to(venv)))
    changed += _relink(venv, places, os.fspath(new))
    changed += _record(venv, frozenset(changed))
    return tuple(sorted(changed))


# ---- which files, and how each is rewritten


def _files(venv: Path) -> Iterator[tuple[Path, Rewrite]]:
    for path in _regular(venv, "pyvenv.cfg"):
        yield path, _pyvenv
    for path in _regular(venv, "bin/*"):
        if path.name in ACTIVATION:
            yield path, _activation(path.name)
        elif path.stat().st_size <= _SCRIPT_BYTES:
            yield path, _shebang
    for site in _site_packages(venv):
        for path in _regular(site, "*"):
            if path.suffix in (".pth", ".egg-link") or path.name.startswith("__editable__"):
                yield path, _plain
        for path in _regular(site, "*.dist-info/direct_url.json"):
            yield path, _direct_url
    for path in _regular(venv, "share/jupyter/kernels/*/kernel.json"):
        yield path, _plain


def _regular(folder: Path, pattern: str) -> list[Path]:
    return [path for path in _reached(folder, pattern) if path.is_file() and path.stat().st_size <= _LARGEST_BYTES]


def _reached(folder: Path, pattern: str) -> list[Path]:
    """What fits the pattern, and neither is a symlink nor lies behind one: that would lead out of the venv."""
    return [path for path in sorted(folder.glob(pattern)) if not _behind_link(folder, path)]


def _behind_link(folder: Path, path: Path) -> bool:
    return any(each.is_symlink() for each in (path, *path.parents)[: len(path.parts) - len(folder.parts)])


def _site_packages(venv: Path) -> list[Path]:
    return [path for path in _reached(venv, "lib/python3*/site-packages") if path.is_dir()]


def _shebang(data: bytes, old: str, new: str) -> bytes:
    long = _LONG_SHEBANG.match(data)
    match = long or _SHEBANG.match(data)
    if match is None:
        return data
    if long:
        program, options = os.fsencode(shlex.split(os.fsdecode(long["program"]))[0]), b""
    else:
        program, options = match["rest"].strip(), b""
        if not _below(program, old):
            return data
        # a path with spaces is one word for the kernel: the rest of the line is its only argument
        word, _, rest = program.partition(b" ")
        if b" " not in os.fsencode(old) and rest:
            program, options = word, rest
    if not _below(program, old):
        return data
    moved = os.fsencode(new) + program[len(os.fsencode(old)) :]
    line = b"#!" + moved + (b" " + options if options else b"") + b"\n"
    if b" " in moved or len(line) > _SHEBANG_BYTES:
        quoted = os.fsencode(_word(os.fsdecode(moved)))
        words = quoted + (b" " + options if options else b"")
        line = b"#!/bin/sh\n'''exec' " + words + b" \"$0\" \"$@\"\n' '''\n"
    return line + data[match.end() :]


def _word(path: str) -> str:
    """A word of sh that also stands inside a Python string of three single quotes."""
    if not re.search(r'[\\"$`]', path):
        return f'"{path}"'
    if "'" not in path:
        return f"'{path}'"
    return '"' + re.sub(r'([\\"$`])', r"\\\1", path) + '"'


def _below(program: bytes, place: str) -> bool:
    folder = os.fsencode(place)
    return program.startswith(folder) and program[len(folder) : len(folder) + 1] in (b"/", b"")


def _activation(name: str) -> Rewrite:
    language = ACTIVATION[name]

    def rewrite(data: bytes, old: str, new: str) -> bytes:
        return os.fsencode(language.replace(os.fsdecode(data), old, new))

    return rewrite


def _replaced(text: str, old: str, new: str) -> str:
    """With `old` replaced where it is a whole path or the beginning of one."""
    return re.sub(rf"(?<![\w./-]){re.escape(old)}(?![\w.-])", lambda _: new, text)


def _plain(data: bytes, old: str, new: str) -> bytes:
    return os.fsencode(_replaced(os.fsdecode(data), old, new))


def _pyvenv(data: bytes, old: str, new: str) -> bytes:
    lines = os.fsdecode(data).splitlines(keepends=True)
    kept = ("prompt", "home")
    moved = [line if line.partition("=")[0].strip() in kept else _replaced(line, old, new) for line in lines]
    return os.fsencode("".join(moved))


def _direct_url(data: bytes, old: str, new: str) -> bytes:
    try:
        value = json.loads(data)
        url = value["url"]
    except (ValueError, KeyError, TypeError):
        return data  # not ours to mend
    if not isinstance(url, str) or not url.startswith("file://"):
        return data
    path = unquote(url.removeprefix("file://"))
    if not _below(os.fsencode(path), old):
        return data
    value["url"] = "file://" + quote(new + path[len(old) :])
    return json.dumps(value).encode()


# ---- links and records


def _relink(venv: Path, places: Sequence[str], new: str) -> list[str]:
    changed = []
    for relative, target in [(path, target) for path, _, target in scan(venv) if target]:
        place = next((place for place in places if _below(os.fsencode(target), place)), None)
        if place is not None:
            path = venv / relative
            temporary = _beside(path)
            temporary.symlink_to(new + target[len(place) :])
            temporary.rename(path)
            changed.append(relative)
    return changed


def _record(venv: Path, changed: frozenset[str]) -> list[str]:
    """Give the changed files their new hash and size in the RECORD that lists them (packaging.python.org)."""
    if not changed:
        return []
    rewritten = []
    for site in _site_packages(venv):
        for record in _regular(site, "*.dist-info/RECORD"):
            try:
                rows = list(csv.reader(io.StringIO(record.read_text(encoding="utf-8"), newline="")))
            except (UnicodeDecodeError, csv.Error):
                continue  # not ours to mend
            touched = False
            for row in rows:
                if len(row) != 3 or not row[1]:
                    continue
                listed = os.path.relpath(os.path.normpath(site / row[0]), venv)
                if listed in changed and not _behind_link(venv, venv / listed):
                    data = (venv / listed).read_bytes()
                    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
                    touched = touched or row[1:] != [f"sha256={digest}", str(len(data))]
                    row[1:] = [f"sha256={digest}", str(len(data))]
            if touched:
                text = io.StringIO(newline="")
                csv.writer(text, lineterminator="\n").writerows(rows)
                _replace(record, text.getvalue().encode())
                rewritten.append(str(record.relative_to(venv)))
    return rewritten


# ---- replacing a file


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")


def _replace(path: Path, data: bytes) -> None:
    """By a rename, with mode and owner kept. Durable when the filesystem is synced, which the caller does."""
    status = path.lstat()
    temporary = _beside(path)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            if (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
                os.fchown(stream.fileno(), status.st_uid, status.st_gid)
            os.fchmod(stream.fileno(), stat.S_IMODE(status.st_mode))
        temporary.rename(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
