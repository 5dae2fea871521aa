"""One request to a server, with two time limits: for the whole answer, and for a silence in it."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

LARGEST_ANSWER_BYTES = 4 << 20
_PIECE_BYTES = 1 << 16


@dataclass(frozen=True)
class Answer:
    """What came back: a status (None: no whole answer came), the body or why there is none, and seconds.

    `late` says that a time limit was over: then it is worth a look what the server is doing.
    """

    status: int | None
    text: str
    seconds: float
    late: bool = False


def ask(base_url: str, path: str, body: Any, timeout: float, silence: float) -> Answer:
    """GET, or POST of `body` as JSON where it is not None. Never raises for what a server does.

    `timeout` is seconds until the whole answer must be there, `silence` seconds that may pass without a byte. An
    answer that does not come is an answer too: its status is None.
    """
    import http.client  # some 10 ms that nobody else needs

    address = urlsplit(base_url)
    connection = http.client.HTTPConnection(str(address.hostname), int(address.port or 80), timeout=timeout)
    data = None if body is None else json.dumps(body).encode()
    headers = {"Connection": "close", **({"Content-Type": "application/json"} if data else {})}
    started = time.monotonic()
    parts: list[bytes] = []
    size = 0

    def over(status: int | None, text: str, *, late: bool = False) -> Answer:
        return Answer(status, text, time.monotonic() - started, late)

    def patience() -> float:
        return max(0.001, min(silence, started + timeout - time.monotonic()))

    try:
        connection.connect()
        link = connection.sock  # the connection lets go of it once an answer ends with the connection
        link.settimeout(patience())
        connection.request("POST" if data is not None else "GET", path, body=data, headers=headers)
        response = connection.getresponse()
        while piece := response.read1(_PIECE_BYTES):
            parts.append(piece)
            size += len(piece)
            if size > LARGEST_ANSWER_BYTES:
                return over(None, f"the answer is longer than {LARGEST_ANSWER_BYTES >> 20} MiB")
            if time.monotonic() - started >= timeout:
                return over(None, f"no whole answer within {timeout:g} s, {size} bytes of it", late=True)
            link.settimeout(patience())
        if response.length:  # http.client takes an early end for the end
            return over(None, f"the connection ended in the middle of the answer, after {size} bytes")
        return over(response.status, b"".join(parts).decode("utf-8", "replace"))
    except TimeoutError:
        if time.monotonic() - started >= timeout:
            text = f"no whole answer within {timeout:g} s" if size else f"no answer within {timeout:g} s"
        else:
            text = f"silent for {silence:g} s"
        return over(None, text + (f", {size} bytes of it" if size else ""), late=True)
    except http.client.IncompleteRead:
        return over(None, f"the connection ended in the middle of the answer, after {size} bytes")
    except (OSError, http.client.HTTPException) as error:
        text = str(error) or type(error).__name__
        return over(None, text + (f", {size} bytes of an answer" if size else ""))
    finally:
        connection.close()
