"""Server-sent events: what counts as one, however the bytes are cut."""

from __future__ import annotations

import contextlib
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossgrade.bench.event_stream import LARGEST_LINE_BYTES, EventStreamParser


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: a\n\ndata: b\n\n", ["a", "b"]),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", ["a", "b"]),
        (b"data: a\r\rdata: b\r\r", ["a", "b"]),
        (b"data:a\n\n", ["a"]),
        (b"data:  a\n\n", [" a"]),
        (b"data: a\ndata: b\n\n", ["a\nb"]),
        (b": comment\nid: 1\nevent: x\nretry: 5\ndata: a\n\n", ["a"]),
        (b"data\n\n", [""]),
        (b"\n\n\ndata: a\n\n\n\n", ["a"]),
        (b"data: a\n", []),  # the end without a blank line is no event
        (b"\xef\xbb\xbfdata: a\n\n", ["a"]),
        ("data: grün\n\n".encode(), ["grün"]),
        (b"database: a\n\n", []),
        (b"", []),
    ],
)
def test_events(stream: bytes, events: list[str]) -> None:
    assert EventStreamParser().feed(stream) == events
    parser = EventStreamParser()
    assert [event for byte in stream for event in parser.feed(bytes([byte]))] == events


PIECES = st.sampled_from(
    [b"data: a", b"data:", b"data", b"\n", b"\r", b"\r\n", b": c", b"x", "ü".encode(), b"\xef\xbb\xbf"]
)


@given(st.lists(PIECES, max_size=30), st.lists(st.integers(0, 90), max_size=12))
def test_where_the_bytes_are_cut_makes_no_difference(pieces: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(pieces)
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    parser = EventStreamParser()
    events = [event for start, end in itertools.pairwise(places) for event in parser.feed(stream[start:end])]
    assert events == EventStreamParser().feed(stream)


@given(st.binary(max_size=200))
def test_any_bytes_are_events_or_no_text(stream: bytes) -> None:
    with contextlib.suppress(UnicodeDecodeError):
        EventStreamParser().feed(stream + b"\n\n")


def test_a_line_without_end_is_refused() -> None:
    with pytest.raises(ValueError, match="a line longer than"):
        EventStreamParser().feed(b"x" * (LARGEST_LINE_BYTES + 1))
