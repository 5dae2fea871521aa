"""apt and dpkg as programs: where they keep things, what is installed, simulating, and changing under their lock."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from crossgrade.errors import TaskError
from crossgrade.modules.apt_transaction import PackageChange, package_versions
from crossgrade.modules.contract import ApplyContext, HostView
from crossgrade.process import Completed

READ_SECONDS = 300.0
CHANGE_SECONDS = 7200.0
LOCK_PAUSE = 2.0  # seconds between two tries
_LOCKED = re.compile(r"Could not get lock [^\n]*|Unable to (?:acquire|lock)[^\n]*|is another process using it[^\n]*")
_FORMAT = "${binary:Package}\t${db:Status-Abbrev}\t${Version}\n"
# A plan must write neither apt's caches nor the log of its planner, which a simulation writes too (apt 2.6.1).
_NO_CACHE = ("-o", "Dir::Cache::pkgcache=", "-o", "Dir::Cache::srcpkgcache=", "-o", "Dir::Log::Planner=/dev/null")
# Whatever apt and dpkg would ask or print for people; needrestart must restart no service in the middle of a run.
_QUIET = {
    "LC_ALL": "C",
    "DEBIAN_FRONTEND": "noninteractive",
    "APT_LISTCHANGES_FRONTEND": "none",
    "NEEDRESTART_SUSPEND": "1",
}
_VERBS = ("install", "remove", "purge", "autoremove", "build-dep", "update")
_HEARD = ("APT_CONFIG", "DPKG_ROOT", "DPKG_ADMINDIR")


@dataclass(frozen=True)
class Apt:
    """apt of one system. `environment` holds the variables that chose it, to be kept for the undo."""

    host: HostView
    environment: Mapping[str, str]
    programs: Mapping[str, str]
    status: Path
    lists: Path
    archives: Path
    sources: Path
    configuration: Path
    architecture: str

    def _read(self, argv: Sequence[str]) -> Completed:
        return self.host.run(list(argv), environment={**_QUIET, **self.environment}, timeout=READ_SECONDS)

    def installed(self) -> dict[str, str]:
        """Package → version, of all that are installed whole. Raises TaskError."""
        return package_versions(self._query(), self.architecture, whole=True)

    def there(self) -> dict[str, str]:
        """Package → version, of all that dpkg knows in any state: also what was left half installed."""
        return package_versions(self._query(), self.architecture, whole=False)

    def _query(self) -> str:
        admin = ["--admindir", str(self.status.parent)]
        completed = self._read([self.programs["dpkg-query"], *admin, "-W", "-f", _FORMAT])
        if not completed.succeeded and "no packages found" not in completed.stderr:
            raise TaskError(f"dpkg-query: {completed.stderr.strip() or completed.outcome()}")
        return completed.stdout

    def simulate(
        self,
        packages: Sequence[str],
        options: Sequence[str] = (),
        verb: str = "install",
        recommends: Sequence[str] = ("--no-install-recommends",),
    ) -> Completed:
        """What apt would do; it changes nothing and takes no lock. `recommends` is the option that says so."""
        return self._read(
            [
                *(self.programs["apt-get"], "--simulate", "--quiet", *_NO_CACHE, *options),
                *(*recommends, verb, *packages),
            ]
        )

    def offered(self, names: Sequence[str]) -> set[tuple[str, str]]:
        """Name and version of what the repositories have of these packages now."""
        if not names:
            return set()
        said = self._read([self.programs["apt-cache"], *_NO_CACHE, "madison", *names]).stdout
        fields = ([word.strip() for word in line.split("|")] for line in said.splitlines())
        return {(words[0], words[1]) for words in fields if len(words) > 2}

    def names(self) -> list[str]:
        """All packages that apt knows."""
        return self._read([self.programs["apt-cache"], *_NO_CACHE, "pkgnames"]).stdout.split()

    def fields_of(self, file: Path) -> dict[str, str]:
        """Name and version of a package file (``.deb``). Raises TaskError."""
        answer = self._read([self.programs["dpkg-deb"], "--field", str(file), "Package", "Version", "Architecture"])
        if not answer.succeeded:
            raise TaskError(f"{file} is no package: {answer.stderr.strip() or answer.outcome()}")
        pairs = (line.partition(":") for line in answer.stdout.splitlines())
        return {name: value.strip() for name, _, value in pairs}

    def show(self, changes: Sequence[PackageChange], options: Sequence[str]) -> str:
        """The stanzas of the packages that would be unpacked."""
        wanted = [f"{change.name}={change.after}" for change in changes if change.after]
        if not wanted:
            return ""
        argv = [self.programs["apt-cache"], *_NO_CACHE, *options, "--no-all-versions", "show", *wanted]
        return self._read(argv).stdout

    def names_like(self, beginning: str) -> list[str]:
        """The packages that apt knows whose names begin like this, those of parts left out."""
        said = self._read([self.programs["apt-cache"], *_NO_CACHE, "pkgnames", beginning]).stdout.split()
        return sorted(name for name in said if re.fullmatch(rf"{re.escape(beginning)}\d+-\d+", name))

    def urls(self) -> set[str]:
        """The addresses of the repositories that apt knows."""
        argv = [self.programs["apt-get"], *_NO_CACHE, "indextargets", "--format", "$(REPO_URI)"]
        return {line.strip().rstrip("/") for line in self._read(argv).stdout.splitlines() if line.strip()}

    def require_permission(
        self, remedy: str = "Run crossgrade as root, or use `method: wheels`, which needs no root."
    ) -> None:
        """Raises TaskError where this user may not change packages."""
        folder = self.status.parent
        if not os.access(folder, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
            raise TaskError(
                f"installing packages needs root: uid {os.geteuid()} may not write to {folder}",
                remedy=remedy,
            )

    def update(self, options: Sequence[str]) -> Completed:
        """Read package lists into the folder that the options name. A plan does it in a temporary one."""
        argv = [self.programs["apt-get"], "--quiet", *_NO_CACHE, *options, "update"]
        return self.host.run(argv, environment={**_QUIET, **self.environment}, timeout=CHANGE_SECONDS)

    def change(self, arguments: Sequence[str], context: ApplyContext, lock_timeout: float, log: str) -> Completed:
        """Let apt-get work; wait for its locks for so many seconds. Raises TaskError with what it said."""
        argv = [self.programs["apt-get"], "--yes", "--quiet", "-o", "Dpkg::Use-Pty=0"]
        argv += ["-o", "APT::Keep-Downloaded-Packages=false", *arguments]
        deadline = time.monotonic() + lock_timeout
        while True:
            environment = {**_QUIET, **self.environment}
            completed = context.run(argv, environment=environment, timeout=CHANGE_SECONDS, log_name=log)
            if completed.succeeded:
                return completed
            locked = _LOCKED.search(completed.stderr)
            if locked is None:
                break
            if time.monotonic() >= deadline:
                raise TaskError(
                    f"another package manager was at work for {lock_timeout:g} s: {locked[0]}",
                    remedy="Let it end (unattended-upgrades, say), or give a longer `lock_timeout`; then run again.",
                )
            context.progress(f"waiting: {locked[0]}")
            time.sleep(min(LOCK_PAUSE, max(0.0, deadline - time.monotonic())))
        said = " ".join(line for line in completed.stderr.splitlines() if line.startswith("E:"))
        verb = next(word for word in arguments if word in _VERBS)
        raise TaskError(
            f"apt-get {verb} failed: {said or completed.outcome()}",
            remedy=f"The whole output is in {context.log_directory / log}.",
        )

    def settle(self, context: ApplyContext) -> None:
        """Let dpkg end what a kill interrupted, as far as it can: apt refuses to work before."""
        dump = self._read([self.programs["apt-config"], "dump", "--format", "%v%n", "DPkg::Options"])
        options = [line for line in dump.stdout.splitlines() if line]
        environment = {**_QUIET, **self.environment}
        context.run(
            [self.programs["dpkg"], *options, "--configure", "-a"], environment=environment, timeout=CHANGE_SECONDS
        )


def find_apt(host: HostView, environment: Mapping[str, str] | None = None) -> Apt:
    """apt as it is configured for this host, by APT_CONFIG too. Raises TaskError where there is none."""
    path = host.environment.get("PATH", os.defpath)
    wanted = ("apt-get", "apt-cache", "apt-config", "dpkg", "dpkg-deb", "dpkg-query")
    programs = {name: shutil.which(name, path=path) or "" for name in wanted}
    missing = [name for name in wanted if not programs[name]]
    if missing:
        raise TaskError(
            f"`method: apt` needs Debian or Ubuntu: there is no {', '.join(missing)} on PATH",
            remedy="Use `method: wheels` or `method: runfile`, which work on every distribution.",
        )
    around = environment
    if around is None:
        around = {name: host.environment[name] for name in _HEARD if host.environment.get(name)}
    names = {
        "status": "Dir::State::status/f", "lists": "Dir::State::lists/d", "archives": "Dir::Cache::archives/d",
        "sources": "Dir::Etc::sourceparts/d", "configuration": "Dir::Etc/d",
    }  # fmt: skip
    wanted_values = {**names, "architecture": "APT::Architecture"}
    argv = [programs["apt-config"], "shell", *(part for pair in wanted_values.items() for part in pair)]
    completed = host.run(argv, environment={**_QUIET, **around})
    values = dict(word.split("=", 1) for word in shlex.split(completed.stdout) if "=" in word)
    if not completed.succeeded or not all(values.get(name) for name in wanted_values):
        raise TaskError(f"apt-config does not say where apt works: {completed.stderr.strip() or completed.outcome()}")
    places = {name: Path(values[name]) for name in names}
    return Apt(host, around, programs, **places, architecture=values["architecture"])
