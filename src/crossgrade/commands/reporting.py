"""`report`: what became of a run, as a page or for other programs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from crossgrade.commands.common import existing_store, guarded, request_from
from crossgrade.engine.request import Request
from crossgrade.errors import CrossgradeError, ExitCode, WrongOptionsError
from crossgrade.report.stored import find_run, read_document, read_report

Options = Mapping[str, Any]
FORMATS = ("html", "json", "junit", "prometheus")
PAGE_FILE = "report.html"


def report_command(options: Options) -> int:
    return guarded(lambda: _report(options, request_from(options, "report")))


def _report(options: Options, request: Request) -> int:
    chosen = str(options["format_"] or ("json" if options["json"] else "html"))
    if chosen not in FORMATS:
        raise WrongOptionsError(f"--format is one of {', '.join(FORMATS)}, not {chosen!r}")
    if options["open_"] and (chosen != "html" or options["out"] == "-"):
        raise WrongOptionsError("--open is for a page in a file: leave --format and --out - away")
    run = find_run(existing_store(request), str(options["run"]))
    text = render(run, chosen)
    if options["out"] == "-" or (not options["out"] and chosen != "html"):
        sys.stdout.write(text)
        return ExitCode.DONE
    path = Path(options["out"]).expanduser().absolute() if options["out"] else run / PAGE_FILE
    write_text(path, text, for_all=chosen == "prometheus")
    sys.stdout.write(f"{path}\n")
    if options["open_"]:
        _open(path)
    return ExitCode.DONE


def render(run: Path, chosen: str) -> str:
    """The report of a run in one of FORMATS. Raises CrossgradeError for one that cannot be read."""
    if chosen == "json":
        return json.dumps(read_report(run), indent=1, sort_keys=True) + "\n"
    document = read_document(run)
    if chosen == "junit":
        from crossgrade.report.junit import render_junit

        return render_junit(document)
    if chosen == "prometheus":
        from crossgrade.report.prometheus import render_prometheus

        return render_prometheus(document)
    from crossgrade.report.page import render_page

    return render_page(document)


def write_text(path: Path, text: str, *, for_all: bool = False) -> None:
    """Write it in one step. Only its owner may read it, as the report itself; `for_all`: whom the umask lets."""
    from crossgrade.store.atomic import write_file

    write_file(path, text.encode("utf-8", "backslashreplace"), 0o644 if for_all else 0o600)


def write_page(page: Path) -> str:
    """Write the page of the run in whose folder it is to lie, after the run; returns why that could not be done, or "".

    The run is over and its lock is free: whatever goes wrong here, a fault of ours too, changes nothing of it.
    """
    try:
        write_text(page, render(page.parent, "html"))
    except (CrossgradeError, OSError) as error:
        return str(error)
    except KeyboardInterrupt:
        return "interrupted; `crossgrade report` writes it"
    except Exception as error:  # noqa: BLE001 - a picture must not turn a run that is done into a failure
        return f"{type(error).__name__}: {error}"
    return ""


def _open(path: Path) -> None:
    """Show the page. Raises CrossgradeError where there is no browser; a text browser has nothing to show it on."""
    import webbrowser

    graphical = any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
    if not graphical or not webbrowser.open(path.as_uri()):
        raise CrossgradeError(
            "there is no browser here to open it with", remedy=f"Copy the file to where one is: it is whole: {path}"
        )
