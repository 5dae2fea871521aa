"""A wheel whose file name says something else than its metadata."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.commands import crossgrade
from tests.support.module_host import ModuleHost
from tests.support.tiny_wheels import tiny_wheel

from crossgrade.errors import TaskError
from crossgrade.inspect.wheel_name import misnamed
from crossgrade.modules.wheels import find_wheel


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("sgl_kernel-0.3.18-py3-none-any.whl", ""),
        ("sgl_kernel-0.3.18.0-py3-none-any.whl", ""),  # the same version
        (
            "sgl_kernel-0.3.18+cu130-py3-none-any.whl",
            "says sgl-kernel 0.3.18+cu130, and its METADATA says sgl-kernel 0.3.18",
        ),
        ("sglang_kernel-0.3.18-py3-none-any.whl", "says sglang-kernel 0.3.18"),
        ("kernel.whl", "is not the name of a wheel"),
    ],
)
def test_names(tmp_path: Path, name: str, said: str) -> None:
    wheel = tiny_wheel(tmp_path, "sgl-kernel", "0.3.18").rename(tmp_path / name)
    assert said in misnamed(wheel)
    assert bool(misnamed(wheel)) == bool(said)


def test_what_is_no_wheel_is_left_to_whoever_unpacks_it(tmp_path: Path) -> None:
    path = tmp_path / "a-1-py3-none-any.whl"
    path.write_bytes(b"PK\3\4 and no more")
    assert misnamed(path) == ""


def test_a_playbook_does_not_take_it(tmp_path: Path) -> None:
    wheel = tiny_wheel(tmp_path, "a", "1").rename(tmp_path / "a-2-py3-none-any.whl")
    with pytest.raises(TaskError, match="says a 2, and its METADATA says a 1"):
        find_wheel(str(wheel), ModuleHost(tmp_path))


def test_inspect_fails_for_it(tmp_path: Path) -> None:
    wheel = tiny_wheel(tmp_path, "a", "1").rename(tmp_path / "a-2-py3-none-any.whl")
    answer = crossgrade("inspect", str(wheel))
    assert (answer.code, "says a 2, and its METADATA says a 1" in answer.stdout) == (2, True), answer
