"""The house rules that are read off the source: each is a function from a tree to the places that break it.

A rule sees text only: nothing is imported. What a rule cannot see in text (a set that came from a call, say) is
found by the golden logs under two hash seeds.
"""

import ast
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

ROOTS = ("events", "projections", "services")
CORE = ("projections/muster/cluster", "services/muster/engine")
LINES_MAX = 600
FUNCTION_LINES_MAX = 100

BANNED_IMPORTS = frozenset(
    [
        "asyncio",
        "concurrent",
        "datetime",
        "glob",
        "io",
        "locale",
        "logging",
        "multiprocessing",
        "networkx",
        "os",
        "pathlib",
        "platform",
        "queue",
        "random",
        "secrets",
        "select",
        "selectors",
        "shutil",
        "signal",
        "socket",
        "ssl",
        "subprocess",
        "sys",
        "tempfile",
        "threading",
        "time",
        "urllib",
        "uuid",
        "weakref",
    ]
)
BANNED_CALLS = {"open", "print", "input", "hash", "id", "float", "exec", "eval", "__import__", "globals", "vars"}
NUMPY_UNORDERED = {"partition", "argpartition", "unique", "unique_values", "unique_counts", "unique_inverse", "unique_all"}
NUMPY_FLOAT = frozenset(
    [
        "float16",
        "float32",
        "float64",
        "double",
        "half",
        "single",
        "true_divide",
        "divide",
        "mean",
        "average",
        "std",
        "var",
        "linspace",
        "random",
    ]
)
IMPORTED_AS = {"pyyaml": "yaml", "nvidia-ml-py": "pynvml", "faust-streaming": "faust", "prometheus-client": "prometheus_client"}
SET_METHODS = {"union", "intersection", "difference", "symmetric_difference"}

Finding = str


def modules(root: Path, folders: tuple[str, ...] = ROOTS) -> Iterator[Path]:
    """Every Python file of these folders, in order."""
    for folder in folders:
        yield from sorted((root / folder).rglob("*.py"))


def core_is_pure(root: Path) -> list[Finding]:
    """No clock, environment, random source, file, input or output in the core; no `hash()`, no `id()`."""
    found = []
    for path, tree in _parsed(root, CORE):
        for node in ast.walk(tree):
            for name in _imported(node):
                if name.split(".")[0] in BANNED_IMPORTS:
                    found.append(_at(root, path, node, f"imports {name}"))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in BANNED_CALLS:
                found.append(_at(root, path, node, f"calls {node.func.id}()"))
            if isinstance(node, (ast.AsyncFunctionDef, ast.Await, ast.AsyncFor, ast.AsyncWith)):
                found.append(_at(root, path, node, "is asynchronous"))
            if isinstance(node, ast.Global):
                found.append(_at(root, path, node, "writes a global"))
    return found


def core_has_no_floats(root: Path) -> list[Finding]:
    """Integers only in the core: no float literal, no true division, no float type, no float of NumPy's."""
    found = []
    for path, tree in _parsed(root, CORE):
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, (float, complex)):
                found.append(_at(root, path, node, f"has the float {node.value}"))
            if isinstance(node, (ast.BinOp, ast.AugAssign)) and isinstance(node.op, ast.Div):
                found.append(_at(root, path, node, "divides with /"))
            if isinstance(node, ast.Name) and node.id == "float":
                found.append(_at(root, path, node, "names float"))
            if _numpy_name(node) in NUMPY_FLOAT:
                found.append(_at(root, path, node, f"uses np.{_numpy_name(node)}"))
    return found


def core_iterates_no_sets(root: Path) -> list[Finding]:
    """A set's order follows the hash seed: in the core none is looped over, listed or unpacked."""
    found = []
    for path, tree in _parsed(root, CORE):
        scopes = list(_scopes(tree))
        attributes = {name for scope in scopes for name in _set_names(scope) if name.startswith(".")}
        for scope in scopes:
            sets = _set_names(scope) | attributes
            for node in _own_nodes(scope):
                for iterated in _iterated(node):
                    if _is_set(iterated, sets):
                        found.append(_at(root, path, iterated, "takes the order of a set"))
    return found


def core_sorts_stably(root: Path) -> list[Finding]:
    """NumPy orders ties differently on other processors: sorts say kind="stable"; no partition, no unique."""
    found = []
    for path, tree in _parsed(root, CORE):
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            name, numpy = node.func.attr, _numpy_name(node.func) != ""
            kind = next((keyword.value for keyword in node.keywords if keyword.arg == "kind"), None)
            stable = isinstance(kind, ast.Constant) and kind.value == "stable"
            if name in NUMPY_UNORDERED and (numpy or name != "unique"):
                found.append(_at(root, path, node, f"calls {name}"))
            if (name == "argsort" or (name == "sort" and numpy)) and not stable:
                found.append(_at(root, path, node, f'calls {name} without kind="stable"'))
    return found


def files_are_short(root: Path) -> list[Finding]:
    """A file has at most 600 lines and a function at most 100."""
    found = []
    for path, tree in _parsed(root, (*ROOTS, "tests")):
        lines = len(path.read_text().splitlines())
        if lines > LINES_MAX:
            found.append(f"{path.relative_to(root)}: has {lines} lines")
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > FUNCTION_LINES_MAX:
                    found.append(_at(root, path, node, f"{node.name} has {length} lines"))
    return found


def modules_say_what_they_are(root: Path) -> list[Finding]:
    """Each module begins with a docstring, and each package has a py.typed."""
    found = [f"{path.relative_to(root)}: has no docstring" for path, tree in _parsed(root, ROOTS) if not ast.get_docstring(tree)]
    for folder in ROOTS:
        for package in sorted((root / folder / "muster").glob("*/")):
            if package.name != "__pycache__":
                if not (package / "py.typed").exists():
                    found.append(f"{package.relative_to(root)}: has no py.typed")
                if not (package / "__init__.py").exists():
                    found.append(f"{package.relative_to(root)}: has no __init__.py")
    return found


def muster_is_a_namespace(root: Path) -> list[Finding]:
    """Three folders share the package `muster`; an `__init__.py` in one would hide the two others."""
    return [
        f"{folder}/muster/__init__.py: must not be there"
        for folder in ROOTS
        if (root / folder / "muster" / "__init__.py").exists()
    ]


def no_file_is_dead(root: Path) -> list[Finding]:
    """Each module is named by another one (imported, or loaded by its name), or is an entry point."""
    names = {_module(root, path): path for path in modules(root)}
    used = {"muster." + script.split(":")[0].removeprefix("muster.") for script in _scripts(root)}
    for path, tree in _parsed(root, ROOTS):
        own = _module(root, path)
        package = own if path.name == "__init__.py" else own.rpartition(".")[0]
        mentioned = {name for node in ast.walk(tree) for name in _mentioned(node, package)}
        used.update(name for name in mentioned if name != own)
        if path.name == "__init__.py" and "iter_modules" in path.read_text():
            used.update(name for name in names if name.startswith(own + "."))
    return [
        f"{path.relative_to(root)}: nothing imports it"
        for name, path in sorted(names.items())
        if name not in used and path.name not in ("__init__.py", "__main__.py")
    ]


def every_dependency_is_imported(root: Path) -> list[Finding]:
    """What an installation brings in, something imports."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    extras: dict[str, list[str]] = project.get("optional-dependencies", {})
    dependencies = [*project["dependencies"], *(dependency for extra in extras.values() for dependency in extra)]
    names = [re.split(r"[<>=~!\[ ]", dependency)[0] for dependency in dependencies]
    names = [name for name in names if name != project["name"]]
    imported = {name.split(".")[0] for _, tree in _parsed(root, ROOTS) for node in ast.walk(tree) for name in _imported(node)}
    return [f"pyproject.toml: {name} is imported nowhere" for name in names if IMPORTED_AS.get(name, name) not in imported]


def nothing_is_left_for_later(root: Path) -> list[Finding]:
    """No placeholder: what is not there yet is an issue, not a comment or a stub."""
    words = re.compile(r"\b(?:TODO|FIXME|XXX|HACK)\b|NotImplemented(?:Error)?\b")
    found = []
    for path in modules(root):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if word := words.search(line):
                found.append(f"{path.relative_to(root)}:{number}: says {word[0]}")
    return found


RULES: tuple[Callable[[Path], list[Finding]], ...] = (
    core_is_pure,
    core_has_no_floats,
    core_iterates_no_sets,
    core_sorts_stably,
    files_are_short,
    modules_say_what_they_are,
    muster_is_a_namespace,
    no_file_is_dead,
    every_dependency_is_imported,
    nothing_is_left_for_later,
)


def _parsed(root: Path, folders: tuple[str, ...]) -> Iterator[tuple[Path, ast.Module]]:
    for path in modules(root, folders):
        yield path, ast.parse(path.read_text(), str(path))


def _at(root: Path, path: Path, node: ast.AST, what: str) -> Finding:
    return f"{path.relative_to(root)}:{getattr(node, 'lineno', 0)}: {what}"


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []


def _numpy_name(node: ast.AST) -> str:
    """The last name of `np.NAME`, else an empty string."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("np", "numpy"):
        return node.attr
    return ""


def _scopes(tree: ast.Module) -> Iterator[ast.AST]:
    yield tree
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            yield node


def _own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """What stands in a scope and not in one inside it."""
    waiting = list(ast.iter_child_nodes(scope))
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            waiting.extend(ast.iter_child_nodes(node))


def _set_names(scope: ast.AST) -> set[str]:
    """Names that a scope binds to a set, by value or by annotation; `self.NAME` counts as `.NAME`."""
    names: set[str] = set()
    for node in _own_nodes(scope):
        if isinstance(node, ast.Assign) and _is_set(node.value, names):
            names.update(_target(target) for target in node.targets)
        if isinstance(node, ast.AnnAssign) and (
            _is_set_type(node.annotation) or (node.value is not None and _is_set(node.value, names))
        ):
            names.add(_target(node.target))
        if isinstance(node, ast.arg) and node.annotation is not None and _is_set_type(node.annotation):
            names.add(node.arg)
    return names - {""}


def _target(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return "." + node.attr if isinstance(node, ast.Attribute) else ""


def _is_set_type(node: ast.AST) -> bool:
    base = node.value if isinstance(node, ast.Subscript) else node
    return isinstance(base, ast.Name) and base.id in ("set", "frozenset", "Set", "AbstractSet")


def _is_set(node: ast.AST, names: set[str]) -> bool:
    if isinstance(node, (ast.Set, ast.SetComp)):
        return True
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Name):
            return node.func.id in ("set", "frozenset")
        return isinstance(node.func, ast.Attribute) and node.func.attr in SET_METHODS
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.BitOr, ast.BitAnd, ast.Sub, ast.BitXor)):
        return _is_set(node.left, names) or _is_set(node.right, names)
    return _target(node) in names and _target(node) != ""


def _iterated(node: ast.AST) -> list[ast.AST]:
    """The expressions whose order this node takes."""
    if isinstance(node, (ast.For, ast.comprehension)):
        return [node.iter]
    if isinstance(node, ast.Starred):
        return [node.value]
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("list", "tuple", "iter", "enumerate", "next")
    ):
        return list(node.args[:1])
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "pop" and not node.args:
        return [node.func.value]
    return []


def _module(root: Path, path: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _mentioned(node: ast.AST, package: str) -> Iterator[str]:
    """Modules that a node imports or names in a string."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        parent = package.rsplit(".", node.level - 1)[0] if node.level > 1 else package
        module = node.module or "" if not node.level else parent + ("." + node.module if node.module else "")
        yield module
        yield from (f"{module}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("muster."):
        yield node.value


def _scripts(root: Path) -> list[str]:
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    return list(project.get("scripts", {}).values())
