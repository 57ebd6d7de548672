"""Checks on the body of a CUDA graph capture in PyTorch: `with torch.cuda.graph(...)`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from reviewer.detectors.source import Source, Span, dotted, span

_CAPTURES = ("torch.cuda.graph", "cuda.graph", "torch.cuda.graphs.graph")
_READS = ("item", "cpu", "tolist", "numpy", "nonzero")
_ALLOCATOR = ("torch.cuda.empty_cache", "torch.cuda.ipc_collect", "cuda.empty_cache", "gc.collect")
_COPIES = ("torch.tensor", "torch.as_tensor")
_EFFECTS = frozenset(
    [
        "print",
        "input",
        "time.time",
        "time.time_ns",
        "time.monotonic",
        "time.perf_counter",
        "time.perf_counter_ns",
        "time.sleep",
        "datetime.now",
        "datetime.datetime.now",
    ]
)


def synchronise(source: Source) -> Iterator[Span]:
    for call in _calls(source):
        method = isinstance(call.func, ast.Attribute) and call.func.attr == "synchronize"
        if method and (not call.args or dotted(call.func).endswith("cuda.synchronize")):
            yield span(call)


def host_read(source: Source) -> Iterator[Span]:
    for call in _calls(source):
        if not isinstance(call.func, ast.Attribute):
            continue
        to_cpu = call.func.attr == "to" and any(_is_cpu(argument) for argument in _arguments(call))
        if to_cpu or (call.func.attr in _READS and not call.args and not call.keywords):
            yield span(call)


def host_allocation(source: Source) -> Iterator[Span]:
    for call in _calls(source):
        pinned = isinstance(call.func, ast.Attribute) and call.func.attr == "pin_memory"
        devices = [keyword.value for keyword in call.keywords if keyword.arg == "device"]
        copied = dotted(call.func) in _COPIES and devices and not _is_cpu(devices[0])
        if pinned or copied or any(_is_pinning(keyword) for keyword in call.keywords):
            yield span(call)


def host_effect(source: Source) -> Iterator[Span]:
    for call in _calls(source):
        name = dotted(call.func)
        if name in _EFFECTS or name.startswith(("random.", "np.random.", "numpy.random.")):
            yield span(call)


def allocator_call(source: Source) -> Iterator[Span]:
    for call in _calls(source):
        if dotted(call.func) in _ALLOCATOR:
            yield span(call)


def graph_not_kept(source: Source) -> Iterator[Span]:
    for _, context in _captures(source):
        graph = next(iter(_arguments(context)), None)
        if isinstance(graph, ast.Call) and dotted(graph.func).rpartition(".")[2] == "CUDAGraph":
            yield span(context)


def _captures(source: Source) -> Iterator[tuple[ast.With, ast.Call]]:
    if "cuda.graph" not in source.text:
        return
    for node in source.nodes:
        if isinstance(node, ast.With):
            for item in node.items:
                if isinstance(item.context_expr, ast.Call) and dotted(item.context_expr.func) in _CAPTURES:
                    yield node, item.context_expr


def _calls(source: Source) -> Iterator[ast.Call]:
    """The calls made while a graph is captured. Functions defined there run later, so theirs do not count."""
    for node, _ in _captures(source):
        waiting: list[ast.AST] = list(node.body)
        while waiting:
            inner = waiting.pop()
            if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                continue
            if isinstance(inner, ast.Call):
                yield inner
            waiting.extend(ast.iter_child_nodes(inner))


def _arguments(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def _is_cpu(node: ast.expr) -> bool:
    if isinstance(node, ast.Call) and dotted(node.func) == "torch.device" and node.args:
        node = node.args[0]
    return isinstance(node, ast.Constant) and node.value == "cpu"


def _is_pinning(keyword: ast.keyword) -> bool:
    return (
        keyword.arg == "pin_memory"
        and isinstance(keyword.value, ast.Constant)
        and keyword.value.value is True
    )
