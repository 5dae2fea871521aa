"""Which refusals of the loader matter to a server: those of files that it comes to load from its entry points."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.support.commands import crossgrade
from tests.support.gate_host import make_venv
from tests.support.native import build, have_gcc

from crossgrade.gates.abi import judge_abi
from crossgrade.gates.comparison import Working, compared
from crossgrade.gates.reachability import refused, sorted_by_reach, with_callers, without_code
from crossgrade.gates.verdict import Finding, Verdict
from crossgrade.inspect.native import inspect_native
from crossgrade.inspect.reach import Reach, followed_from, reach_of

pytestmark = pytest.mark.skipif(not have_gcc(), reason="gcc is not installed")

CODE = {
    "server/__init__.py": "",
    "server/launch.py": "def run():\n    from server import http\n",
    "server/http.py": "import kernels\nfrom . import models\ntry:\n    import caught\nexcept ImportError:\n    pass\n"
    "def use():\n    import late\n",
    "server/models.py": "if some_option():\n    import optional\nif is_hip():\n    import hip_only\n",
    # as sgl_kernel does it: a pattern, in a function that is called while the package is imported
    "kernels/__init__.py": "from kernels.load import _load\nops = _load()\n",
    "kernels/load.py": "import glob\ndef _load():\n    return glob.glob(f'{folder()}/common_ops.*')[0]\n"
    "def folder():\n    return 'sm100'\n",
    "caught/__init__.py": "from . import _C\n",
    "late/__init__.py": "from . import _C\n",
    "optional/__init__.py": "from . import _C\n",
    "hip_only/__init__.py": "from . import _C\n",
    "alone/__init__.py": "from . import _C\n",
    # as torchcodec does it: one of several versions, each in a try
    "codec/__init__.py": "for version in (8, 7):\n    try:\n        load(f'libcodec_core{version}')\n"
    "    except Exception:\n        pass\n",
}
FILES = {
    "kernels/sm100/common_ops.abi3.so": "always",
    "caught/_C.abi3.so": "tolerated",
    "late/_C.abi3.so": "later",
    "optional/_C.abi3.so": "perhaps",
    "hip_only/_C.abi3.so": "never",
    "alone/_C.abi3.so": "never",
    "plugins/transport_ucx.so.3": "plugin",
}
LEVELS = {
    "always": "failure",
    "perhaps": "warning",
    "later": "warning",
    "tolerated": "note",
    "plugin": "note",
    "never": "note",
}


def site_of(venv: Path) -> Path:
    return next(venv.glob("lib/python3*/site-packages"))


def dist(site: Path, name: str, files: list[str]) -> None:
    folder = site / f"{name}-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (folder / "RECORD").write_text("".join(f"{path},,\n" for path in files))


def needing(path: Path, soname: str) -> None:
    """A module or library that needs a library which is nowhere."""
    library = build(path.with_name("gone.so"), "int needed(void) { return 1; }", options=[f"-Wl,-soname,{soname}"])
    name = path.name.partition(".")[0]
    init = f"void *PyInit_{name}(void) {{ return 0; }}" if ".abi3" in path.name else ""
    build(path, f"{init} int needed(void); int call(void) {{ return needed(); }}", libraries=[library])
    library.unlink()


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    place = tmp_path / "venv"
    make_venv(place)
    site = site_of(place)
    for name, code in CODE.items():
        path = site / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code)
    for name in FILES:
        needing(site / name, "libgone.so.1")
    build(site / "plugins" / "libhost.so.3", 'const char *plugin = "transport_ucx.so.3";')
    for package in sorted({name.partition("/")[0] for name in [*CODE, *FILES]}):
        dist(site, package, [name for name in [*CODE, *FILES] if name.startswith(f"{package}/")])
    return place


ENTRIES = ("server.launch", "server.http")


def judged(venv: Path) -> tuple[Verdict, dict[str, Reach]]:
    report = inspect_native(venv)
    verdict = judge_abi(report)
    with followed_from(venv, ENTRIES) as ahead:
        reaches = reach_of(report, refused(verdict), ahead)
    return sorted_by_reach(verdict, report, reaches), reaches


def short(path: str) -> str:
    return path.partition("site-packages/")[2]


def test_each_refusal_is_sorted(venv: Path) -> None:
    verdict, reaches = judged(venv)
    assert {short(path): reach.when for path, reach in reaches.items()} == FILES
    levels = {short(finding.subject): finding.level for finding in verdict.findings if short(finding.subject) in FILES}
    assert levels == {path: LEVELS[when] for path, when in FILES.items()}
    assert verdict.outcome == "failed"
    assert "common_ops.abi3.so needs libgone.so.1" in verdict.reason
    assert "the server loads it when it starts: server.http > kernels > kernels.load" in verdict.reason


def test_python_agrees_on_what_the_server_loads(venv: Path) -> None:
    """`server.http` cannot be imported where `kernels` opens its library, and can where it does not."""
    import subprocess

    opening = "import ctypes\ndef _load():\n    return ctypes.CDLL(__file__[:-7] + 'sm100/common_ops.abi3.so')\n"
    (site_of(venv) / "kernels" / "load.py").write_text(opening)
    (site_of(venv) / "server" / "models.py").write_text("")
    program = [sys.executable, "-S", "-c", "import server.http"]
    environment = {"PYTHONPATH": str(site_of(venv))}
    refused_by_it = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    assert "libgone.so.1" in refused_by_it.stderr
    (site_of(venv) / "kernels" / "load.py").write_text("def _load(): ...\n")
    subprocess.run(program, env=environment, check=True)


def test_without_what_the_server_loads_for_certain_it_passes(venv: Path) -> None:
    build(site_of(venv) / "kernels" / "sm100" / "common_ops.abi3.so", "void *PyInit_common_ops(void) { return 0; }")
    verdict, _ = judged(venv)
    assert verdict.outcome == "passed"
    assert verdict.figures["not_reached"] == len(FILES) - 1


def test_a_variant_whose_namesake_loads_does_not_fail(venv: Path) -> None:
    build(site_of(venv) / "kernels" / "sm90" / "common_ops.abi3.so", "void *PyInit_common_ops(void) { return 0; }")
    record = site_of(venv) / "kernels-1.0.dist-info" / "RECORD"
    record.write_text(record.read_text() + "kernels/sm90/common_ops.abi3.so,,\n")
    verdict, reaches = judged(venv)
    path = next(path for path in reaches if path.endswith("sm100/common_ops.abi3.so"))
    assert reaches[path].when == "variant"
    assert verdict.outcome == "passed"


def test_another_package_with_a_module_of_that_name_is_no_variant(venv: Path) -> None:
    """deep_ep._C was taken for a variant of torch._C."""
    build(site_of(venv) / "other" / "_C.abi3.so", "void *PyInit__C(void) { return 0; }")
    dist(site_of(venv), "other", ["other/_C.abi3.so"])
    _, reaches = judged(venv)
    assert {short(path): reach.when for path, reach in reaches.items()} == FILES


def test_a_library_counts_as_what_breaks_with_it(venv: Path) -> None:
    """The cause is a library of its own; the module that the server loads fails through it."""
    site = site_of(venv)
    library = site / "kernels" / "libcause.so"
    needing(library, "libgone.so.1")
    build(
        site / "kernels" / "sm100" / "common_ops.abi3.so",
        "void *PyInit_common_ops(void) { return 0; } int call(void); int f(void) { return call(); }",
        libraries=[library], options=["-Wl,-rpath,$ORIGIN/.."],
    )  # fmt: skip
    verdict, _ = judged(venv)
    cause = next(finding for finding in verdict.findings if finding.subject.endswith("libcause.so"))
    assert cause.level == "failure"
    assert "(through " in cause.message


def test_nothing_changes_where_no_entry_point_is_there(venv: Path) -> None:
    report = inspect_native(venv)
    verdict = judge_abi(report)
    with followed_from(venv, ("no.such.module",)) as ahead:
        reaches = reach_of(report, refused(verdict), ahead)
    assert reaches == {}
    assert sorted_by_reach(verdict, report, reaches) == verdict


def test_beside_a_working_environment_what_is_lost_fails_or_warns(venv: Path, tmp_path: Path) -> None:
    old = tmp_path / "old"
    make_venv(old)
    for name in ("caught", "late"):
        build(site_of(old) / name / "_C.abi3.so", "void *PyInit__C(void) { return 0; }")
    was, now = inspect_native(old), inspect_native(venv)
    verdict = judge_abi(now)
    with followed_from(venv, ENTRIES) as ahead:
        reaches = reach_of(now, refused(verdict), ahead)
    result = compared(verdict, now, Working("generation 1", was, judge_abi(was)), reaches)
    failures = {short(finding.subject) for finding in result.of_level("failure")}
    assert failures == {"late/_C.abi3.so", "kernels/sm100/common_ops.abi3.so"}
    warnings = {short(finding.subject): finding.message for finding in result.of_level("warning")}
    assert warnings["caught/_C.abi3.so"].endswith("catches the failure; it loads in generation 1")


def test_the_command_takes_entry_points(venv: Path) -> None:
    whole = crossgrade("inspect", str(venv), "--json")
    assert whole.code == 2
    named = crossgrade("inspect", str(venv), "--entry", "late", "--json")
    loading = json.loads(named.stdout)["inspected"][0]["verdicts"][0]
    failures = [finding["subject"] for finding in loading["findings"] if finding["level"] == "failure"]
    assert [short(path) for path in failures] == ["late/_C.abi3.so"]


def test_the_architecture_verdict_names_the_callers() -> None:
    file = "lib/python3.11/site-packages/kernels/flash_ops.abi3.so"
    lacking = Finding("warning", "kernels 1.0", "runs with 1 of its 2 modules", {"lacking": {file: ["sm_90a"]}})
    note = Finding("note", file, "holds more")
    verdict = Verdict("gpu_arch", "passed", "", (lacking, note), {})
    assert without_code(verdict) == (file,)
    told = with_callers(verdict, {file: Reach("later", ("server.http", "kernels.flash"))})
    assert told.findings[0].evidence["callers"] == {file: ["server.http", "kernels.flash"]}
    assert told.findings[0].message.endswith("only when a function asks for it: server.http > kernels.flash")
    assert told.findings[1] == note
