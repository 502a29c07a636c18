#!/usr/bin/env python3
"""Print figures of the source beside those of model codebases, measured by AST.

    python tools/house.py [FOLDER]    default: src/fedtailor

Models, measured by this script: fedjax, posteriors, optax, pfl-research, diffrax (tests left out).

For orientation, not as limits: reaching one mechanically is worse than missing it.
"""

import ast
import re
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

Import = ast.Import | ast.ImportFrom
Function = ast.FunctionDef | ast.AsyncFunctionDef

LONGEST_LINE = 100
MANY_ARGUMENTS = 7
ARGUMENTS_TO_NAME = 3
"""From how many arguments on the docstring of a public function should name them."""

IRREGULAR = (
    "made|taken|drawn|said|told|kept|held|sent|found|shown|known|written|chosen|given|woven"
    "|begun|built|laid_out|seen|done"
)
OTHER_WORDS = "seed|embed|feed|need|speed"
ADJECTIVES = "weighted|nested|padded|stacked|masked|shared|fixed|mixed|sorted"
PARTICIPLE = re.compile(rf"_{{0,2}}(?:[a-z]{{3,}}ed|{IRREGULAR})(?:_|$)")
NOT_PARTICIPLE = re.compile(rf"_{{0,2}}(?:{OTHER_WORDS}|{ADJECTIVES})(?:_|$)")
WORDS = re.compile(r"\b(?:so many|somebody|nobody|everybody|whoever)\b", re.IGNORECASE)
PRIVATE = re.compile(r"_(?!_)")
PRIVATE_TORCH = re.compile(r"torch\._(?!_)")


class Counts(NamedTuple):
    """What is counted in one file."""

    module: str
    path: Path
    room: str  # the folder below the root that it is in
    lines: int  # neither blank nor comments
    long_lines: int
    statements: int  # without docstrings
    definitions: set[str]  # functions and classes at module level
    imports: set[str]  # modules of the package, imported at module level
    inner_imports: int
    tuple_assignments: int
    conditionals: int
    functions: int
    participles: int
    many_arguments: int
    to_document: int
    undocumented: int
    private_torch: bool
    words: int


class Figure(NamedTuple):
    """A row of the table."""

    what: str
    ours: str | float
    models: str = ""


def name_module(path: Path, root: Path) -> str:
    """Return the dotted name of a file of the package at the root."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join((root.name, *parts)).removesuffix(".__init__")


def name_room(path: Path, root: Path) -> str:
    """Return the folder below the root that a file is in."""
    parts = path.relative_to(root).parts
    return parts[0] if len(parts) > 1 else "(root)"


def select_code(text: str) -> list[str]:
    """Return the lines that are neither blank nor comments."""
    rows = [row for row in text.splitlines() if row.strip()]
    return [row for row in rows if not row.strip().startswith("#")]


def is_docstring(node: ast.AST) -> bool:
    """Tell whether a statement is nothing but a string."""
    if not isinstance(node, ast.Expr):
        return False
    return isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def count_statements(nodes: Iterable[ast.AST]) -> int:
    """Count the statements, leaving docstrings out."""
    return sum(isinstance(node, ast.stmt) and not is_docstring(node) for node in nodes)


def collect_definitions(tree: ast.Module) -> set[str]:
    """Return the names of functions and classes at module level."""
    kinds = (ast.FunctionDef, ast.ClassDef)
    return {node.name for node in tree.body if isinstance(node, kinds)}


def resolve_base(node: ast.ImportFrom, module: str, path: Path) -> str:
    """Return the absolute name of what a `from` import takes names from."""
    base = node.module or ""
    if not node.level:
        return base
    above = module.split(".")
    if path.name != "__init__.py":
        above.pop()
    parts = above[: len(above) - node.level + 1]
    if base:
        parts.append(base)
    return ".".join(parts)


def collect_targets(imports: Iterable[Import], module: str, path: Path) -> set[str]:
    """Return the absolute names of everything that may be a module in imports of a file."""
    targets: set[str] = set()
    for node in imports:
        if isinstance(node, ast.Import):
            targets.update(alias.name for alias in node.names)
            continue
        base = resolve_base(node, module, path)
        targets.add(base)
        targets.update(f"{base}.{alias.name}" for alias in node.names)
    return targets


def is_private_torch(node: ast.AST) -> bool:
    """Tell whether a node is a private attribute of something in torch."""
    if not isinstance(node, ast.Attribute) or not PRIVATE.match(node.attr):
        return False
    return ast.unparse(node).startswith("torch.")


def is_tuple_assignment(node: ast.AST) -> bool:
    """Tell whether a node assigns a tuple of values to a tuple of names."""
    if not isinstance(node, ast.Assign):
        return False
    return isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple)


def is_participle(name: str) -> bool:
    """Tell whether the name of a function begins with a participle."""
    return bool(PARTICIPLE.match(name)) and not NOT_PARTICIPLE.match(name)


def list_arguments(function: Function) -> list[str]:
    """Return the names of the arguments, without self, cls, *args and **kwargs."""
    arguments = function.args.posonlyargs + function.args.args + function.args.kwonlyargs
    return [argument.arg for argument in arguments if argument.arg not in ("self", "cls")]


def should_name_arguments(function: Function) -> bool:
    """Tell whether a function is public and has enough arguments to be named in its docstring."""
    if function.name.startswith("_"):
        return False
    return len(list_arguments(function)) >= ARGUMENTS_TO_NAME


def names_arguments(function: Function) -> bool:
    """Tell whether the docstring of a function names each of its arguments."""
    docstring = ast.get_docstring(function) or ""
    return all(re.search(rf"\b{name}\b", docstring) for name in list_arguments(function))


def measure_file(path: Path, root: Path, modules: Collection[str]) -> Counts:
    """Count everything in one file of a package that has these modules."""
    text = path.read_text()
    tree = ast.parse(text)
    nodes = list(ast.walk(tree))
    module = name_module(path, root)
    code = select_code(text)
    imports = [node for node in nodes if isinstance(node, Import)]
    outer_imports = [node for node in imports if node in tree.body]
    targets = collect_targets(imports, module, path)
    outer_targets = collect_targets(outer_imports, module, path)
    functions = [node for node in nodes if isinstance(node, Function)]
    to_document = [function for function in functions if should_name_arguments(function)]
    private_import = any(PRIVATE_TORCH.match(target) for target in targets)
    return Counts(
        module=module,
        path=path,
        room=name_room(path, root),
        lines=len(code),
        long_lines=sum(len(row) > LONGEST_LINE for row in code),
        statements=count_statements(nodes),
        definitions=collect_definitions(tree),
        imports=outer_targets.intersection(modules) - {module},
        inner_imports=len(imports) - len(outer_imports),
        tuple_assignments=sum(is_tuple_assignment(node) for node in nodes),
        conditionals=sum(isinstance(node, ast.IfExp) for node in nodes),
        functions=len(functions),
        participles=sum(is_participle(function.name) for function in functions),
        many_arguments=sum(len(list_arguments(node)) >= MANY_ARGUMENTS for node in functions),
        to_document=len(to_document),
        undocumented=sum(not names_arguments(function) for function in to_document),
        private_torch=private_import or any(is_private_torch(node) for node in nodes),
        words=len(WORDS.findall(text)),
    )


def measure_package(root: Path) -> list[Counts]:
    """Count everything in each Python file below a folder."""
    paths = sorted(root.rglob("*.py"))
    modules = {name_module(path, root) for path in paths}
    return [measure_file(path, root, modules) for path in paths]


def count_files_by_folder(files: Sequence[Counts]) -> Counter[Path]:
    """Count the files of each folder, leaving __init__.py out."""
    folders: Counter[Path] = Counter()
    for file in files:
        folders[file.path.parent] += file.path.name != "__init__.py"
    return folders


def count_statements_by_room(files: Sequence[Counts]) -> Counter[str]:
    """Count the statements of each folder right below the root."""
    rooms: Counter[str] = Counter()
    for file in files:
        rooms[file.room] += file.statements
    return rooms


def measure_depth(imports: dict[str, set[str]]) -> int:
    """Return the length of the longest chain of imports (modules in a cycle count once)."""
    known: dict[str, int] = {}

    def descend(module: str, path: tuple[str, ...]) -> int:
        """Return the length of the longest chain from a module that a path has led to."""
        if module in path:
            return 0
        if module not in known:
            longer = (*path, module)
            below = [descend(target, longer) for target in sorted(imports[module])]
            known[module] = 1 + max(below, default=0)
        return known[module]

    return max(descend(module, ()) for module in imports)


def divide(part: int, whole: int, *, per: int = 1, digits: int = 1) -> float:
    """Return the part in `per` units of the whole, rounded; 0 if the whole is 0."""
    return round(per * part / max(1, whole), digits)


def describe_layout(files: Sequence[Counts], root: Path) -> list[Figure]:
    """Return the figures about size, folders and imports."""
    lines = sum(file.lines for file in files)
    statements = sum(file.statements for file in files)
    sizes = f"{len(files)}, {lines}, {statements}"
    folders = count_files_by_folder(files)
    depth = measure_depth({file.module: file.imports for file in files})
    inner_imports = sum(file.inner_imports for file in files)
    return [
        Figure("files, code lines, statements", sizes, "20-115, 3,295-18,627, 968-6,047"),
        Figure("statements a code line", divide(statements, lines, digits=2), "0.28-0.44"),
        Figure("loose files at the root", folders[root], "0-15"),
        Figure("fullest folder", max(folders.values()), "5-34"),
        Figure("import depth (at module level)", depth, "6-16"),
        Figure("imports inside functions", inner_imports, "0-29"),
    ]


def describe_lines(files: Sequence[Counts]) -> list[Figure]:
    """Return the figures about what is on a line."""
    lines = sum(file.lines for file in files)
    long_lines = divide(sum(file.long_lines for file in files), lines, per=100)
    tuples = divide(sum(file.tuple_assignments for file in files), lines, per=1000)
    conditionals = divide(sum(file.conditionals for file in files), lines, per=1000)
    return [
        Figure("lines over 100 characters, %", long_lines, "0.1-1.1"),
        Figure("tuple assignments per 1,000 lines", tuples, "0-0.9"),
        Figure("conditional expressions per 1,000 lines", conditionals, "1.8-8.2"),
    ]


def describe_names(files: Sequence[Counts]) -> list[Figure]:
    """Return the figures about the names of functions and classes."""
    functions = sum(file.functions for file in files)
    participles = divide(sum(file.participles for file in files), functions, per=100)
    definitions: Counter[str] = Counter()
    for file in files:
        definitions.update(file.definitions)
    repeated = sum(times > 1 for times in definitions.values())
    twice = divide(repeated, len(definitions), per=100)
    return [
        Figure("functions named by a participle, %", participles, "0.4-2.6"),
        Figure("top-level names defined twice or more, %", twice, "0.2-13"),
    ]


def describe_habits(files: Sequence[Counts]) -> list[Figure]:
    """Return the figures about arguments, private torch and words."""
    many_arguments = sum(file.many_arguments for file in files)
    private_torch = sum(file.private_torch for file in files)
    undocumented = sum(file.undocumented for file in files)
    to_document = sum(file.to_document for file in files)
    share = f"{undocumented} of {to_document}"
    words = sum(file.words for file in files)
    return [
        Figure("functions with seven arguments or more", many_arguments, "6-41"),
        Figure("files that touch torch._*", private_torch),
        Figure("public functions of 3+ arguments that do not name them", share, "few"),
        Figure("so many, somebody, nobody, everybody, whoever", words, "0"),
    ]


def print_figure(figure: Figure) -> None:
    """Print a row of the table."""
    row = f"{figure.what:58} {figure.ours!s:>20}"
    if figure.models:
        row += f"   models: {figure.models}"
    print(row)


def main() -> int:
    """Print the table for the folder on the command line and return the exit code."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else "src/fedtailor")
    files = measure_package(root)
    if not files:
        print(f"There are no Python files in {root}.", file=sys.stderr)
        return 2
    figures = [
        *describe_layout(files, root),
        *describe_lines(files),
        *describe_names(files),
        *describe_habits(files),
    ]
    for figure in figures:
        print_figure(figure)
    rooms = count_statements_by_room(files).most_common()
    print("statements by room: " + ", ".join(f"{room} {count}" for room, count in rooms))
    return 0


if __name__ == "__main__":
    sys.exit(main())
