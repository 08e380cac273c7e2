"""A pass over a traced local step: the gradients of parameters are used where they are, instead of joined first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

aten = torch.ops.aten
LEAST_WIDTH = 1024  # of a part; narrower ones are joined with their neighbours, because each part has loops of its own
MOST_PARTS = 8  # of a vector; with more, compiling takes longer than it saves


def distribute(module: GraphModule) -> GraphModule:
    """Compute elementwise operations, norms and sums on the parts of concatenated vectors; return the changed module.

    The gradient of a step is a concatenation of the parameters' gradients. torch's compiler writes it to memory and
    reads it again for what follows; the parts of a result it writes directly to their places. Sums are taken part by
    part, and so may differ in the last bits. A graph that changes tensors in place stays as it is, because a part and
    the vector would then be different memory.
    """
    calls = [node for node in module.graph.nodes if node.op == "call_function"]
    if any(_changes_tensors(node) for node in calls):
        return module
    pass_ = _Pass(module)
    for node in calls:
        with module.graph.inserting_before(node):
            pass_.visit(node)
    module.graph.eliminate_dead_code()
    module.recompile()
    return module


@dataclass
class _Pass:
    """The state of the pass: which nodes are concatenations, and of what."""

    module: GraphModule
    parts: dict[Node, list[Node]] = field(default_factory=dict)
    widths: dict[Node, tuple[int, ...]] = field(default_factory=dict)  # of these parts

    def visit(self, node: Node) -> None:
        """Note a concatenation, or replace an operation on one by operations on its parts."""
        if node.target is aten.cat.default:
            self._note(node)
            return
        given = [x for x in node.all_input_nodes if x in self.parts]
        if not given:
            return
        if node.target is aten.split_with_sizes.default:
            self._split(node, given[0])
        elif node.target is aten.linalg_vector_norm.default:
            self._reduce(node, given[0], (given[0], 2, [-1], True))
        elif node.target is aten.sum.dim_IntList:
            self._reduce(node, given[0], (given[0], [-1], True))
        elif node.target is aten.detach.default or torch.Tag.pointwise in getattr(node.target, "tags", ()):
            self._elementwise(node, self.widths[given[0]])

    def _note(self, node: Node) -> None:
        """Note a concatenation along the last axis, if its parts are few and wide."""
        inputs: Sequence[Node] = node.args[0]  # type: ignore[assignment]
        axes = _value(node).ndim
        if axes < 2 or len(node.args) < 2 or node.args[1] not in (-1, axes - 1):  # the only axis is that of clients
            return
        widths = [int(_value(x).shape[-1]) for x in inputs]
        groups = _groups(widths)
        if 1 < len(groups) <= MOST_PARTS:
            parts = [[inputs[k] for k in group] for group in groups]
            self.parts[node] = [some[0] if len(some) == 1 else self._call(aten.cat.default, some, -1) for some in parts]
            self.widths[node] = tuple(sum(widths[k] for k in group) for group in groups)

    def _split(self, node: Node, whole: Node) -> None:
        """Replace the pieces of a split vector by slices of its parts."""
        sizes: Sequence[int] = node.args[1]  # type: ignore[assignment]
        if len(node.args) > 2 and node.args[2] not in (-1, _value(whole).ndim - 1):
            return
        widths, parts = self.widths[whole], self.parts[whole]
        part_ends, ends = list(accumulate(widths)), list(accumulate(sizes))
        if not set(part_ends) <= set(ends):
            return
        for use in list(node.users):
            number: int = use.args[1]  # type: ignore[assignment]
            place = next(i for i, last in enumerate(part_ends) if ends[number] <= last)
            end = ends[number] - part_ends[place] + widths[place]  # in its part
            piece = parts[place]
            if sizes[number] < widths[place]:
                with self.module.graph.inserting_before(use):
                    piece = self._call(aten.slice.Tensor, piece, -1, end - sizes[number], end)
            use.replace_all_uses_with(piece)

    def _reduce(self, node: Node, whole: Node, expected: tuple[Any, ...]) -> None:
        """Replace a norm or sum over the last axis by the same of the norms or sums of parts."""
        if tuple(node.args) != expected or node.kwargs:
            return
        target: Callable[..., Any] = node.target  # type: ignore[assignment]
        of_parts = [self._call(target, part, *expected[1:]) for part in self.parts[whole]]
        joined = self._call(aten.cat.default, of_parts, -1)
        node.replace_all_uses_with(self._like(node, self._call(target, joined, *expected[1:])))

    def _elementwise(self, node: Node, widths: tuple[int, ...]) -> None:
        """Replace an elementwise operation by the concatenation of its results for the parts."""
        if any(isinstance(x, Node) for x in node.kwargs.values()) or any(isinstance(x, list) for x in node.args):
            return
        columns = [self._in_parts(x, widths, _value(node).shape) for x in node.args]
        if any(column is None for column in columns):
            return
        target: Callable[..., Any] = node.target  # type: ignore[assignment]
        results = [self._call(target, *arguments, **node.kwargs) for arguments in zip(*columns, strict=True)]
        joined = self._like(node, self._call(aten.cat.default, results, -1))
        self.parts[joined], self.widths[joined] = results, widths
        node.replace_all_uses_with(joined)

    def _in_parts(self, x: Any, widths: tuple[int, ...], shape: torch.Size) -> list[Any] | None:
        """Return an argument for each part: a part, a slice, or `x` itself without a last axis; None if none fits."""
        if not isinstance(x, Node) or not isinstance(_value(x), Tensor):
            return [x] * len(widths)
        if self.widths.get(x) == widths:
            return self.parts[x]
        value = _value(x)
        if value.ndim == 0 or value.shape[-1] == 1:
            return [x] * len(widths)
        if value.ndim != len(shape) or value.shape[-1] != shape[-1]:
            return None
        ends = pairwise(accumulate(widths, initial=0))
        return [self._call(aten.slice.Tensor, x, -1, start, end) for start, end in ends]

    def _call(self, target: Callable[..., Any], *arguments: Any, **keywords: Any) -> Node:
        return self.module.graph.call_function(target, arguments, keywords)

    def _like(self, node: Node, replacement: Node) -> Node:
        """Give a node that replaces `node` its value, from which later visits know the shape."""
        replacement.meta = dict(node.meta)
        return replacement


def _groups(widths: Sequence[int]) -> list[list[int]]:
    """Return the places of the parts of each group: one wide part, or narrow neighbours together."""
    groups: list[list[int]] = []
    for i, width in enumerate(widths):
        if groups and max(width, *(widths[k] for k in groups[-1])) < LEAST_WIDTH:
            groups[-1].append(i)
        else:
            groups.append([i])
    return groups


def _changes_tensors(node: Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _value(node: Node) -> Any:
    """Return the fake tensor or number that the tracer recorded for a node."""
    return node.meta.get("val")
