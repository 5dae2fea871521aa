"""Server-sent events, parsed as they arrive (WHATWG HTML standard, 9.2.6 "Interpreting an event stream")."""

from __future__ import annotations

LARGEST_LINE_BYTES = 16 << 20  # far above any event; a stream without line ends must not fill the memory


class EventStreamParser:
    """Takes bytes in pieces of any size, gives the data of each event that is complete.

    Lines end with LF, CR LF or CR; several `data` lines make one event; comments and other fields are passed
    over; what stands at the end without a blank line is no event. Pure: the same bytes give the same events,
    however they are cut.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._after_cr = False
        self._begun = False

    def feed(self, piece: bytes) -> list[str]:
        """The data of the events that this piece completes.

        Raises ValueError for data that is not UTF-8 (UnicodeDecodeError) and for a line that never ends.
        """
        if self._after_cr and piece:
            self._after_cr = False
            if piece.startswith(b"\n"):
                piece = piece[1:]
        text = self._rest + piece
        if text.endswith(b"\r"):
            self._after_cr = True  # an LF at the start of the next piece belongs to this line end
        if b"\r" in text:
            text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, self._rest = text.split(b"\n")
        if len(self._rest) > LARGEST_LINE_BYTES:
            raise ValueError(f"a line longer than {LARGEST_LINE_BYTES} bytes")
        events = []
        for line in lines:
            if not self._begun:
                self._begun = True
                line = line.removeprefix(b"\xef\xbb\xbf")
            if line:
                self._take(line)
            elif self._data:
                events.append(b"\n".join(self._data).decode())
                self._data.clear()
        return events

    def _take(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
