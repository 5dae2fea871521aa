"""`crossgrade report` on real runs, and the page that each run leaves beside its report."""

from __future__ import annotations

import json
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from junitparser import JUnitXml
from prometheus_client.parser import text_string_to_metric_families
from tests.support.commands import crossgrade
from tests.support.run_reports import SAMPLES, Recorder, benchmarked, hostile_document
from tests.support.small_upgrade import SmallUpgrade, make_small_upgrade

from crossgrade.report.page import render_page


@pytest.fixture(scope="module")
def upgraded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallUpgrade]:
    """A failed run, then one that went well."""
    upgrade = make_small_upgrade(tmp_path_factory.mktemp("report") / "small")
    answer = upgrade.run("upgrade", "--yes", "-e", "imports=missing")
    assert answer.code == 2, answer.stderr
    answer = upgrade.run("upgrade", "--yes")
    assert answer.code == 0, answer.stderr
    assert f"  page: {runs(upgrade)[1] / 'report.html'}" in answer.stdout
    yield upgrade
    assert upgrade.left_over() == []


def runs(upgrade: SmallUpgrade) -> list[Path]:
    return sorted((upgrade.store.root / "runs").iterdir())


def test_each_run_leaves_a_page_that_only_its_owner_reads(upgraded: SmallUpgrade) -> None:
    failed, done = ((run / "report.html") for run in runs(upgraded))
    assert "FAILED and rolled back" in failed.read_text()
    assert "the run ended before it came to this gate" in failed.read_text()
    assert "3 passed" not in done.read_text()
    assert "2 passed, 0 failed, 0 not run" in done.read_text()
    assert {stat.S_IMODE(page.stat().st_mode) for page in (failed, done)} == {0o600}


def test_the_newest_run_is_meant_unless_one_is_named(upgraded: SmallUpgrade, tmp_path: Path) -> None:
    first, newest = runs(upgraded)
    answer = upgraded.run("report")
    assert (answer.code, answer.stdout) == (0, f"{newest / 'report.html'}\n")
    assert json.loads(upgraded.run("report", "--json").stdout)["run"]["run"] == newest.name
    assert json.loads(upgraded.run("report", first.name, "--format", "json").stdout)["run"]["run"] == first.name
    beginning = first.name[:2]
    assert "2 runs begin with" in upgraded.run("report", beginning).stderr
    assert upgraded.run("report", "1999").code == 1
    page = tmp_path / "page.html"
    assert upgraded.run("report", first.name[:-1], "--out", str(page)).stdout == f"{page}\n"
    assert first.name in page.read_text()


def test_other_programs_read_what_is_for_them(upgraded: SmallUpgrade, tmp_path: Path) -> None:
    failed = runs(upgraded)[0]
    junit = JUnitXml.fromstring(upgraded.run("report", failed.name, "--format", "junit").stdout.encode())
    gates = next(suite for suite in junit if suite.name == "crossgrade.gates")
    assert (gates.tests, gates.failures, gates.skipped) == (2, 1, 1)
    file = tmp_path / "crossgrade.prom"
    assert upgraded.run("report", failed.name, "--format", "prometheus", "--out", str(file)).code == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o644  # node_exporter is another user
    values = {each.name: each.samples[0].value for each in text_string_to_metric_families(file.read_text())}
    assert (values["crossgrade_run_success"], values["crossgrade_run_exit_code"]) == (0, 2)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--format", "pdf"], 5, "html, json, junit, prometheus"),
        (["--open", "--format", "junit"], 5, "--open is for a page"),
        (["--out", "/nowhere/page.html"], 1, "/nowhere"),
        (["--open"], 1, "no browser"),
    ],
)
def test_wrong_calls(upgraded: SmallUpgrade, arguments: list[str], code: int, words: str) -> None:
    answer = upgraded.run("report", *arguments, environment={"DISPLAY": "", "WAYLAND_DISPLAY": "", "BROWSER": ""})
    assert answer.code == code
    assert words in answer.stderr
    assert "Traceback" not in answer.stderr


def test_open_shows_the_page_in_the_browser_of_the_user(upgraded: SmallUpgrade, tmp_path: Path) -> None:
    browser, shown = tmp_path / "browser", tmp_path / "shown"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {shown}\n')
    browser.chmod(0o755)
    answer = upgraded.run("report", "--open", environment={"BROWSER": str(browser)})
    assert answer.code == 0, answer.stderr
    assert shown.read_text() == (runs(upgraded)[-1] / "report.html").as_uri()


def test_a_run_that_was_killed_is_told_from_its_log(upgraded: SmallUpgrade, tmp_path: Path) -> None:
    root = tmp_path / "root"
    shutil.copytree(upgraded.root, root, symlinks=True)
    killed = root / "store" / "runs" / runs(upgraded)[-1].name
    (killed / "report.json").unlink()
    log = killed / "log.jsonl"
    lines = [line for line in log.read_text().splitlines() if '"run_ended"' not in line]
    log.write_text("\n".join(lines[:-1]) + "\n" + lines[-1][:40])  # cut off in the middle, as a power cut leaves it
    page = tmp_path / "page.html"
    answer = crossgrade("report", killed.name, "--out", page, "--root", root)
    assert answer.code == 0, answer.stderr
    assert "INTERRUPTED" in page.read_text()
    assert "Server" in page.read_text()


def test_a_page_that_cannot_be_written_changes_no_run(tmp_path: Path) -> None:
    upgrade = make_small_upgrade(tmp_path / "small")
    task = 'command: {argv: [sh, -c, "for run in {{ crossgrade_root }}/store/runs/*; do mkdir $run/report.html; done"]}'
    upgrade.playbook.write_text(f"{upgrade.playbook.read_text()}    - name: In its way\n      {task}\n")
    answer = upgrade.run("upgrade", "--yes")
    assert answer.code == 0, answer.stderr
    assert "[WARNING]: no page was written" in answer.stdout
    assert upgrade.outcome() == "new"


# ---- in a real browser


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


PROBE = """<script nonce=test>addEventListener("load", () => parent.postMessage(
document.documentElement.scrollWidth + " of " + innerWidth, "*"))</script>"""
FRAME = """<!DOCTYPE html><body><script>
addEventListener("message", event => {{ document.body.dataset.width = event.data }})
</script><iframe src="{source}" style="width:{width}px;height:900px;border:0"></iframe></body>"""


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed (apt: chromium)")
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True])
def test_a_browser_shows_it_without_an_error_at_every_width(tmp_path: Path, width: int, dark: bool) -> None:
    """Hostile texts run nothing, nothing is wider than the window, and the colours are those that were asked for."""
    from PIL import Image

    verdict, samples = benchmarked()
    pages = {
        "measured": Recorder().gate(verdict, name="Speed").end().document({SAMPLES: samples}),
        "hostile": hostile_document(),
    }
    for name, document in pages.items():
        text = render_page(document)
        # The page's own policy forbids scripts; to ask the browser for widths, this copy allows one of ours by nonce.
        # It stands in a frame, since a window is never narrower than 500 pixels.
        original = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
        assert text.count(original) == 1
        asking = text.replace(original, original.replace("style-src", "script-src 'nonce-test'; style-src"))
        page = tmp_path / f"{name}.html"
        page.write_text(asking.replace("</body>", PROBE + "</body>"))
        frame = tmp_path / f"{name}-frame.html"
        frame.write_text(FRAME.format(source=page.as_uri(), width=width))
        options = [
            str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            f"--window-size={width},1000", f"--user-data-dir={tmp_path / 'profile'}",
            f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--enable-logging=stderr",
        ]  # fmt: skip
        picture = tmp_path / f"{name}.png"
        looked = [*options, "--virtual-time-budget=5000", "--dump-dom", frame.as_uri()]
        shown = subprocess.run(looked, capture_output=True, text=True, check=True)
        assert f'data-width="{width} of {width}"' in shown.stdout
        assert "CONSOLE" not in shown.stderr
        subprocess.run([*options, f"--screenshot={picture}", page.as_uri()], capture_output=True, check=True)
        with Image.open(picture) as image:
            assert image.width == width
            corner = image.convert("L").getpixel((2, 2))
        assert isinstance(corner, int)
        assert (corner < 64) is dark
