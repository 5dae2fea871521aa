"""What the indexes have of the dists of a lock: sizes, days of publication, wheels that fit, newest versions.

uv is asked, in the form of PEP 751 (``pylock.toml``), which states size and upload time where the index does (PEP 700).
It goes to the same indexes with the same credentials, and has most answers in its cache from resolving.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from crossgrade.modules import uv
from crossgrade.modules.contract import Lock, LockRequest, Offer, Offers
from crossgrade.modules.locks import lock_entries, yanked

_SIZE = re.compile(r"\bsize = (\d+)")
_PUBLISHED = re.compile(r"\bupload-time = (\d{4}-\d\d-\d\d)")


def all_offers(request: LockRequest, lock: Lock, run: uv.Run, environment: Mapping[str, str] = os.environ) -> Offers:
    """Both questions at once: each waits for the network far longer than it computes."""
    with ThreadPoolExecutor(2) as pool:
        asked = pool.submit(newest_offers, request, lock, run, environment)
        locked = locked_offers(request, lock, run, environment)
        newest = asked.result()
    sources = {name for name, offer in locked.items() if not offer.wheel}
    if not newest and sources:  # one dist without any wheel leaves the others without an answer
        newest = newest_offers(request, lock, run, environment, sources)
    return Offers(locked, newest)


def locked_offers(
    request: LockRequest, lock: Lock, run: uv.Run, environment: Mapping[str, str] = os.environ
) -> dict[str, Offer]:
    """Of the locked versions. A dist from a git repository is left out: no index has it."""
    text = "".join(entry.text for entry in lock_entries(lock.text) if entry.git is None)
    return _ask(text, request, run, environment, ())


def newest_offers(
    request: LockRequest,
    lock: Lock,
    run: uv.Run,
    environment: Mapping[str, str] = os.environ,
    without: Collection[str] = (),
) -> dict[str, Offer]:
    """Of the newest versions with a wheel for this Python, final ones where there are any, whatever the lock holds.

    Nothing is built for the answer. What was yanked is left out: where that is all there is, no version is the newest.
    """
    left_out = {*without, *yanked(lock)}
    names = [one.dist.name for one in lock_entries(lock.text) if one.index and one.dist.name not in left_out]
    more = ("--exclude-newer", request.exclude_newer) if request.exclude_newer else ()
    return _ask("".join(f"{name}\n" for name in names), request, run, environment, ("--no-build", *more))


def _ask(
    text: str, request: LockRequest, run: uv.Run, environment: Mapping[str, str], more: tuple[str, ...]
) -> dict[str, Offer]:
    if not text:
        return {}
    with tempfile.TemporaryDirectory(prefix="crossgrade-offers-") as name:
        asked = Path(name) / "asked.txt"
        asked.write_text(text, encoding="utf-8")
        argv = [uv.uv_program(), "pip", "compile", "--format", "pylock.toml", "--no-deps", "--quiet", "--no-header"]
        argv += ["--python", request.python, *more, *uv.index_options(request), str(asked)]
        completed = run(argv, environment=uv.uv_environment(environment, request), timeout=uv.RESOLVE_SECONDS)
    return parse_offers(completed.stdout) if completed.succeeded else {}


def parse_offers(pylock: str) -> dict[str, Offer]:
    """Normalized name → offer, from a pylock.toml as uv writes it: one line for each file. Never raises.

    uv lists only the wheels that fit the Python and the platform that it was asked for.
    """
    found: dict[str, Offer] = {}
    for block in pylock.split("[[packages]]")[1:]:
        name = version = ""
        sizes: list[int] = []
        published: list[str] = []
        wheel = False
        for line in block.splitlines():
            key, _, value = line.partition(" = ")
            if key in ("name", "version"):
                text = value.strip('"')
                name, version = (text, version) if key == "name" else (name, text)
                continue
            published += _PUBLISHED.findall(line)
            if key != "sdist" and ".whl" in line:
                wheel = True
                sizes += map(int, _SIZE.findall(line))
        if name:
            found[name] = Offer(version, max(sizes, default=0), min(published, default=""), wheel)
    return found


def unpacked_bytes(offers: Mapping[str, Offer]) -> int:
    """About how many bytes these dists take when they are installed; 0 when the index does not say."""
    return int(sum(offer.bytes for offer in offers.values()) * unpacked_factor())


def unpacked_factor() -> float:
    """How many bytes on disk one byte of a wheel becomes (`knowledge/space.yml`)."""
    from crossgrade.knowledge import table

    return float(str(table("space")[0]["factor"]))
