"""The ELF files that one inspection looks at, each read once.

All reading of files and directories goes through this class, so that a tree that does not exist yet (the
wheels of a lock, say) can be inspected by another implementation of the same few methods.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Hashable

from crossgrade.inspect.device_code import read_device_code
from crossgrade.inspect.elf import ElfFile, FileSource, UnreadableElfError, parse_elf
from crossgrade.inspect.elf_symbols import (
    Defined,
    Undefined,
    defined_symbols,
    referenced_symbols,
    scan_symbols,
)
from crossgrade.inspect.gpu_architecture import DeviceCode


class ElfIndex:
    """Reads files of this machine; every answer is kept. Paths are absolute strings, not resolved."""

    def __init__(self) -> None:
        self._directories: dict[str, frozenset[str]] = {}
        self._identities: dict[str, Hashable] = {}
        self._files: dict[Hashable, ElfFile | UnreadableElfError] = {}
        self._undefined: dict[Hashable, Undefined] = {}
        self._defined: dict[Hashable, Defined] = {}

    def entries(self, directory: str) -> frozenset[str]:
        """The names in a directory; none where it cannot be read."""
        names = self._directories.get(directory)
        if names is None:
            try:
                names = frozenset(os.listdir(directory or "/"))  # noqa: PTH208  # names only, and in bulk
            except OSError:
                names = frozenset()
            self._directories[directory] = names
        return names

    def identity(self, path: str) -> Hashable | None:
        """What two paths to one file have in common: device and inode; None where there is no such file."""
        if path not in self._identities:
            try:
                status = os.stat(path)  # noqa: PTH116  # thousands of calls: no Path objects
            except OSError:
                self._identities[path] = None
            else:
                regular = stat.S_ISREG(status.st_mode)
                self._identities[path] = (status.st_dev, status.st_ino) if regular else None
        return self._identities[path]

    def _key(self, path: str) -> Hashable:
        """One key for all the paths that lead to a file."""
        return self.identity(path) or path

    def elf(self, path: str) -> ElfFile:
        """One file, parsed. Raises `UnreadableElfError`."""
        key = self._key(path)
        found = self._files.get(key)
        if found is None:
            try:
                with FileSource(path) as source:
                    found = parse_elf(source)
            except UnreadableElfError as error:
                found = error
            self._files[key] = found
        if isinstance(found, UnreadableElfError):
            raise found
        return found

    def read(self, path: str) -> tuple[ElfFile, tuple[str, ...], DeviceCode | None]:
        """A file, the Python modules that it holds, and its device code, in one opening.

        Raises `UnreadableElfError`.
        """
        key = self._key(path)
        with FileSource(path) as source:
            try:
                elf = self._files[key] = parse_elf(source)
                modules: tuple[str, ...] = ()
                if elf.is_dynamic:
                    self._undefined[key], modules = scan_symbols(source, elf)
            except UnreadableElfError as error:
                self._files[key] = error
                raise
            # The loader does not look at device code: a file whose device code is damaged loads for others.
            return elf, modules, read_device_code(source, elf)

    def undefined(self, path: str) -> Undefined:
        """What a file wants from others. Raises `UnreadableElfError`."""
        key = self._key(path)
        elf = self.elf(path)
        if key not in self._undefined:
            try:
                with FileSource(path) as source:
                    self._undefined[key] = scan_symbols(source, elf)[0]
            except UnreadableElfError as error:
                self._files[key] = error  # the same whoever asks first
                raise
        return self._undefined[key]

    def defined(self, path: str) -> Defined:
        """What a file offers to others. Raises `UnreadableElfError`."""
        key = self._key(path)
        if key not in self._defined:
            with FileSource(path) as source:
                self._defined[key] = defined_symbols(source, self.elf(path))
        return self._defined[key]

    def referenced(self, path: str, names: frozenset[bytes]) -> frozenset[bytes]:
        """Those of ``names`` that the file's relocations refer to. Raises `UnreadableElfError`."""
        with FileSource(path) as source:
            return referenced_symbols(source, self.elf(path), names)
