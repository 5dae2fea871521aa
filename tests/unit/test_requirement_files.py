"""Requirements files line by line."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossgrade.errors import TaskError
from crossgrade.modules.requirement_files import parse_requirements

TEXT = """\
# a comment
--extra-index-url=https://download.example/whl/cu130   # with a comment
-i https://mirror.example/simple
-cheld.txt
-r  more.txt
--find-links ./wheels
--pre
--require-hashes

torch == 2.11.0 ; python_version >= "3.10" \\
    --hash=sha256:aa \\
    --hash sha256:bb
x @ https://host/x.whl#sha256=cc
"""


def test_each_line_becomes_what_it_says() -> None:
    found = [(line.kind, line.value, line.hashes, line.place.line) for line in parse_requirements(TEXT, "r.txt")]
    assert found == [
        ("extra index", "https://download.example/whl/cu130", (), 2),
        ("index", "https://mirror.example/simple", (), 3),
        ("constraints", "held.txt", (), 4),
        ("file", "more.txt", (), 5),
        ("find links", "./wheels", (), 6),
        ("prereleases", "", (), 7),
        ("hashes", "", (), 8),
        ("requirement", 'torch == 2.11.0 ; python_version >= "3.10"', ("sha256:aa", "sha256:bb"), 10),
        ("requirement", "x @ https://host/x.whl#sha256=cc", (), 13),
    ]


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("-e ./checkout", "extension_build"),
        ("--editable=git+https://host/x.git", "extension_build"),
        ("--no-index", "find_links"),
        ("--trusted-host mirror", "UV_INSECURE_HOST"),
        ("--no-binary :all:", "extension_build"),
        ("--config-settings x", "Take the line out"),
        ("--index-url", "Take the line out"),
        ("--pre now", "Take the line out"),
    ],
)
def test_what_cannot_be_taken_over_is_named_with_its_line(line: str, remedy: str) -> None:
    with pytest.raises(TaskError, match="cannot be taken over") as caught:
        list(parse_requirements(f"six\n\n{line}\n", "r.txt"))
    assert str(caught.value.place) == "r.txt:3:1"
    assert remedy in caught.value.remedy


@given(st.text())
def test_no_text_makes_the_reader_fall_over(text: str) -> None:
    with contextlib.suppress(TaskError):
        list(parse_requirements(text, "r.txt"))
