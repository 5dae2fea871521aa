"""The method `runfile` of cuda_toolkit: NVIDIA's installer in one file, for the toolkit alone.

    STORE/downloads/SHA256             the file, when it came from the network; removed once it is installed
    STORE/toolkits/DIGEST/cuda_home/   where it installs to, unless `path` names another place
    STORE/toolkits/DIGEST/toolkit.json what it is; written last

The installer writes its own place into what it installs, so it works at the final one, and what a kill left there
is removed. Its options: the CUDA Installation Guide for Linux, runfile installation, advanced options
(`knowledge/runfile_options.yml`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from crossgrade.errors import TaskError
from crossgrade.jsontype import JSON
from crossgrade.modules.contract import ApplyContext, Difference, HostView, Space
from crossgrade.modules.files import absolute
from crossgrade.modules.toolkit_link import keep_link, put_link_back
from crossgrade.modules.toolkit_proof import Proof, prove, wanted_proof
from crossgrade.modules.toolkits import (
    LAYOUT,
    RECORD,
    Toolkit,
    Work,
    in_store,
    is_of_version,
    read_toolkit,
    record_of,
    release_of,
)
from crossgrade.store.atomic import make_folder, sync_directory, write_json
from crossgrade.store.layout import remove_path

if TYPE_CHECKING:
    from crossgrade.modules.cuda_toolkit import Arguments

INSTALL_SECONDS = 7200.0
LOG = "runfile.log"
LOCAL_CUDA = Path("/usr/local/cuda")


@dataclass(frozen=True)
class Runfile:
    """What is to be run, where to, and what for. `place` is the store's folder, None for a place outside of it."""

    source: str
    sha256: str
    home: Path
    place: Path | None
    request: str
    proof: Proof
    keeps_link: bool
    version: str

    @property
    def is_remote(self) -> bool:
        return "://" in self.source


# ---- looking


def look(arguments: Arguments, host: HostView) -> Toolkit | Work:
    """Raises TaskError: no file, no checksum, a place that is taken, another version."""
    checksum = (arguments.sha256 or "").lower()
    if not arguments.runfile or not re.fullmatch(r"[0-9a-f]{64}", checksum):
        raise TaskError(
            "`method: runfile` needs `runfile` (a path or an address) and its `sha256` (64 hexadecimal digits)",
            remedy="NVIDIA states checksums beside each download; of a file: sha256sum FILE.",
        )
    request = sha256(f"{LAYOUT} runfile {checksum}".encode()).hexdigest()
    if arguments.path:
        home, place = absolute(arguments.path, host), None
        if (home / "bin" / "nvcc").is_file():
            return outside_store(home, checksum, arguments.version, host)
        if home.is_symlink() or (home.exists() and (not home.is_dir() or any(home.iterdir()))):
            raise TaskError(f"{home} is not empty and holds no toolkit: nothing is installed over it")
    else:
        found = in_store(host.store, request)
        if found is not None:
            return found
        place = host.store.toolkit(request[:24])
        home = place / "cuda_home"
    version = arguments.version
    proof = wanted_proof(arguments.prove_for, version, True, True)
    toolkit = Toolkit(
        str(home), request[:24], version, str(home / "bin" / "nvcc"), {}, proof.architectures, proof.reason
    )
    if host.predicted("toolkit", toolkit.digest) is not None:
        return toolkit
    runfile = Runfile(arguments.runfile, checksum, home, place, request, proof, arguments.link is None, version)
    return Work(
        toolkit,
        f"install CUDA {version} from {Path(arguments.runfile).name}",
        (Difference(str(home), "absent", f"the toolkit of {arguments.runfile}"),),
        _space(runfile, host),
        replace(runfile, source=runfile.source if runfile.is_remote else str(absolute(runfile.source, host))),
    )


def outside_store(home: Path, checksum: str, asked: str, host: HostView) -> Toolkit:
    """The toolkit that lies at a `path` already. Raises TaskError for another version."""
    from crossgrade.inspect.toolkit import read_toolkit as read_installed

    found = read_installed(home, host.run)
    if not is_of_version((found.nvcc_version, found.header_version), release_of(asked)):
        raise TaskError(
            f"{home} holds {found.name}, CUDA {asked} is asked for", remedy="Name another `path`, or leave it out."
        )
    digest = sha256(f"{LAYOUT} runfile {checksum}".encode()).hexdigest()[:24]
    return Toolkit(str(home), digest, asked, found.nvcc, {})


def _space(runfile: Runfile, host: HostView) -> tuple[Space, ...]:
    """Room for the file itself, for what it unpacks, and for what it installs."""
    from crossgrade.modules.downloading import remote_size

    if runfile.is_remote:
        size = (remote_size(runfile.source, host.environment) or 0) if host.check_mode else 0
    else:
        path = absolute(runfile.source, host)
        if not path.is_file():
            raise TaskError(f"there is no runfile at {path}", remedy="Give a path on this machine, or an address.")
        size = path.stat().st_size
    unpacked, installed = (int(size * _factor(of)) for of in ("runfile, unpacked", "runfile, installed"))
    parts = [
        Space(host.store.temporary, unpacked, "the runfile's unpacked files"),
        Space(runfile.home, installed, f"CUDA {runfile.version}"),
    ]
    return (*parts, Space(host.store.root, size, "the runfile")) if runfile.is_remote else tuple(parts)


def _factor(of: str) -> float:
    from crossgrade.knowledge import table

    return next(float(str(row["factor"])) for row in table("space") if row["of"] == of)


# ---- installing


def install(work: Work, context: ApplyContext) -> Toolkit:
    """Raises TaskError; what was made until then is in the journal and is removed by `undo`."""
    from crossgrade.modules.downloading import download, file_sha256

    runfile: Runfile = work.details
    file = Path(runfile.source)
    if runfile.is_remote:
        folder = context.store.root / "downloads"
        make_folder(folder, 0o700)
        file = folder / runfile.sha256
        if not file.is_file():
            download(runfile.source, file, runfile.sha256, context.host.environment, context.progress)
    context.progress(f"checking {file.name}")
    found = file_sha256(file)
    if found != runfile.sha256:
        if runfile.is_remote:
            file.unlink()
        raise TaskError(f"{file} has the sha256 {found}, not {runfile.sha256}: it is not run")
    kept = keep_link(LOCAL_CUDA, context)
    unpacked = context.store.temporary / f"runfile-{runfile.request[:24]}"
    record: dict[str, JSON] = {
        "method": "runfile",
        "home": str(runfile.home),
        "place": None if runfile.place is None else str(runfile.place),
        "work": str(unpacked),
    }
    with context.step(
        f"install CUDA {runfile.version} in {runfile.home}", record, by_hand=[f"rm -r {runfile.place or runfile.home}"]
    ):
        remove_path(unpacked)
        unpacked.mkdir(mode=0o700)
        if runfile.place is not None:
            remove_path(runfile.place)  # one without a record, which nobody can have used
            runfile.place.mkdir(mode=0o711)
        _run(file, runfile, unpacked, context)
        remove_path(unpacked)
        if runfile.keeps_link:
            put_link_back(kept, context, remove_new=True)
        _check(runfile, context)
        if runfile.place is not None:
            _finish(runfile.place, work.toolkit, runfile.request)
        else:
            sync_directory(runfile.home.parent)
    if runfile.is_remote:
        file.unlink()
    done = read_toolkit(runfile.place) if runfile.place is not None else work.toolkit
    return replace(done, not_proved=runfile.proof.reason)


def installer_options(home: Path, unpacked: Path) -> list[str]:
    """What the installer is told: the toolkit alone, silently, and nothing outside of its place."""
    from crossgrade.knowledge import table

    return [
        str(row["option"]).replace("{home}", str(home)).replace("{unpacked}", str(unpacked))
        for row in table("runfile_options")
    ]


def _run(file: Path, runfile: Runfile, unpacked: Path, context: ApplyContext) -> None:
    context.progress(f"running {Path(runfile.source).name}")
    argv = ["sh", str(file), *installer_options(runfile.home, unpacked)]
    completed = context.run(
        argv, cwd=unpacked, environment={"TMPDIR": str(unpacked)}, timeout=INSTALL_SECONDS, log_name=LOG
    )
    if not completed.succeeded:
        said = [line for line in (completed.stdout + completed.stderr).splitlines() if line.strip()]
        raise TaskError(
            f"the runfile failed ({completed.outcome()}): {' '.join(said[-3:])}",
            remedy=f"Its output is in {context.log_directory / LOG}, its own log is cuda-installer.log in "
            "/var/log or the temporary folder.",
        )


def _check(runfile: Runfile, context: ApplyContext) -> None:
    from crossgrade.inspect.toolkit import read_toolkit as read_installed
    from crossgrade.inspect.toolkit import require_matched

    installed = read_installed(runfile.home, context.host.run)
    require_matched(installed)
    if not is_of_version((installed.nvcc_version, installed.header_version), release_of(runfile.version)):
        raise TaskError(
            f"the runfile is {installed.name}, CUDA {runfile.version} is asked for", remedy="Say its `version`."
        )
    if runfile.proof.architectures:
        context.progress("proving nvcc")
        prove(runfile.home, runfile.proof.architectures, context.host)


def _finish(place: Path, toolkit: Toolkit, request: str) -> None:
    from crossgrade.modules.durable import sync_filesystem

    sync_filesystem(place)
    write_json(place / RECORD, record_of(toolkit, request))
    sync_directory(place.parent)


def undo(record: Mapping[str, JSON]) -> str:
    """Remove what is half made, and a whole toolkit outside of the store; a whole one inside is shared and stays."""
    gone = remove_path(Path(str(record["work"])))
    place = record["place"]
    if place is None:
        home = Path(str(record["home"]))
        return f"removed {home}" if os.path.lexists(home) and remove_path(home) else ""
    if not (Path(str(place)) / RECORD).is_file():
        gone = remove_path(Path(str(place))) or gone
    return "removed the half-made toolkit" if gone else ""
