"""Output that cannot fail a run: whoever reads it may go away, and the disk that it goes to may fill."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import IO, Any, Protocol, TextIO


class Output(Protocol):
    """What of a text stream is needed to tell people something."""

    def write(self, text: str, /) -> int: ...

    def flush(self) -> None: ...

    def isatty(self) -> bool: ...


class SteadyStream:
    """A text stream whose writes never raise OSError. After the first that fails, `problem` says why and it is mute.

    A run changes the environment and takes its changes back; neither may stop half way because nobody listens.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.problem: OSError | None = None

    def write(self, text: str) -> int:
        if self.problem is None:
            try:
                self._stream.write(text)
            except OSError as error:
                self._give_up(error)
        return len(text)

    def flush(self) -> None:
        if self.problem is None:
            try:
                self._stream.flush()
            except OSError as error:
                self._give_up(error)

    def isatty(self) -> bool:
        return self._stream.isatty()

    def close(self) -> None:
        self.flush()
        with suppress(OSError):
            self._stream.close()

    def __getattr__(self, name: str) -> Any:
        """The rest of a file, for libraries that want one."""
        return getattr(self._stream, name)

    def _give_up(self, error: OSError) -> None:
        self.problem = error
        mute(self._stream)


def mute(stream: IO[str]) -> None:
    """Let a stream that cannot be written to lead nowhere: what it still holds must not raise when Python ends."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
