"""What apt says that it would do, read and judged: on what the real apt said of Debian's own packages."""

from __future__ import annotations

from pathlib import Path

import pytest

from crossgrade.modules.apt_transaction import (
    PackageChange,
    driver_part,
    driver_rules,
    package_sizes,
    package_versions,
    parse_simulation,
    refusals,
    removed_besides,
    unknown_packages,
)

DATA = Path(__file__).parent.parent / "data" / "apt"
RULES = driver_rules()
MIXED = """\
The following packages will be REMOVED:
  nvidia-driver-580
The following packages will be upgraded:
  libc6
The following packages will be DOWNGRADED:
  cuda-nvcc-13-0 libfoo
0 upgraded, 0 newly installed, 1 downgraded, 1 to remove and 0 not upgraded.
Remv nvidia-driver-580 [580.65.06-1] [libnvidia-gl-580:amd64 ]
Purg their-tool [1.0]
Inst cuda-nvcc-13-0 [13.0.88-1] (13.0.48-1 NVIDIA:ubuntu2404 [amd64])
Inst libc6 [2.36-9] (2.36-9+deb12u10 Debian:12.11/stable, Debian-Security:12/stable-security [amd64]) [libfoo:amd64 ]
Inst libc6:i386 (2.36-9+deb12u10 Debian:12.11/stable [i386])
Conf libc6 (2.36-9+deb12u10 Debian:12.11/stable [amd64])
"""


def names_of(file: str) -> list[str]:
    changes = parse_simulation((DATA / file).read_text())
    assert {change.action for change in changes} == {"install"}
    return [change.name for change in changes]


def test_all_that_debian_calls_its_driver_is_known() -> None:
    """Also what is not part of it: the rest of its packages are libraries of X and the system."""
    names = names_of("nvidia-driver.txt")
    nvidia = {name for name in names if "nvidia" in name or "cuda" in name or name.startswith("libnv")}
    assert len(nvidia) >= 25
    assert {name for name in names if driver_part(name, RULES)} == nvidia


def test_debians_own_toolkit_brings_the_drivers_library_along() -> None:
    changes = parse_simulation((DATA / "nvidia-cuda-toolkit.txt").read_text())
    refused = [reason.split()[0] for reason in refusals(changes, RULES, upgrades=False)]
    assert "libcuda1" in refused
    assert not {"nvidia-cuda-toolkit", "nvidia-cuda-dev", "libcudart11.0", "libnvrtc11.2", "libnvidia-ml-dev"} & {
        *refused
    }


@pytest.mark.parametrize(
    "name",
    [
        "cuda-drivers", "cuda-drivers-580", "nvidia-open",
        "nvidia-open-580", "cuda", "cuda-13-0", "cuda-runtime-13-0",
        "nvidia-driver-580-server-open", "nvidia-dkms-580", "nvidia-kernel-source-580-open",
        "libnvidia-compute-580:i386",
        "nvidia-headless-no-dkms-580-server", "nvidia-fabricmanager-580", "nvidia-utils-580", "cuda-compat-13-0",
        "linux-modules-nvidia-580-generic", "xserver-xorg-video-nvidia-580", "nvidia-firmware-580-580.65.06",
    ],
)  # fmt: skip
def test_parts_of_the_driver(name: str) -> None:
    assert driver_part(name, RULES)


@pytest.mark.parametrize(
    "name",
    [
        "cuda-toolkit-13-0", "cuda-toolkit-13-0-config-common", "cuda-driver-dev-13-0",
        "cuda-nvcc-13-0", "cuda-keyring",
        "cuda-nvml-dev-13-0", "libcublas-13-0", "libnvjitlink-13-0", "libnvvm-13-0", "libnvfatbin-dev-13-0",
        "gds-tools-13-0", "nsight-compute-2025.3.1", "nvidia-container-toolkit",
        "libnvidia-ml-dev", "cuda-libraries-dev-13-0",
    ],
)  # fmt: skip
def test_parts_of_a_toolkit(name: str) -> None:
    assert not driver_part(name, RULES)


def test_a_transaction_of_every_kind() -> None:
    changes = parse_simulation(MIXED)
    assert changes == (
        PackageChange("nvidia-driver-580", "580.65.06-1", "", "remove"),
        PackageChange("their-tool", "1.0", "", "remove"),
        PackageChange("cuda-nvcc-13-0", "13.0.88-1", "13.0.48-1", "downgrade"),
        PackageChange("libc6", "2.36-9", "2.36-9+deb12u10", "upgrade"),
        PackageChange("libc6:i386", "", "2.36-9+deb12u10", "install"),
    )
    words = [reason.partition(": ")[2] or reason for reason in refusals(changes, RULES, upgrades=True)]
    assert words == [
        "it belongs to the driver: the driver's metapackages of Debian and Ubuntu",
        "a toolkit must remove nothing",
        "a toolkit must downgrade nothing",
    ]
    assert any("libc6 would be upgraded" in reason for reason in refusals(changes, RULES, upgrades=False))
    assert removed_besides(changes, {"their-tool": "1.0"}) == (
        "nvidia-driver-580", "cuda-nvcc-13-0", "libc6", "libc6:i386",
    )  # fmt: skip


def test_what_dpkg_and_apt_cache_say() -> None:
    said = "libc6:amd64\tii \t2.36-9\nlibc6:i386\tiU \t2.36-9\nold\trc \t1.0\nnever\tun \t\n"
    assert package_versions(said, "amd64", whole=True) == {"libc6": "2.36-9"}
    assert package_versions(said, "amd64", whole=False) == {"libc6": "2.36-9", "libc6:i386": "2.36-9", "old": "1.0"}
    shown = "Package: a\nInstalled-Size: 10\nSize: 2000\n\nPackage: b\nInstalled-Size: 5\nSize: 1\n"
    assert package_sizes(shown) == (15 * 1024, 2001)
    unknown = "E: Unable to locate package cuda-x\nE: Version '9*' for 'cuda-y' was not found\n"
    assert unknown_packages(unknown) == ("cuda-x", "cuda-y=9*")
