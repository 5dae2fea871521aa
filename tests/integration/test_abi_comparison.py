"""What does not load in the working environment either is no news; what loaded there and does not here is."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.commands import crossgrade
from tests.support.gate_host import make_venv
from tests.support.native import build, have_gcc

from crossgrade.gates.abi import judge_abi
from crossgrade.gates.comparison import Working, compared
from crossgrade.gates.verdict import Verdict
from crossgrade.inspect.native import inspect_native
from crossgrade.inspect.reach import Reach

pytestmark = pytest.mark.skipif(not have_gcc(), reason="gcc is not installed")

MODULE = "void *PyInit_%s(void) { return 0; } int needed(void); int call(void) { return needed(); }"
PLAIN = "void *PyInit_%s(void) { return 0; }"


def site_of(venv: Path) -> Path:
    return next(venv.glob("lib/python3*/site-packages"))


def needing(path: Path, soname: str, code: str = "int needed(void); int call(void) { return needed(); }") -> Path:
    """A shared object that needs a library which is nowhere."""
    library = build(path.with_name("gone.so"), "int needed(void) { return 1; }", options=[f"-Wl,-soname,{soname}"])
    build(path, code, libraries=[library])
    library.unlink()
    return path


@pytest.fixture
def venvs(tmp_path: Path) -> tuple[Path, Path]:
    """The working environment and the candidate, both with a plugin that cannot be loaded."""
    old, new = tmp_path / "old", tmp_path / "new"
    make_venv(old)
    make_venv(new)
    needing(site_of(old) / "nvidia" / "cu12" / "transport_ucx.so.3", "libucs.so.0")
    needing(site_of(new) / "nvidia" / "cu13" / "transport_ucx.so.6", "libucs.so.0")
    build(site_of(old) / "kernels" / "ops.abi3.so", PLAIN % "ops")
    build(site_of(new) / "kernels" / "ops.cpython-311-x86_64-linux-gnu.so", PLAIN % "ops")
    return old, new


def judge(old: Path, new: Path) -> Verdict:
    was, now = inspect_native(old), inspect_native(new)
    return compared(judge_abi(now), now, Working("generation 1", was, judge_abi(was)))


def levels(verdict: Verdict) -> dict[str, str]:
    return {finding.subject.rpartition("/")[2]: finding.level for finding in verdict.findings}


def test_what_the_working_one_has_too_is_no_news(venvs: tuple[Path, Path]) -> None:
    assert judge_abi(inspect_native(venvs[1])).outcome == "failed"
    verdict = judge(*venvs)
    assert verdict.outcome == "passed"
    (finding,) = verdict.findings
    assert (finding.level, finding.subject.rpartition("/")[2]) == ("note", "transport_ucx.so.6")
    assert finding.message.endswith("it does not load in generation 1 either")
    assert "everything that loads in generation 1 loads here; 1 finding set aside" in verdict.reason
    assert verdict.figures["set_aside"] == 1


def test_what_loaded_and_does_not_any_more_fails_whatever_its_file_is_called(venvs: tuple[Path, Path]) -> None:
    old, new = venvs
    tag = next(site_of(new).glob("kernels/ops.*"))
    needing(tag, "libcudart.so.12", MODULE % "ops")
    verdict = judge(old, new)
    assert verdict.outcome == "failed"
    assert verdict.reason.startswith(str(tag.relative_to(new)))
    assert verdict.reason.endswith("; it loads in generation 1")
    assert levels(verdict) == {tag.name: "failure", "transport_ucx.so.6": "note"}


def test_a_library_that_breaks_a_module_which_loaded(venvs: tuple[Path, Path]) -> None:
    old, new = venvs
    folder = site_of(new) / "kernels"
    inner = needing(folder / "libinner.so", "libnew.so.1")
    module = next(folder.glob("ops.*"))
    build(module, PLAIN % "ops", libraries=[inner], options=["-Wl,-rpath,$ORIGIN"])
    verdict = judge(old, new)
    assert verdict.outcome == "failed"
    assert f"{module.relative_to(new)}, which it breaks, loads in generation 1" in verdict.reason


@pytest.mark.parametrize(
    ("when", "level"),
    [("always", "failure"), ("later", "failure"), ("tolerated", "warning"), ("variant", "note"), ("never", "warning")],
)
def test_what_is_lost_counts_unless_the_server_goes_on_without_it(
    venvs: tuple[Path, Path], when: str, level: str
) -> None:
    old, new = venvs
    module = next(site_of(new).glob("kernels/ops.*"))
    needing(module, "libcudart.so.12", MODULE % "ops")
    was, now = inspect_native(old), inspect_native(new)
    reaches = {str(module.relative_to(new)): Reach(when, ("kernels", "kernels.loader"))}
    verdict = compared(judge_abi(now), now, Working("generation 1", was, judge_abi(was)), reaches)
    assert levels(verdict)[module.name] == level
    assert verdict.outcome == ("failed" if level == "failure" else "passed")
    (finding,) = [finding for finding in verdict.findings if finding.subject.endswith(module.name)]
    assert finding.message.endswith("; it loads in generation 1")
    if level != "failure":
        assert "that loads in generation 1 and that the server may need loads here" in verdict.reason


def test_new_files(venvs: tuple[Path, Path]) -> None:
    old, new = venvs
    needing(site_of(new) / "nvidia" / "cu13" / "transport_new.so.1", "libfabric.so.1")
    verdict = judge(old, new)
    assert verdict.outcome == "passed"
    assert levels(verdict)["transport_new.so.1"] == "warning"
    needing(site_of(new) / "extra" / "fresh.abi3.so", "libmissing.so.1", MODULE % "fresh")
    verdict = judge(old, new)
    assert verdict.outcome == "failed"
    assert verdict.reason.endswith("generation 1 has no such file")


def test_preloads_and_nothing_to_set_aside(venvs: tuple[Path, Path]) -> None:
    was, now = inspect_native(venvs[0]), inspect_native(venvs[1], preload=["no/such.so"])
    verdict = compared(judge_abi(now), now, Working("generation 1", was, judge_abi(was)))
    assert verdict.outcome == "failed"
    assert "no/such.so matches no file" in verdict.reason
    plain = inspect_native(venvs[1] / "bin")
    passed = judge_abi(plain)
    assert compared(passed, plain, Working("generation 1", was, judge_abi(was))).reason == passed.reason


def test_from_the_command_line(venvs: tuple[Path, Path]) -> None:
    old, new = venvs
    assert crossgrade("inspect", new).code == 2
    answer = crossgrade("inspect", new, "--compare", old, "-v")
    assert answer.code == 0, answer.stdout
    assert f"it does not load in {old} either" in answer.stdout
    wrong = crossgrade("inspect", new, "--compare", "/usr")
    assert (wrong.code, "--compare names a venv" in wrong.stderr) == (1, True)
