"""Large files from the network: resumed where they were left, and only taken when their checksum is right."""

from __future__ import annotations

import hashlib
import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path

from crossgrade.errors import TaskError
from crossgrade.places import shown_bytes

ATTEMPTS = 5
CONNECT_SECONDS = 60.0  # also the longest silence in the middle of a download
BLOCK = 1 << 20
PROGRESS_SECONDS = 1.0
_PARTIAL, _UNSATISFIABLE = 206, 416  # RFC 9110, 15.3.7 and 15.5.17


def remote_size(url: str, environment: Mapping[str, str]) -> int | None:
    """How many bytes a server says that a file has; None where it does not say. Raises TaskError."""
    try:
        with _opener(environment).open(_request(url, method="HEAD"), timeout=CONNECT_SECONDS) as answer:
            length = answer.headers.get("Content-Length")
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise _unreachable(url, error) from error
    return int(length) if length and length.isdecimal() else None


def download(
    url: str, target: Path, sha256: str, environment: Mapping[str, str], progress: Callable[[str], None]
) -> None:
    """Bring a file to `target`; ``target.part`` holds what came until now, and is gone on with after a kill.

    Failures of the network are tried again with growing pauses, from where the file broke off. `environment` names
    the proxy. Raises TaskError when the server cannot be reached, and for another checksum: nothing is kept then.
    """
    partial = target.with_name(f"{target.name}.part")
    resumed = partial.exists() and partial.stat().st_size > 0
    _fetch_all(url, partial, environment, progress)
    if file_sha256(partial) != sha256 and resumed:
        # what an earlier run had left may be of another file behind the same address
        partial.unlink()
        _fetch_all(url, partial, environment, progress)
    found = file_sha256(partial)
    if found != sha256:
        size = partial.stat().st_size
        partial.unlink()
        raise TaskError(
            f"{url} has the sha256 {found} ({shown_bytes(size)}), not {sha256}: it is not used",
            remedy="Compare the checksum with the one that the publisher states.",
        )
    partial.rename(target)


def _fetch_all(url: str, partial: Path, environment: Mapping[str, str], progress: Callable[[str], None]) -> None:
    from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential_jitter

    retrying = Retrying(
        stop=stop_after_attempt(ATTEMPTS),
        wait=wait_exponential_jitter(max=15),
        retry=retry_if_exception(_is_transient),
        reraise=True,
    )
    try:
        retrying(_fetch, url, partial, environment, progress)
    except (OSError, ValueError, http.client.HTTPException) as error:
        if getattr(error, "filename", None) == str(partial):  # the disk, not the network
            raise
        raise _unreachable(url, error) from error


def _is_transient(error: BaseException) -> bool:
    if isinstance(error, urllib.error.HTTPError):
        return error.code >= 500 or error.code == 429
    return isinstance(error, http.client.HTTPException | urllib.error.URLError | ConnectionError | TimeoutError)


def _fetch(url: str, partial: Path, environment: Mapping[str, str], progress: Callable[[str], None]) -> None:
    have = partial.stat().st_size if partial.exists() else 0
    request = _request(url)
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        answer = _opener(environment).open(request, timeout=CONNECT_SECONDS)
    except urllib.error.HTTPError as error:
        if error.code == _UNSATISFIABLE and have:
            return  # it is all here; the checksum says whether it is right
        raise
    with answer, partial.open("ab" if answer.status == _PARTIAL else "wb") as file:
        done = have if answer.status == _PARTIAL else 0
        length = answer.headers.get("Content-Length")
        whole = done + int(length) if length else 0
        told = 0.0
        while block := answer.read(BLOCK):
            file.write(block)
            done += len(block)
            if time.monotonic() - told > PROGRESS_SECONDS:
                told = time.monotonic()
                progress(f"downloading {shown_bytes(done)}{f' of {shown_bytes(whole)}' if whole else ''}")
        file.flush()
        os.fsync(file.fileno())
    if whole and done < whole:  # what `read` with a size does not say of a connection that broke off
        raise ConnectionError(f"the connection ended after {done} of {whole} bytes")


def file_sha256(path: Path) -> str:
    """The sha256 of a file, in hex. Raises OSError."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _request(url: str, method: str = "GET") -> urllib.request.Request:
    if not url.startswith(("https://", "http://")):
        raise TaskError(f"{url} is neither an https nor an http address")
    return urllib.request.Request(url, method=method, headers={"User-Agent": "crossgrade"})  # noqa: S310 - checked


def _opener(environment: Mapping[str, str]) -> urllib.request.OpenerDirector:
    """One that takes the proxies of the task's environment, not of this process."""
    proxies = {
        scheme: value
        for scheme in ("http", "https")
        if (value := environment.get(f"{scheme}_proxy") or environment.get(f"{scheme.upper()}_PROXY"))
    }
    return urllib.request.build_opener(urllib.request.ProxyHandler(proxies))


def _unreachable(url: str, error: Exception) -> TaskError:
    reason = getattr(error, "reason", None) or error
    return TaskError(
        f"{url} cannot be downloaded: {reason}",
        remedy="Check the address, the network and the proxy (HTTPS_PROXY), or bring the file here and give its path.",
    )
