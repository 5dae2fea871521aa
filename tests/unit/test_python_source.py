"""What a module imports and when, beside what Python itself makes of the same source."""

from __future__ import annotations

import ast
import sysconfig
from pathlib import Path

import pytest

from crossgrade.inspect.mentions import names_file
from crossgrade.inspect.python_source import Surroundings, When, imports_of

HERE = Surroundings((3, 11))


def found(source: str, module: str = "package.module", surroundings: Surroundings = HERE) -> dict[str, When]:
    items = imports_of(source.encode(), module, is_package=False, surroundings=surroundings)
    return {f"{item.module}:{','.join(item.names)}" if item.names else item.module: item.when for item in items}


CASES = {
    "import a, b.c as d": {"a": When.ALWAYS, "b.c": When.ALWAYS},
    "from .near import (\n    one,  # a word\n    two as three,\n)": {"package.near:one,two": When.ALWAYS},
    "from .. import far": {},
    '"""import never"""\nx = "import no"\n# import nor\nimport yes': {"yes": When.ALWAYS},
    "def f(\n    a,\n):\n    import late": {"late": When.LATER},
    "class C:\n    import always\n    async def f(self):\n        import late": {
        "always": When.ALWAYS,
        "late": When.LATER,
    },
    "try:\n    import maybe\nexcept ImportError:\n    maybe = None": {"maybe": When.TOLERATED},
    "try:\n    import must\nexcept ImportError as error:\n    raise RuntimeError from error": {"must": When.ALWAYS},
    "try:\n    import must\nexcept KeyError:\n    pass": {"must": When.ALWAYS},
    "try: import one\nexcept Exception: import other": {"one": When.TOLERATED, "other": When.PERHAPS},
    "try:\n    pass\nfinally:\n    import sure": {"sure": When.ALWAYS},
    "if known():\n    import one\nelif other():\n    import two\nelse:\n    import three": {
        "one": When.PERHAPS,
        "two": When.PERHAPS,
        "three": When.PERHAPS,
    },
    "if is_hip():\n    import hip\nelse:\n    import cuda": {"hip": When.NEVER, "cuda": When.ALWAYS},
    "if _is_cuda:\n    import ours\nif torch.xpu.is_available():\n    import theirs": {
        "ours": When.ALWAYS,
        "theirs": When.NEVER,
    },
    "if not (is_npu() or is_cuda()):\n    import neither": {"neither": When.NEVER},
    'if sys.platform == "win32":\n    import winreg\nelif sys.platform == "linux":\n    import ours': {
        "winreg": When.NEVER,
        "ours": When.ALWAYS,
    },
    "if sys.version_info >= (3, 11):\n    import tomllib\nelse:\n    import tomli": {
        "tomllib": When.ALWAYS,
        "tomli": When.NEVER,
    },
    "if TYPE_CHECKING:\n    import types_only": {"types_only": When.NEVER},
    "if TYPE_CHECKING:\n    from . import part\ndef __getattr__(name): ...": {"package:part": When.PERHAPS},
    'if __name__ == "__main__":\n    import program': {"program": When.NEVER},
    "for x in y:\n    z = (1\n  if x else 2)\n    import looped": {"looped": When.ALWAYS},
    "import \\\n    folded": {"folded": When.ALWAYS},
    "def f():\n    try:\n        import late\n    except ImportError:\n        pass": {"late": When.TOLERATED},
}


@pytest.mark.parametrize("source", CASES)
def test_when_an_import_is_executed(source: str) -> None:
    assert found(source) == CASES[source]


def test_an_entry_point_is_run_itself() -> None:
    main = Surroundings((3, 11), is_main=True)
    assert found('if __name__ == "__main__":\n    import program', surroundings=main) == {"program": When.ALWAYS}


def test_an_import_in_a_function_is_told_apart_from_one_that_is_only_tolerated() -> None:
    source = b"try:\n    import a\nexcept ImportError: pass\n"
    source += b"def f():\n    try:\n        import b\n    except ImportError: pass"
    items = imports_of(source, "m", is_package=False, surroundings=HERE)
    assert [(item.module, item.in_function) for item in items] == [("a", False), ("b", True)]


def _by_syntax_tree(tree: ast.Module) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add(str(node.module))
    return names


def test_it_finds_what_the_syntax_tree_of_the_standard_library_has() -> None:
    """Some 200 modules; several statements on one line are what is known to be lost."""
    library = Path(sysconfig.get_paths()["stdlib"])
    files = list(library.glob("*.py")) + list(library.glob("asyncio/*.py")) + list(library.glob("json/*.py"))
    lost = []
    for path in files:
        source = path.read_bytes()
        items = imports_of(source, path.stem, is_package=False, surroundings=HERE)
        ours = {item.module for item in items}
        theirs = _by_syntax_tree(ast.parse(source))
        lost += [f"{path.name}: {name}" for name in theirs - ours if f"; import {name}" not in source.decode()]
        absolute = {item.module for item in items if not item.module.startswith(path.stem)}
        lost += [f"{path.name}: not there: {name}" for name in absolute - theirs if name != path.stem and name]
    assert len(files) > 150
    assert lost == []


@pytest.mark.parametrize(
    ("text", "stem", "expected"),
    [
        ("libtorchcodec_core{", "libtorchcodec_core7", True),
        ("libtorchcodec_core{", "libtorchcodec_pybind_ops7", False),
        ("common_ops.*", "common_ops", True),
        ("{/lib/libfoo.so", "libfoo", True),
        ("_C*.so", "_C", True),
        ("_C*.so", "_Csomething", False),
        ("hook_mode_torch", "hook_mode_torch_cu12", True),
        ("hook_mode", "hook_mode_torch", False),
        ("libtorch", "libtorch_cuda", False),
        ("*.so", "anything", False),
    ],
)
def test_which_strings_name_a_library(text: str, stem: str, expected: bool) -> None:
    assert names_file(text, stem) is expected
