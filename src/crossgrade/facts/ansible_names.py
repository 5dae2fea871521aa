"""The basic facts of a machine under the names that Ansible's `setup` gives them, without `ansible_` in front.

Sources: docs.ansible.com, "Discovering variables: facts and magic variables"; os-release(5), proc(5), sysfs(5),
machine-id(5). What this machine does not tell is left out, never guessed.
"""

from __future__ import annotations

import os
import platform
import pwd
import re
import socket
import sys
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from pathlib import Path

from crossgrade.facts.text import text_of
from crossgrade.inspect.machine import parse_meminfo, parse_os_release
from crossgrade.jsontype import JSON

Facts = dict[str, JSON]
_MIB = 1 << 20
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_OCTAL = re.compile(r"\\([0-7]{3})")


def minimal(environment: Mapping[str, str], root: Path = Path("/")) -> Facts:
    """The subset `min`: system, distribution, user, time, Python, environment. `root` is where /etc and /proc lie."""
    return {
        **_system(),
        **distribution(
            parse_os_release(text_of(root / "etc/os-release")), (text_of(root / "etc/debian_version")).strip()
        ),
        **_user(),
        **_python(),
        "machine_id": text_of(root / "etc/machine-id").strip(),
        "cmdline": command_line(text_of(root / "proc/cmdline")),
        "proc_cmdline": command_line(text_of(root / "proc/cmdline")),
        "date_time": date_time(datetime.now(timezone.utc).astimezone()),
        "dns": name_servers(text_of(root / "etc/resolv.conf")),
        "env": dict(environment),
        "service_mgr": _service_manager(root),
        "selinux": {"status": "enabled" if (root / "sys/fs/selinux/enforce").exists() else "disabled"},
        "fips": text_of(root / "proc/sys/crypto/fips_enabled").strip() == "1",
        "local": {},
    }


def hardware(root: Path = Path("/")) -> Facts:
    """The subset `hardware`: processors, memory in MiB, mounts in bytes, load, uptime in seconds."""
    facts: Facts = {
        **processors(text_of(root / "proc/cpuinfo"), len(os.sched_getaffinity(0))),
        **memory(parse_meminfo(text_of(root / "proc/meminfo"))),
        "mounts": _mounts(root),
    }
    uptime = text_of(root / "proc/uptime").split()
    if uptime:
        facts["uptime_seconds"] = int(float(uptime[0]))
    load = text_of(root / "proc/loadavg").split()
    if len(load) > 2:
        facts["loadavg"] = dict(zip(("1m", "5m", "15m"), map(float, load[:3]), strict=True))
    return facts


def network(root: Path = Path("/")) -> Facts:
    """The subset `network`: interfaces with their hardware addresses, and the way out."""
    names = sorted(path.name for path in (root / "sys/class/net").glob("*"))
    facts: Facts = {"interfaces": list(names)}
    for name in names:
        facts[name.replace("-", "_")] = _interface(root / "sys/class/net" / name)
    found = default_route(text_of(root / "proc/net/route"))
    facts["default_ipv4"] = {**found, **_own_address(socket.AF_INET, "192.0.2.1")} if found else {}
    return facts


# ---- pure


def distribution(release: Mapping[str, str], debian_version: str) -> Facts:
    """From the fields of os-release. Debian has its point release in /etc/debian_version only."""
    from crossgrade.knowledge import table

    identity = release.get("ID", "")
    like = release.get("ID_LIKE", "").split()
    rows = {str(row["id"]): row for row in table("distributions")}
    row = rows.get(identity)
    family = row or next((rows[each] for each in like if each in rows), None)
    version = release.get("VERSION_ID", "")
    if identity == "debian" and re.fullmatch(r"\d+(\.\d+)*", debian_version):
        version = debian_version
    in_brackets = re.search(r"\((.+?)\)", release.get("VERSION", ""))
    codename = release.get("VERSION_CODENAME", "") or (in_brackets[1] if in_brackets else "NA")
    major, _, minor = version.partition(".")
    return {
        "distribution": str(row["name"]) if row else release.get("NAME", "NA"),
        "distribution_file_path": "/etc/os-release",
        "distribution_file_variety": str(family["family"]) if family else release.get("NAME", "NA"),
        "distribution_file_parsed": bool(release),
        "distribution_version": version or "NA",
        "distribution_major_version": major or "NA",
        "distribution_minor_version": minor.partition(".")[0] or None,
        "distribution_release": codename,
        "os_family": str(family["family"]) if family else release.get("NAME", "NA"),
        "pkg_mgr": str(family["packages"]) if family else "unknown",
    }


def date_time(now: datetime) -> Facts:
    """`date_time` for a time with its zone; texts, as Ansible has them."""
    utc = now.astimezone(timezone.utc)
    zone = now.tzname() or ""
    return {
        "date": now.strftime("%Y-%m-%d"),
        "time": now.strftime("%H:%M:%S"),
        **{
            name: now.strftime(code)
            for name, code in (
                ("year", "%Y"),
                ("month", "%m"),
                ("day", "%d"),
                ("hour", "%H"),
                ("minute", "%M"),
                ("second", "%S"),
                ("weekday_number", "%w"),
                ("weeknumber", "%W"),
                ("tz_offset", "%z"),
                ("iso8601_basic", "%Y%m%dT%H%M%S%f"),
                ("iso8601_basic_short", "%Y%m%dT%H%M%S"),
            )
        },
        "weekday": _WEEKDAYS[now.weekday()],
        "epoch": str(int(now.timestamp())),
        "epoch_int": str(int(now.timestamp())),
        "iso8601": utc.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "iso8601_micro": utc.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "tz": zone,
        "tz_dst": zone,
    }


def command_line(text: str) -> Facts:
    """The kernel's command line: `name=value` words, others as true; of a name that comes twice, the last."""
    words = (word.partition("=") for word in text.split())
    return {name: value if sign else True for name, sign, value in words}


def name_servers(text: str) -> Facts:
    """resolv.conf(5): `nameservers`, `search`, `domain`, as far as they are there."""
    found: dict[str, list[str]] = {}
    domain = ""
    for line in text.splitlines():
        key, *values = line.split() or [""]
        if key == "nameserver":
            found.setdefault("nameservers", []).extend(values[:1])
        elif key == "search":
            found["search"] = values
        elif key == "domain" and values:
            domain = values[0]
    facts: Facts = {name: list(values) for name, values in found.items()}
    return {**facts, "domain": domain} if domain else facts


def processors(text: str, usable: int) -> Facts:
    """From /proc/cpuinfo. Sockets and cores are counted where it names them, else each processor is one core."""
    blocks = []
    for block in text.strip().split("\n\n") if text.strip() else ():
        pairs = (line.partition(":") for line in block.splitlines())
        blocks.append({key.strip(): value.strip() for key, _, value in pairs})
    listed: list[JSON] = []
    for fields in blocks:
        listed += [fields[key] for key in ("processor", "vendor_id", "model name") if key in fields]
    sockets = {fields.get("physical id", "0") for fields in blocks}
    cores = {(fields.get("physical id", "0"), fields.get("core id", fields.get("processor", ""))) for fields in blocks}
    vcpus = len(blocks) or usable
    count = len(sockets) or 1
    per_socket = max(1, len(cores) // count)
    threads = max(1, vcpus // (count * per_socket))
    return {
        "processor": listed,
        "processor_count": count,
        "processor_cores": per_socket,
        "processor_threads_per_core": threads,
        "processor_vcpus": vcpus,
        "processor_nproc": usable,
    }


def memory(meminfo: Mapping[str, int]) -> Facts:
    """MiB, from /proc/meminfo in bytes."""

    def mib(name: str) -> int:
        return meminfo.get(name, 0) // _MIB

    if "MemTotal" not in meminfo:
        return {}
    total, free, swap, swap_free = mib("MemTotal"), mib("MemFree"), mib("SwapTotal"), mib("SwapFree")
    nocache = mib("MemFree") + mib("Cached") + mib("Buffers")
    return {
        "memtotal_mb": total,
        "memfree_mb": free,
        "swaptotal_mb": swap,
        "swapfree_mb": swap_free,
        "memory_mb": {
            "real": {"total": total, "free": free, "used": total - free},
            "nocache": {"free": nocache, "used": total - nocache},
            "swap": {"total": swap, "free": swap_free, "used": swap - swap_free, "cached": mib("SwapCached")},
        },
    }


def default_route(text: str) -> Facts:
    """Interface and gateway of the default route in /proc/net/route; empty without one."""
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 7 and fields[1] == "00000000" and fields[7] == "00000000":
            gateway = socket.inet_ntoa(int(fields[2], 16).to_bytes(4, sys.byteorder))
            return {"interface": fields[0], "gateway": gateway, "alias": fields[0]}
    return {}


# ---- reading


def _system() -> Facts:
    name = platform.uname()
    host = name.node.partition(".")[0]
    fqdn = socket.getfqdn() or name.node
    bits = "64" if sys.maxsize > 2**32 else "32"
    return {
        "system": name.system,
        "kernel": name.release,
        "kernel_version": name.version,
        "machine": name.machine,
        "architecture": name.machine,
        "userspace_architecture": name.machine,
        "userspace_bits": bits,
        "nodename": name.node,
        "hostname": host,
        "fqdn": fqdn,
        "domain": fqdn.partition(".")[2],
    }


def _user() -> Facts:
    uid = os.getuid()
    numbers: Facts = {
        "real_user_id": uid,
        "effective_user_id": os.geteuid(),
        "real_group_id": os.getgid(),
        "effective_group_id": os.getegid(),
    }
    try:
        who = pwd.getpwuid(uid)
    except KeyError:  # a container's user without a name
        return {**numbers, "user_id": str(uid), "user_uid": uid, "user_gid": os.getgid()}
    return {
        **numbers,
        "user_id": who.pw_name,
        "user_uid": uid,
        "user_gid": who.pw_gid,
        "user_gecos": who.pw_gecos,
        "user_dir": who.pw_dir,
        "user_shell": who.pw_shell,
    }


def _python() -> Facts:
    """The Python that crossgrade runs in, as Ansible gives the one that its modules run in."""
    version = sys.version_info
    return {
        "python_version": platform.python_version(),
        "python": {
            "executable": sys.executable,
            "type": sys.implementation.name,
            "has_sslcontext": True,
            "version": {
                "major": version.major,
                "minor": version.minor,
                "micro": version.micro,
                "releaselevel": version.releaselevel,
                "serial": version.serial,
            },
            "version_info": list(version),
        },
    }


def _service_manager(root: Path) -> str:
    """sd_booted(3): systemd is at work where this folder exists; else the name of process 1."""
    if (root / "run/systemd/system").is_dir():
        return "systemd"
    return text_of(root / "proc/1/comm").strip() or "service"


def _mounts(root: Path) -> list[JSON]:
    """Filesystems that lie on a device or a network, as Ansible lists them; sizes in bytes."""
    found: list[JSON] = []
    for line in text_of(root / "proc/self/mounts").splitlines():
        device, place, kind, options = line.split()[:4]
        if not device.startswith(("/", "\\")) and ":/" not in device:
            continue
        place = _OCTAL.sub(lambda match: chr(int(match[1], 8)), place)
        entry: Facts = {"device": device, "mount": place, "fstype": kind, "options": options, "dump": 0, "passno": 0}
        try:
            room = os.statvfs(place)
        except OSError:  # one that may not be looked at is named without its sizes
            found.append(entry)
            continue
        entry.update(
            size_total=room.f_frsize * room.f_blocks,
            size_available=room.f_frsize * room.f_bavail,
            block_size=room.f_bsize,
            block_total=room.f_blocks,
            block_available=room.f_bavail,
            block_used=room.f_blocks - room.f_bavail,
            inode_total=room.f_files,
            inode_available=room.f_favail,
            inode_used=room.f_files - room.f_favail,
        )
        found.append(entry)
    return found


def _interface(folder: Path) -> Facts:
    kinds = {"1": "ether", "772": "loopback"}  # linux/if_arp.h
    facts: Facts = {
        "device": folder.name,
        "active": text_of(folder / "operstate").strip() in ("up", "unknown"),
        "type": kinds.get(text_of(folder / "type").strip(), "unknown"),
    }
    mtu, address = text_of(folder / "mtu").strip(), text_of(folder / "address").strip()
    if mtu.isdigit():
        facts["mtu"] = int(mtu)
    if address and facts["type"] == "ether":
        facts["macaddress"] = address
    return facts


def _own_address(family: socket.AddressFamily, towards: str) -> Facts:
    """The address that packets to the outside would leave from. Nothing is sent: UDP's connect only picks a route."""
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((towards, 9))
            return {"address": probe.getsockname()[0]}
        except OSError:
            return {}


SUBSETS: dict[str, Callable[[Mapping[str, str]], Facts]] = {
    "min": minimal,
    "hardware": lambda _: hardware(),
    "network": lambda _: network(),
}
