"""A system of its own for the real apt and dpkg: a root folder, and a repository of packages that are made on the spot.

apt is pointed at it by APT_CONFIG, as apt.conf(5) describes, so nothing of this machine's packages is read or
changed. Maintainer scripts would run in a chroot of the folder, where there is no shell; so no package has any.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_FOLDERS = (
    "etc/apt/sources.list.d", "etc/apt/apt.conf.d", "etc/apt/preferences.d", "etc/apt/trusted.gpg.d",
    "var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/apt/lists/partial", "var/cache/apt/archives/partial",
    "var/log/apt", "tmp",
)  # fmt: skip


@dataclass
class AptRoot:
    """The system below `folder`/root. `environment` is what points apt at it."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in _FOLDERS:
            (self.root / name).mkdir(parents=True, exist_ok=True)
        for name in ("status", "available"):
            (self.root / "var/lib/dpkg" / name).touch()
        configuration = self.folder / "apt.conf"
        configuration.write_text(
            f'Dir "{self.root}/";\nDir::State "var/lib/apt";\nDir::State::status "{self.root}/var/lib/dpkg/status";\n'
            'Dir::Bin::methods "/usr/lib/apt/methods";\nDir::Bin::dpkg "/usr/bin/dpkg";\n'
            f'DPkg::Options:: "--root={self.root}";\nAPT::Architecture "amd64";\nAPT::Architectures {{ "amd64"; }};\n'
            'APT::Sandbox::User "root";\n'
        )
        self.environment["APT_CONFIG"] = str(configuration)

    @property
    def root(self) -> Path:
        return self.folder / "root"

    @property
    def home(self) -> Path:
        return self.root / "usr/local/cuda-13.0"

    @property
    def repository(self) -> Path:
        return self.folder / "repository"

    @property
    def url(self) -> str:
        return f"file:{self.repository}/"

    def run(self, *argv: str) -> str:
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C", **self.environment}
        completed = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
        assert completed.returncode == 0, completed.stdout + completed.stderr
        return completed.stdout

    def package(
        self, name: str, version: str = "1.0-1", *, links: dict[str, Path] | None = None, **fields: str
    ) -> None:
        """Put a package into the repository; `links` are its contents. Call `index` after the last one."""
        tree = self.folder / "trees" / f"{name}-{version}"
        (tree / "DEBIAN").mkdir(parents=True)
        lines = {"Package": name, "Version": version, "Architecture": "amd64", "Maintainer": "tests <tests@localhost>"}
        lines |= {key.replace("_", "-"): value for key, value in fields.items()} | {"Description": name}
        (tree / "DEBIAN/control").write_text("".join(f"{key}: {value}\n" for key, value in lines.items()))
        for path, target in (links or {f"usr/share/doc/{name}/note": Path(name)}).items():
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            (tree / path).symlink_to(target)
        self.repository.mkdir(exist_ok=True)
        self.run("dpkg-deb", "--root-owner-group", "-b", str(tree), str(self.repository / f"{name}_{version}.deb"))

    def index(self, sign_with: Path | None = None) -> None:
        """Write the repository's Packages file, and a signed InRelease with the key of a gpg home."""
        listing = subprocess.run(
            ["dpkg-scanpackages", "--multiversion", "."],
            cwd=self.repository,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        (self.repository / "Packages").write_text(listing)
        if sign_with is not None:
            import hashlib

            digest = hashlib.sha256(listing.encode()).hexdigest()
            release = self.repository / "Release"
            release.write_text(
                "Origin: tests\nLabel: tests\nDate: Wed, 02 Dec 2026 12:00:00 UTC\nArchitectures: amd64\n"
                f"SHA256:\n {digest} {len(listing)} Packages\n"
            )
            inrelease = self.repository / "InRelease"
            inrelease.unlink(missing_ok=True)
            self.run(
                *("gpg", "--homedir", str(sign_with), "--batch", "--yes", "--clearsign", "-o", str(inrelease)),
                str(release),
            )

    def know_repository(self) -> None:
        """Let apt know the repository, as an operator would have done."""
        (self.root / "etc/apt/sources.list.d/local.list").write_text(f"deb [trusted=yes] {self.url} ./\n")
        self.run("apt-get", "-q", "update")

    def install(self, *names: str) -> None:
        self.run("apt-get", "-y", "-q", "-o", "Dpkg::Use-Pty=0", "install", *names)

    def installed(self) -> dict[str, str]:
        admin = str(self.root / "var/lib/dpkg")
        lines = self.run("dpkg-query", "--admindir", admin, "-W", "-f", "${Package} ${db:Status-Status} ${Version}\n")
        found = (line.split() for line in lines.splitlines())
        return {name: version for name, status, version in found if status == "installed"}

    def arguments(self, **more: Any) -> dict[str, Any]:
        """Arguments of cuda_toolkit for this system. The proof is left out unless a test wants it."""
        return {"method": "apt", "version": "13.0", "path": str(self.home), "prove_for": [], **more}


def gpg_key(home: Path) -> tuple[Path, str]:
    """A new signing key in a gpg home of its own: the armored public key, and its fingerprint as gpg says it."""
    home.mkdir(mode=0o700)
    gpg = ["gpg", "--homedir", str(home), "--batch", "--quiet"]
    identity = ["--passphrase", "", "--quick-generate-key", "tests <tests@localhost>", "rsa2048", "sign", "never"]
    subprocess.run([*gpg, *identity], check=True, capture_output=True)
    listing = subprocess.run([*gpg, "--with-colons", "--list-keys"], check=True, capture_output=True, text=True).stdout
    fingerprint = next(line.split(":")[9] for line in listing.splitlines() if line.startswith("fpr:"))
    key = home / "public.asc"
    key.write_bytes(subprocess.run([*gpg, "--armor", "--export"], check=True, capture_output=True).stdout)
    return key, fingerprint
