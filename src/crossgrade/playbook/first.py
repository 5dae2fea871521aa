"""A first playbook and inventory for a server as it runs now. Pure: from what was found to text, the same each time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from crossgrade.facts.serving import EVERYWHERE, Secret, Server
from crossgrade.playbook.first_text import comment, environment_name, listed, quoted, scalar, task
from crossgrade.playbook.positions import printable

COMMON_CAPABILITY = "12.0"  # where no GPU answers: that of the RTX PRO 6000 Blackwell
PLACEHOLDER = "MODEL"  # where nobody knows which model is to be served
# What FlashInfer's kernels and torch's headers include when they are compiled at run time.
COMPONENTS = (
    "nvcc", "nvvm", "crt", "cccl", "cudart", "nvrtc", "cublas", "cusparse", "cusolver", "curand", "cufft",
)  # fmt: skip


@dataclass(frozen=True)
class Found:
    """All that a first playbook is made of.

    `venv` is the environment as people name it, `root` the folder for the store. `versions` are its dists by name,
    `python` the interpreter below it (empty: not known), `requested` names dists that somebody asked for by name.
    `target` and `target_torch` are versions to go to, empty where the tables know none for `cuda`. `require` are globs
    of the files that must hold code for the GPU, empty for all. `compute_capability` is empty where no GPU answered.
    `imports` are for the smoke gate, `start` is the launch line of a server that does not run, `unit_needs` says what
    the command line of its unit needs for the target, `notes` are more assumptions, `faults` what is wrong with the
    environment: the name of each, and what it is about.
    """

    venv: str
    root: str
    engine: str
    cuda: str
    versions: Mapping[str, str]
    server: Server | None = None
    python: str = ""
    requested: tuple[str, ...] = ()
    checkouts: tuple[str, ...] = ()
    target: str = ""
    target_torch: str = ""
    require: tuple[str, ...] = ()
    compute_capability: str = ""
    gpus: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    start: tuple[str, ...] = ()
    health: str = "/health"
    uid: int = 0
    unit_needs: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())
    faults: tuple[tuple[str, str], ...] = field(default=())


def assumptions(found: Found) -> tuple[str, ...]:
    """What the playbook takes for granted and a person should look at, one sentence each."""
    return tuple(_assumptions(found))


def _assumptions(found: Found) -> Iterator[str]:
    server = found.server
    yield from found.notes
    if server is None:
        yield "no server runs: its launch line is a placeholder, and `plan` says what to fill in"
    else:
        if server.unread:
            yield f"not read: the {server.unread}; root can"
        yield from _about_the_unit(server, found.uid)
        if server.uid not in (None, found.uid):
            yield f"it runs as user {server.uid}, not as {found.uid}: what crossgrade builds belongs to who runs it"
        yield from (f"{name}: {note}" for name, note in server.noted.items())
        yield from (f"{one.name} is not given to servers under test: {one.why}" for one in server.left_out)
        yield from _about_the_options(found, server)
        yield from (
            f"the value of {secret.where} is not written: set {environment_name(secret)} or `{secret.variable}`"
            for secret in server.secrets
        )
    if not found.compute_capability:
        yield f"no GPU answered: compute_capability is taken to be {COMMON_CAPABILITY}, and what asks a GPU only warns"
    elif len(set(found.gpus)) > 1:
        yield f"the GPUs differ ({', '.join(found.gpus)}): the gates judge for {found.compute_capability} only"
    if not found.target:
        yield f"no version of {found.engine} for CUDA {found.cuda} is known: `plan` asks for one"
    if not found.python:
        yield "the Python below the environment was not found: the candidate gets the one that crossgrade runs in"
    for checkout in found.checkouts:
        yield f"{checkout} is used in place: local changes in it are not carried over"
    if found.requested:
        yield f"not carried over unless you say so in extra_requirements: {', '.join(found.requested)}"


def _about_the_unit(server: Server, uid: int) -> Iterator[str]:
    if not server.unit:
        yield "no systemd unit started the server: the run waits until you stop it, and you start it again afterwards"
        return
    if not server.user_unit and uid:
        yield f"restarting {server.unit} needs root: run crossgrade as root, or give the commands another form"
    yield f"{server.unit} keeps its own environment and command line: look there for paths of the old CUDA"


def _about_the_options(found: Found, server: Server) -> Iterator[str]:
    """What the version to go to calls otherwise, on the launch line and on the line of the unit."""
    from crossgrade.facts.launch_line import CONCEALED, read_line, translate

    line = read_line([CONCEALED if isinstance(word, Secret) else word for word in server.command])
    if line is not None:
        translation = translate(line, found.target)
        whose = f"{found.engine} {found.target}"
        for each in translation.rewritten:
            yield f"{each} in {whose}: launch_check translates it{f' ({each.why})' if each.why else ''}"
        yield from (f"{whose} has no {option}: {advice}" for option, advice in translation.advice)
    yield from found.unit_needs


def inventory_text(found: Found) -> str:
    return "\n".join(
        [
            "# Written by `crossgrade init`. The host that it ran on; add others as Ansible has them. A host over SSH",
            "# (ansible_connection: ssh, ansible_host, ansible_user) needs crossgrade installed, and the playbook",
            f"# its name in `hosts`. Paths that differ, such as {printable(found.venv)}, become variables of the host.",
            "all:",
            "  hosts:",
            "    localhost:",
            "      ansible_connection: local",
            "",
        ]
    )


def playbook_text(found: Found) -> str:
    """The whole transaction, with variables at its top."""
    lines = [
        *comment(f"Move {found.engine} in {found.venv} to CUDA {found.cuda}, as one transaction."),
        "#",
        "# Written by `crossgrade init` from what ran then; it is yours to change.",
        "#   crossgrade plan --playbook playbook.yml -i inventory.yml        says what it would do; changes nothing",
        "#   crossgrade plan --deep ...                                     judges what would be installed, too",
        "#   crossgrade upgrade --playbook playbook.yml -i inventory.yml     does it, or goes back",
        "#",
        "# What was assumed:",
        *(line for text in assumptions(found) for line in _hanging(text)),
        "---",
        f"- name: {quoted(f'Move {found.engine} to CUDA {found.cuda}')}",
        "  hosts: localhost",
        "  vars:",
        *(f"    {line}" if line else "" for line in _variables(found)),
        "",
        "  tasks:",
        *(f"    {line}" if line else "" for line in _tasks(found)),
    ]
    return "\n".join(lines) + "\n"


def _hanging(text: str) -> list[str]:
    first, *more = comment(text, 108)
    return [f"# - {first[2:]}", *(f"#   {line[2:]}" for line in more)]


def _variables(found: Found) -> Iterator[str]:
    server, on_gpu = found.server, "fail" if found.compute_capability else "warn"
    yield "# The store: generations, toolkits, runs. It must lie on the filesystem of the environment."
    yield f"crossgrade_root: {quoted(found.root)}"
    yield "# The path that people and services use. crossgrade turns it into a link to the active generation."
    yield f"working_env: {quoted(found.venv)}"
    yield ""
    yield from _targets(found)
    yield ""
    yield "# The GPU to be served."
    named = f" # {printable(', '.join(found.gpus))}" if found.gpus else " # no GPU answered: an assumption"
    yield f"compute_capability: {quoted(found.compute_capability or COMMON_CAPABILITY)}{named}"
    yield "# What a check does that needs a driver or a GPU and finds none: `fail` on a server that has one."
    yield f"without_gpu: {on_gpu}"
    yield "allowed_loss: 0.05 # the share of output tokens per second that the candidate may lose"
    for secret in server.secrets if server else ():
        yield ""
        yield from comment(f"{secret.where} of the running server, which is not written here: set the environment")
        yield from comment(f"variable {environment_name(secret)} for crossgrade, or give -e @FILE with this variable.")
        yield f"{secret.variable}: \"{{{{ lookup('env', '{environment_name(secret)}') }}}}\""
    yield ""
    yield from _serving(found)


def _targets(found: Found) -> Iterator[str]:
    engine = found.engine
    yield f"cuda_version: {quoted(found.cuda)}"
    now, torch_now = found.versions.get(engine, "none"), found.versions.get("torch", "none")
    yield f"{engine}_version: {quoted(found.target)} # now {printable(now)}"
    if found.target_torch:
        yield f"torch_version: {quoted(found.target_torch)} # now {printable(torch_now)}"
        yield "# ... whose wheels on PyPI are built for this CUDA; the rest follows from what these two ask for."
    yield "# More dists to install: each a line as in requirements.txt."
    if found.requested:
        yield from comment(f"Somebody asked for these by name: {', '.join(found.requested)}.")
    yield "extra_requirements: []"
    if found.python:
        yield "# The interpreter of today. Without it, the one behind crossgrade's own venv."
        yield f"python: {quoted(found.python)}"


def _serving(found: Found) -> Iterator[str]:
    server = found.server
    yield "# How a server under test is started. {python}, {venv}, {host} and {port} are filled in for each start."
    if server is not None:
        where = f" on port {server.port}" + (" of every address" if server.host in EVERYWHERE else "")
        yield from comment(f"As process {server.pid} was started{where}.")
    words: Sequence[str | Secret] = found.start if server is None else server.command
    yield "serving:"
    yield "  command:"
    yield from (f"    - {scalar(word)}" for word in words)
    yield f"  health: {quoted(found.health)}"
    yield "  start_timeout: 1800 # seconds until it must be healthy: a large model loads for long"
    yield "  stop_grace: 60"
    yield f"  needs_gpu: {'true' if _needs_gpu(words) else 'false'}"
    if server is None or not server.environment:
        yield "  environment: {}"
        return
    yield "  environment:"
    yield from (f"    {quoted(name)}: {scalar(value)}" for name, value in server.environment.items())


def _needs_gpu(words: Sequence[str | Secret]) -> bool:
    """Whether a launch line serves from a GPU, which it does unless it asks for another device."""
    line = " ".join(word for word in words if isinstance(word, str)).replace("--device=", "--device ")
    device = line.partition("--device ")[2].split()
    return not device or device[0].startswith("cuda")


def _tasks(found: Found) -> Iterator[str]:
    yield "# What is wrong with the working environment, by name. It stops nothing: `fail_on` names what should."
    yield from task("The faults of the working environment", "environment_check", {"path": '"{{ working_env }}"'})
    yield from _conditions(found)
    yield from task("This server can take the target", "preflight", {
        "cuda": '"{{ cuda_version }}"', "path": '"{{ working_env }}"', "on_not_run": '"{{ without_gpu }}"',
    })  # fmt: skip
    yield from task("Back up the working environment", "venv_backup", {"path": '"{{ working_env }}"'}, "backup")
    yield "# wheels: from PyPI into the store. existing: /usr/local/cuda-VERSION, or `path`."
    yield from task("The CUDA toolkit", "cuda_toolkit", {
        "method": "wheels", "version": '"{{ cuda_version }}"', "components": f"[{', '.join(COMPONENTS)}]",
    }, "toolkit")  # fmt: skip
    requirements = [f"'{found.engine}==' ~ {found.engine}_version"]
    requirements += ["'torch==' ~ torch_version"] if found.target_torch else []
    yield from task("The candidate environment", "python_env", {
        "requirements": f'"{{{{ [{", ".join(requirements)}] + extra_requirements }}}}"',
        **({"python": '"{{ python }}"'} if found.python else {}),
        "prerelease": "allow", "toolkit": '"{{ toolkit.digest }}"',
    }, "candidate")  # fmt: skip
    one = {"generation": '"{{ candidate.generation }}"'}
    yield "# Gates that only read files."
    yield from task("Gate: dists fit each other", "consistency_check", one)
    yield from task("Gate: one CUDA for all", "cuda_check", one)
    yield from task("Gate: every library and symbol is there", "abi_check", {
        **one, "compare_with": '"{{ backup.generation }}"',
    })  # fmt: skip
    if found.require:
        yield "# require: the wheels bring kernels for other GPUs only, too; those are noted."
    yield from task("Gate: there is code for the GPU", "gpu_arch_check", {
        **one, "compute_capability": '"{{ compute_capability }}"',
        **({"require": listed(found.require)} if found.require else {}),
    })  # fmt: skip
    yield from task("Gate: everything imports", "smoke_check", {
        **one, "imports": f"[{', '.join(found.imports)}]", "on_not_run": '"{{ without_gpu }}"',
    })  # fmt: skip
    if has_parser(found.engine):
        yield "# It gives the line that the new version takes, as launch.command."
        unit = found.server.unit if found.server else ""
        yield from task("Gate: the new version takes the launch line", "launch_check", {
            **one, "command": '"{{ serving.command }}"', "environment": '"{{ serving.environment }}"',
            **({"unit": quoted(unit)} if unit else {}),
            **({"user_unit": "true"} if unit and found.server and found.server.user_unit else {}),
        }, "launch")  # fmt: skip
    yield from _window(found, one)


def has_parser(engine: str) -> bool:
    """Whether launch_check knows the parser of this server."""
    from crossgrade.knowledge import table

    return any(row["engine"] == engine for row in table("launch_parsers"))


def _conditions(found: Found) -> Iterator[str]:
    if not found.target:
        yield from task(f"{found.engine}_version is set", "assert", {
            "that": quoted(f"{found.engine}_version | length > 0"),
            "fail_msg": quoted(f"set {found.engine}_version: which one is built for CUDA {found.cuda} is not known"),
        })  # fmt: skip
    if found.server is None:
        yield from task("The launch line is filled in", "assert", {
            "that": quoted(f"'{PLACEHOLDER}' not in serving.command"),
            "fail_msg": quoted(f"no server ran: write the model in place of {PLACEHOLDER} in serving.command"),
        })  # fmt: skip
    elif found.server.secrets:
        yield from task("The secrets of the launch line are set", "assert", {
            "that": "[" + ", ".join(f"{secret.variable} | length > 0" for secret in found.server.secrets) + "]",
            "fail_msg": quoted("a secret is not set: the variables at the top say where each comes from"),
        }, when="not ansible_check_mode # a plan starts no server")  # fmt: skip


def _window(found: Found, one: Mapping[str, str]) -> Iterator[str]:
    server = found.server
    control = ["systemctl", *(["--user"] if server and server.user_unit else [])]
    unit = server.unit if server else ""
    yield "# The maintenance window: servers under test need the GPUs for themselves. Nothing to do where the candidate"
    yield "# is active already."
    yield "- name: Maintenance window"
    yield "  when: candidate.generation != crossgrade_active"
    yield "  block:"
    inner: list[str] = []
    if unit and server is not None:
        inner += ["# Its requests may finish first. When the run goes back, the unit is started again."]
        inner += task("Stop the working server", "drain", {
            "unit": quoted(unit), "port": str(server.port), "timeout": "300",
            **({"user_unit": "true"} if server.user_unit else {}),
        })  # fmt: skip
    elif server is not None:
        inner += [
            "# No systemd unit started it: stop it by hand when the run waits here, and start it again afterwards."
        ]
        inner += task("The working server is stopped", "wait_for", {
            "port": str(server.port), "state": "stopped", "timeout": "900",
        })  # fmt: skip
    command, compared = '"{{ serving.command }}"', {"server": '"{{ serving }}"'}
    if has_parser(found.engine):
        command = '"{{ launch.command }}"'
        compared = {
            "server": "\"{{ serving | combine({'command': launch.command}) }}\"",
            "baseline_command": '"{{ serving.command }}"',
        }
    inner += task("Gate: the server starts and answers", "server", {
        **one, "command": command, "health": '"{{ serving.health }}"',
        "start_timeout": '"{{ serving.start_timeout }}"', "stop_grace": '"{{ serving.stop_grace }}"',
        "environment": '"{{ serving.environment }}"', "needs_gpu": '"{{ serving.needs_gpu }}"',
        "on_not_run": '"{{ without_gpu }}"',
    })  # fmt: skip
    inner += task("Gate: the same answers as before", "accuracy", {
        **one, **compared, "concurrencies": "[1, 8]", "on_not_run": '"{{ without_gpu }}"',
    })  # fmt: skip
    inner += task("Gate: no slower than the working environment", "benchmark", {
        **one, **compared, "allowed_loss": '"{{ allowed_loss }}"',
        "concurrency": "8", "requests": "64", "max_tokens": "256", "timeout": "600",
        "on_not_run": '"{{ without_gpu }}"',
    })  # fmt: skip
    activate = dict(one)
    if unit:
        activate["restart"] = listed([*control, "restart", unit])
    inner += task("Activate the candidate", "activate", activate, last=not unit)
    if unit and server is not None:
        host = "127.0.0.1" if server.host in EVERYWHERE else server.host
        host = f"[{host}]" if ":" in host and host[0] != "[" else host
        inner += [
            "    # It must stay healthy after the restart, or everything goes back and the unit is restarted again.",
            "    healthy:",
            f"      url: {quoted(f'http://{host}:{server.port}/health')}",
            '      start_timeout: "{{ serving.start_timeout }}"',
            *([] if server.user_unit else [f"      unit: {quoted(unit)}"]),
        ]
    yield from (f"    {line}" if line else "" for line in inner)
    if unit:
        yield "  always:"
        yield "    # Whatever failed above: the server runs again. After a kill, `crossgrade status` says what to do."
        started = task("The server runs", "command", {"argv": listed([*control, "start", unit])}, last=True)
        yield from (f"    {line}" for line in started)
