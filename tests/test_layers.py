"""A lower layer never imports a higher one."""

import ast
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import sb3_extra_buffers

PACKAGE = "sb3_extra_buffers"
ROOT = Path(__file__).parents[1] / "src" / PACKAGE

# From the bottom up: a layer may import those before it. A new package is entered here.
LAYERS = (
    "_support",
    "_spaces",
    "codecs",
    "storage",
    "compressed",
    "gpu_buffers",
    "testing",
    "recording",
    "distributed",
    "datasets",
    "training_utils",
    "cli",
    "__main__",
)
# The layers that stand on their own, without SB3.
WITHOUT_SB3 = ("_support", "codecs", "storage")

# Where a layer that has others above it imports a name that is computed: optional libraries, buffers that the package
# itself names, and names that a package imports at first use.
COMPUTED = {"_support", "codecs.zstd", "compressed.choose", "distributed"}
HAS_OTHERS_ABOVE = ("_support", "codecs", "storage", "compressed", "testing", "gpu_buffers", "distributed")

MODULES = sorted(ROOT.rglob("*.py"))
COMPILED = sorted(ROOT.rglob("*.pyx"))
NATIVE = ROOT / "_native"
_IMPORTERS = {"import_module", "__import__", "resolve_name"}


def module_name(path: Path) -> str:
    """The dotted name of a source file."""
    parts = (PACKAGE, *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _as_run(tree: ast.Module) -> ast.Module:
    """Without what only type checkers read."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = [ast.Pass()]
    return tree


def imported_names(source: str, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of every import, those inside functions and ``import_module("...")`` included."""
    package = module if is_package else module.rpartition(".")[0]
    for node in ast.walk(_as_run(ast.parse(source)) if module == PACKAGE else ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")
                parents = parents[: len(parents) - node.level + 1]
                base = ".".join([*parents, base] if base else parents)
            # `from package import layer` names the layer only in the alias.
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            name = node.args[0].value
            if called in _IMPORTERS and isinstance(name, str):
                yield node.lineno, package + name.replace(":", ".") if name.startswith(".") else name.replace(":", ".")


def computed_imports(source: str) -> list[int]:
    """Lines that import what only the running program knows, which the other checks cannot see."""
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    found = []
    for node in calls:
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called in _IMPORTERS and not (node.args and isinstance(node.args[0], ast.Constant)):
            found.append(node.lineno)
    return found


def layer_of(name: str) -> str | None:
    """The layer a dotted name belongs to; None outside the package, and for what the package itself holds."""
    parts = name.split(".")
    if parts[0] != PACKAGE or len(parts) == 1 or (parts[1].startswith("__") and parts[1] not in LAYERS):
        return None
    return parts[1]


def violations(source: str, module: str, is_package: bool) -> list[str]:
    """What a module imports that it must not."""
    layer = layer_of(module)
    found = []
    for line, name in imported_names(source, module, is_package):
        target = layer_of(name)
        if target is not None and target not in LAYERS:
            found.append(f"{module}:{line} imports {name}, which is in no layer")
        elif target is not None and layer is None:
            found.append(f"{module}:{line} imports {name}: the package itself imports no layer")
        elif target is not None and LAYERS.index(target) > LAYERS.index(str(layer)):
            found.append(f"{module}:{line} imports {name}: {layer} is below {target}")
        if layer in WITHOUT_SB3 and name.split(".")[0] in {"stable_baselines3", "sb3_contrib"}:
            found.append(f"{module}:{line} imports {name}: {layer} does without SB3")
    return found


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_imports_go_down(path: Path) -> None:
    module = module_name(path)
    layer = layer_of(module)
    assert layer is None or layer in LAYERS, f"enter {module} in LAYERS"
    assert violations(path.read_text(encoding="utf-8"), module, path.name == "__init__.py") == []


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_computed_imports_are_known(path: Path) -> None:
    module = module_name(path)
    lines = computed_imports(path.read_text(encoding="utf-8")) if layer_of(module) in HAS_OTHERS_ABOVE else []
    assert not lines or module.removeprefix(PACKAGE + ".") in COMPUTED, f"{module}:{lines} imports what no check can see"


def python_of(source: str) -> str:
    """The imports of a Cython module that are not of C, as Python."""
    return "\n".join(line for line in source.splitlines() if line.startswith(("import ", "from ")) and " cimport " not in line)


@pytest.mark.parametrize("path", COMPILED, ids=module_name)
def test_compiled_modules_import_down_too(path: Path) -> None:
    module = module_name(path)
    assert layer_of(module) in LAYERS
    source = path.read_text(encoding="utf-8")
    assert len(python_of(source).splitlines()) >= 2
    assert violations(python_of(source), module, False) == []
    assert path.with_suffix(".pyi").exists(), "what type checkers know of it"


def test_the_core_knows_nothing_of_python() -> None:
    """It is C alone, so that other languages, fuzzers and sanitizers can use it; and only the storage layer is bound to it."""
    sources = [path for path in NATIVE.rglob("*") if path.suffix in (".c", ".h", ".inc")]
    assert len(sources) > 8 and not list(NATIVE.rglob("*.py"))
    for path in sources:
        included = [line for line in path.read_text(encoding="utf-8").splitlines() if line.lstrip().startswith("#include")]
        assert not [line for line in included if "Python.h" in line or "numpy" in line], path
    assert {layer_of(module_name(path)) for path in COMPILED} == {"storage"}


def test_buffers_by_option_exist() -> None:
    """What lower layers look up by name instead of importing it."""
    for option, place in sb3_extra_buffers.BUFFERS_BY_OPTION.items():
        assert option.isidentifier() and callable(pkgutil.resolve_name(place))
        assert layer_of(place.replace(":", ".")) in LAYERS


def test_a_computed_import_is_seen() -> None:
    assert computed_imports("import_module('codecs')\nimportlib.import_module(name)\npkgutil.resolve_name(names[0])") == [2, 3]


@pytest.mark.parametrize(
    ("module", "is_package", "source"),
    [
        ("codecs.rle", False, "import sb3_extra_buffers.storage"),
        ("codecs.rle", False, "from sb3_extra_buffers import storage"),
        ("codecs.rle", False, "from ..storage.array import CompressedArray"),
        ("codecs", True, "from ..storage import CompressedArray"),
        ("codecs", True, "from .. import storage"),
        ("storage.log.segment", False, "from ...compressed import base"),
        ("storage", True, "def late():\n    from ..compressed import base"),
        ("storage", True, "import importlib\nimportlib.import_module('sb3_extra_buffers.compressed')"),
        ("storage", True, "from stable_baselines3.common import buffers"),
        ("compressed.choose", False, "pkgutil.resolve_name('sb3_extra_buffers.gpu_buffers:x')"),
        ("compressed.base", False, "from ..gpu_buffers import x"),
        ("gpu_buffers.base", False, "from ..recording import x"),
        ("training_utils.atari", False, "from ..cli import main"),
        ("compressed.base", False, "from .. import elsewhere"),
        ("cli.app", False, "from sb3_extra_buffers import __main__"),
        ("", True, "from sb3_extra_buffers.codecs import x"),
        ("", True, "if TYPE_CHECKING:\n    from .codecs import x\nelse:\n    from .storage import x"),
        ("codecs", True, "if TYPE_CHECKING:\n    from ..storage import x"),
    ],
)
def test_the_check_sees_an_upward_import(module: str, is_package: bool, source: str) -> None:
    assert len(violations(source, f"{PACKAGE}.{module}".rstrip("."), is_package)) == 1


@pytest.mark.parametrize(
    ("module", "is_package", "source"),
    [
        ("compressed.base", False, "from ..storage import CompressedArray\nfrom ..codecs.rle import Rle"),
        ("compressed", True, "from .base import Mixin\nfrom . import base"),
        ("compressed.methods", True, "from ..base import Mixin"),
        ("cli", False, "from . import __version__\nfrom .training_utils import atari"),
        ("__main__", False, "from sb3_extra_buffers.cli import main"),
        ("cli.demo", False, "from .plot import draw\nfrom sb3_extra_buffers import __version__"),
        ("storage.array", False, "import numpy as np\nimport storage, codecs"),
        ("", True, "if TYPE_CHECKING:\n    from sb3_extra_buffers.compressed import *"),
    ],
)
def test_the_check_lets_a_downward_import_be(module: str, is_package: bool, source: str) -> None:
    assert violations(source, f"{PACKAGE}.{module}".rstrip("."), is_package) == []
