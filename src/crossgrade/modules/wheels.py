"""Wheels that were built here: their records in the store, and whether a venv holds them."""

from __future__ import annotations

import csv
import hashlib
import json
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from crossgrade.errors import StoreError, TaskError
from crossgrade.inspect.wheel_name import misnamed
from crossgrade.modules.contract import HostView
from crossgrade.modules.files import absolute
from crossgrade.modules.locks import GitPin
from crossgrade.store.layout import read_record

RECORD = "wheel.json"


@dataclass(frozen=True)
class BuiltWheel:
    """The record of a wheel in the store; it is written last, so where it is, the wheel is whole.

    `size` is in bytes, `name` is normalized, `inputs` say what the key was made of.
    """

    key: str
    file: str
    name: str
    version: str
    sha256: str
    size: int
    log: str
    inputs: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {"schema": 1, **asdict(self)}

    @classmethod
    def read(cls, folder: Path) -> BuiltWheel | None:
        """None where no complete wheel is. Raises StoreError for a damaged record."""
        path = folder / RECORD
        if not path.is_file():
            return None
        record = read_record(path)
        try:
            return cls(**{name: record[name] for name in cls.__dataclass_fields__})
        except KeyError as error:
            raise StoreError(f"the record {path} is damaged: {error} is missing") from error


@dataclass(frozen=True)
class WheelSource:
    """A wheel that an environment is to hold. `file` is None while it is only predicted to be built.

    `identity` stands for its content: the key under which it is built, or the file's own digest. `git` is what
    python_env itself builds it from.
    """

    identity: str
    key: str = ""
    file: Path | None = None
    name: str = ""
    version: str = ""
    sha256: str = ""
    git: GitPin | None = None


def find_wheel(given: str, host: HostView) -> WheelSource:
    """What a playbook's `wheels` entry names: the folder that extension_build returned, or a wheel file.

    Raises TaskError when it is neither there nor predicted.
    """
    path = absolute(given, host)
    if path.parent == host.store.wheel_folder("any").parent:
        key = path.name
        record = BuiltWheel.read(path)
        if record is not None:
            return WheelSource(key, key, path / record.file, record.name, record.version, record.sha256)
        predicted = host.predicted("wheel", key)
        if isinstance(predicted, dict):
            return WheelSource(key, key, None, str(predicted.get("name", "")))
        raise TaskError(f"there is no wheel in {path}", remedy="Let extension_build build it earlier in the playbook.")
    if path.suffix == ".whl" and path.is_file():
        name, version = name_and_version(path)
        if problem := misnamed(path):
            raise TaskError(problem, remedy="Give the file the name that its metadata states, or build it again.")
        sha256 = sha256_of(path)
        return WheelSource(f"sha256:{sha256}", "", path, name, version, sha256)
    raise TaskError(
        f"{path} is neither a wheel file nor a folder of a wheel that was built here",
        remedy='For what extension_build built: wheels: ["{{ engine.wheel }}"].',
    )


def name_and_version(file: Path) -> tuple[str, str]:
    """The normalized name and the version that a wheel's file name states. Raises TaskError."""
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    try:
        name, version, _, _ = parse_wheel_filename(file.name)
    except InvalidWheelFilename as error:
        raise TaskError(f"{file} does not have the name of a wheel: {error}") from error
    return name, str(version)


def sha256_of(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb", buffering=0) as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def verified(wheel: WheelSource) -> Path:
    """The wheel's file, after its content was found to be as recorded. Raises StoreError."""
    if wheel.file is None or not wheel.file.is_file():
        raise StoreError(f"the wheel {wheel.identity} is not there", remedy="Run again: it is then built anew.")
    if sha256_of(wheel.file) != wheel.sha256:
        raise StoreError(
            f"{wheel.file} is not what was built: its sha256 differs from its record",
            remedy=f"Remove {wheel.file.parent} and run again: it is then built anew.",
        )
    return wheel.file


def recorded_files(file: Path) -> dict[str, str]:
    """Path → hash of every file that a wheel installs unchanged, from the RECORD inside it."""
    with zipfile.ZipFile(file) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/RECORD"))
        text = archive.read(name).decode("utf-8")
    rows = [row for row in csv.reader(text.splitlines()) if row]  # path, hash, size
    return {row[0]: row[1] for row in rows if row[1] and ".data/" not in row[0]}


def metadata_of(file: Path) -> dict[str, list[str]]:
    """The fields of a wheel's METADATA, each with all of its values. Raises TaskError for what is no wheel."""
    from email.parser import HeaderParser

    try:
        with zipfile.ZipFile(file) as archive:
            name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
            message = HeaderParser().parsestr(archive.read(name).decode("utf-8", "replace"))
    except (zipfile.BadZipFile, StopIteration, OSError) as error:
        raise TaskError(f"{file.name} is no wheel: {error or 'it has no METADATA'}") from error
    return {name: [str(value) for value in message.get_all(name) or ()] for name in message.keys()}  # noqa: SIM118 - a Message


def write_record(folder: Path, wheel: BuiltWheel) -> None:
    """Write the record beside the wheel, whole or not at all."""
    from crossgrade.store.atomic import write_file

    write_file(folder / RECORD, (json.dumps(wheel.to_json(), indent=1, sort_keys=True) + "\n").encode())
