"""The lines of fedflat that need a GPU, which no test reaches where there is none: found by their syntax."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.tables import Table

SOURCE = Path(__file__).parent.parent / "src" / "fedflat"
ASKED_ANYWHERE = ("is_available", "device_count")  # of torch.cuda: can be called without a GPU


def gpu_lines_table(source: Path = SOURCE) -> Table:
    """Return every such line, or function."""
    rows = []
    for path in sorted(source.rglob("*.py")):
        for function, code in gpu_lines(path.read_text()):
            shown = code if code.startswith("all ") else f"`{code}`"
            rows.append((f"`{path.relative_to(source).as_posix()}`", f"`{function}`", shown))
    return Table(("file", "function", "lines that need a GPU"), rows)


def gpu_lines(text: str) -> list[tuple[str, str]]:
    """Return the lines of a module that need a GPU, each with the function that it is in."""
    tree = ast.parse(text)
    return [found for name, function in _functions(tree.body) for found in _in_function(name, function, text)]


def _functions(body: Sequence[ast.stmt], prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    """Yield all functions and methods, with their qualified names; a function inside another belongs to that one."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _functions(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef):
            yield prefix + node.name, node


def _in_function(name: str, function: ast.FunctionDef, text: str) -> Iterator[tuple[str, str]]:
    lines = list(_needed(function.body, text))
    if None in lines:
        yield name, f"all {function.end_lineno - function.body[0].lineno + 1} of its body"  # type: ignore[operator]
    else:
        yield from ((name, line) for line in lines if line is not None)


def _needed(body: Sequence[ast.stmt], text: str) -> Iterator[str | None]:
    """Yield the lines in a block that need a GPU; None if the block as a whole does."""
    for i, node in enumerate(body):
        if isinstance(node, ast.If) and _is_for_others(node.test):
            if isinstance(node.body[-1], ast.Return):
                yield from _lines(body[i + 1 :], text)
                return
        elif isinstance(node, ast.If) and _names_gpu(node.test):
            yield from _lines(node.body, text)
        elif blocks := [block for field in ("body", "orelse", "finalbody") if (block := getattr(node, field, None))]:
            if any(_uses_gpu(item.context_expr) for item in getattr(node, "items", ())):
                yield None
            elif any(_names_gpu(item.context_expr) for item in getattr(node, "items", ())):
                yield text.splitlines()[node.lineno - 1].strip()
            for block in blocks:
                yield from _needed(block, text)
        elif not isinstance(node, ast.Raise) and _names_gpu(node):
            yield None if _uses_gpu(node) else _code(node, text)


def _lines(body: Sequence[ast.stmt], text: str) -> Iterator[str]:
    """Yield all lines of a block."""
    for node in body:
        blocks = [block for field in ("body", "orelse", "finalbody") if (block := getattr(node, field, None))]
        yield text.splitlines()[node.lineno - 1].strip() if blocks else _code(node, text)
        for block in blocks:
            yield from _lines(block, text)


def _code(node: ast.AST, text: str) -> str:
    """Return the source of a statement in one line."""
    return " ".join((ast.get_source_segment(text, node) or "").split()).replace("|", "\\|")


def _names_gpu(node: ast.AST) -> bool:
    """Tell whether a CUDA device is named."""
    return any(
        (isinstance(x, ast.Attribute) and (x.attr == "is_cuda" or _is_torch_cuda(x)))
        or (isinstance(x, ast.Constant) and x.value == "cuda")
        for x in ast.walk(node)
    )


def _uses_gpu(node: ast.AST) -> bool:
    """Tell whether a GPU is used, whatever a condition says."""
    conditional = [x for x in ast.walk(node) if isinstance(x, ast.IfExp) and _names_gpu(x.test)]
    used = [x for x in ast.walk(node) if isinstance(x, ast.Attribute) and _is_torch_cuda(x.value)]
    return not conditional and any(x.attr not in ASKED_ANYWHERE for x in used)


def _is_torch_cuda(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and ast.unparse(node) == "torch.cuda"


def _is_for_others(test: ast.expr) -> bool:
    """Tell whether a condition holds where the device is no GPU."""
    return any(isinstance(x, ast.Compare) and isinstance(x.ops[0], ast.NotEq) and _names_gpu(x) for x in ast.walk(test))
