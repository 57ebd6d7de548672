"""Checks on Triton kernels: functions under `@triton.jit`."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from reviewer.detectors.source import Source, Span, dotted, span

_REDUCTIONS = ("tl.sum", "tl.max", "tl.min", "tl.argmax", "tl.argmin", "tl.cumsum", "tl.reduce")


def arange_length(source: Source) -> Iterator[Span]:
    for kernel in _kernels(source):
        for call in _calls(kernel, "tl.arange"):
            ends = [argument.value for argument in call.args if isinstance(argument, ast.Constant)]
            if len(ends) == 2 and all(type(end) is int for end in ends):
                length = int(str(ends[1])) - int(str(ends[0]))
                if length <= 0 or length & (length - 1):
                    yield span(call)


def arange_constexpr(source: Source) -> Iterator[Span]:
    """Only in kernels that are launched (they ask for a program id): a device function may be given a constexpr."""
    for kernel in _kernels(source):
        if not any(_calls(kernel, "tl.program_id")):
            continue
        runtime = _runtime_parameters(kernel) - _assigned(kernel).keys()
        for call in _calls(kernel, "tl.arange"):
            if any(isinstance(argument, ast.Name) and argument.id in runtime for argument in call.args):
                yield span(call)


def device_print(source: Source) -> Iterator[Span]:
    for kernel in _kernels(source):
        for statement, _ in _unconditional(kernel.body):
            if (
                isinstance(statement, ast.Expr)
                and isinstance(statement.value, ast.Call)
                and dotted(statement.value.func) in ("tl.device_print", "print")
            ):
                yield span(statement)


def unmasked_access(source: Source) -> Iterator[Span]:
    """An access without a mask at offsets that another access of the kernel masks.

    Offsets wrapped by % are in range by construction; accesses under an `if`, in a branch of a conditional expression, or
    at offsets computed from what a `while` loop tests may be guarded by it.
    """
    for kernel in _kernels(source):
        assigned = _assigned(kernel)
        ranges = _derived(assigned, _is_range)
        masked: set[str] = set()
        for call in _accesses(kernel):
            mask = _mask(call)
            if mask is not None:
                masked |= ranges & _sources(mask, assigned) & _sources(call.args[0], assigned)
        for statement, tested in _unconditional(kernel.body):
            branches = _in_branches(statement)
            for call in _accesses(statement):
                offsets = _sources(call.args[0], assigned)
                guarded = (
                    _mask(call) is not None
                    or call in branches
                    or bool(tested & offsets)
                    or any(keyword.arg == "boundary_check" for keyword in call.keywords)
                )
                if masked & offsets and not guarded:
                    yield span(call)


def load_without_other(source: Source) -> Iterator[Span]:
    """A masked load with no `other` whose value reaches a reduction; tl.where on the way gives the lanes a value.

    Only where no offset is two-dimensional: a mask on columns is harmless to a reduction over rows.
    """
    for kernel in _kernels(source):
        assigned = _assigned(kernel)
        if any(
            isinstance(node, ast.Subscript) for call in _accesses(kernel) for node in _walk(call, assigned)
        ):
            continue
        loose = _derived(assigned, _is_loose_load, cut="tl.where", every=True)
        for reduction in _REDUCTIONS:
            for call in _calls(kernel, reduction):
                if call.args and _reaches(call.args[0], loose, _is_loose_load, cut="tl.where"):
                    yield span(call)


def int32_offset(source: Source) -> Iterator[Span]:
    """A program id, or what is computed from it in 32 bits, times a stride that is a run-time argument.

    The first in each kernel: one cast mends them all.
    """
    for kernel in _kernels(source):
        strides = {name for name in _runtime_parameters(kernel) if "stride" in name}
        ids = _derived(_assigned(kernel), _is_program_id, arithmetic=True)
        products = [
            node
            for node in ast.walk(kernel)
            if isinstance(node, ast.BinOp)
            and isinstance(node.op, ast.Mult)
            and any(
                (_is_program_id(factor) or (isinstance(factor, ast.Name) and factor.id in ids))
                and isinstance(other, ast.Name)
                and other.id in strides
                for factor, other in ((node.left, node.right), (node.right, node.left))
            )
        ]
        if products:
            yield min(span(node) for node in products)


def _kernels(source: Source) -> Iterator[ast.FunctionDef]:
    if "triton.jit" not in source.text:
        return
    for node in source.nodes:
        if isinstance(node, ast.FunctionDef):
            for decorator in node.decorator_list:
                target = decorator.func if isinstance(decorator, ast.Call) else decorator
                if dotted(target) == "triton.jit":
                    yield node
                    break


def _calls(node: ast.AST, name: str) -> Iterator[ast.Call]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Call) and dotted(inner.func) == name:
            yield inner


def _accesses(node: ast.AST) -> Iterator[ast.Call]:
    return (call for name in ("tl.load", "tl.store") for call in _calls(node, name) if call.args)


def _runtime_parameters(kernel: ast.FunctionDef) -> set[str]:
    return {
        argument.arg
        for argument in [*kernel.args.args, *kernel.args.kwonlyargs]
        if argument.annotation is None or "constexpr" not in ast.unparse(argument.annotation)
    }


def _assigned(kernel: ast.FunctionDef) -> dict[str, list[ast.expr]]:
    """What each local name may hold."""
    values: dict[str, list[ast.expr]] = {}
    for node in ast.walk(kernel):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign) and node.value is not None:
            targets = [node.target]
        for target in targets:
            if isinstance(target, ast.Name) and isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
                values.setdefault(target.id, []).append(node.value or target)
    return values


def _derived(
    assigned: dict[str, list[ast.expr]],
    origin: Callable[[ast.AST], bool],
    *,
    cut: str | None = None,
    arithmetic: bool = False,
    every: bool = False,
) -> set[str]:
    """The names with a value that comes from an origin, directly or through names; with `every`, all of theirs."""
    quantify = all if every else any
    names: set[str] = set()
    while True:
        more = {
            name
            for name, values in assigned.items()
            if name not in names
            and quantify(_reaches(value, names, origin, cut=cut, arithmetic=arithmetic) for value in values)
        }
        if not more:
            return names
        names |= more


def _reaches(
    node: ast.AST,
    names: set[str],
    origin: Callable[[ast.AST], bool] = lambda _: False,
    *,
    cut: str | None = None,
    arithmetic: bool = False,
) -> bool:
    """Whether the value of the expression comes from the names or an origin.

    `cut` is a call that ends the way, as loads and reductions do; with `arithmetic` only operators carry the value on, not calls.
    """
    if origin(node) or (isinstance(node, ast.Name) and node.id in names):
        return True
    if isinstance(node, ast.Call):
        if arithmetic or dotted(node.func) in (cut, "tl.load", *_REDUCTIONS):
            return False
    elif arithmetic and not isinstance(node, ast.BinOp):
        return False
    return any(
        _reaches(child, names, origin, cut=cut, arithmetic=arithmetic) for child in ast.iter_child_nodes(node)
    )


def _sources(node: ast.AST, assigned: dict[str, list[ast.expr]]) -> set[str]:
    """All names that the expression is computed from."""
    return {inner.id for inner in _walk(node, assigned) if isinstance(inner, ast.Name)}


def _walk(node: ast.AST, assigned: dict[str, list[ast.expr]]) -> Iterator[ast.AST]:
    """The nodes of an expression and of the values of its names; not what is wrapped by %, nor a load's address."""
    seen: set[str] = set()
    waiting = list(ast.iter_child_nodes(node)) if _is_load(node) else [node]
    while waiting:
        inner = waiting.pop()
        if _is_load(inner) or (isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Mod)):
            continue
        yield inner
        if isinstance(inner, ast.Name) and inner.id not in seen:
            seen.add(inner.id)
            waiting.extend(assigned.get(inner.id, ()))
        waiting.extend(ast.iter_child_nodes(inner))


def _mask(call: ast.Call) -> ast.expr | None:
    for keyword in call.keywords:
        if keyword.arg == "mask":
            return (
                None
                if isinstance(keyword.value, ast.Constant) and keyword.value.value is None
                else keyword.value
            )
    place = 1 if dotted(call.func) == "tl.load" else 2
    return call.args[place] if len(call.args) > place else None


def _unconditional(
    body: list[ast.stmt], tested: frozenset[str] = frozenset()
) -> Iterator[tuple[ast.stmt, frozenset[str]]]:
    """The statements outside every `if`, loops entered, each with the names that the `while` loops around it test."""
    for statement in body:
        if isinstance(statement, ast.For):
            yield from _unconditional(statement.body, tested)
        elif isinstance(statement, ast.While):
            names = {node.id for node in ast.walk(statement.test) if isinstance(node, ast.Name)}
            yield from _unconditional(statement.body, tested | names)
        elif not isinstance(statement, ast.If):
            yield statement, tested


def _in_branches(statement: ast.stmt) -> set[ast.Call]:
    """The accesses in either branch of a conditional expression."""
    return {
        call
        for node in ast.walk(statement)
        if isinstance(node, ast.IfExp)
        for branch in (node.body, node.orelse)
        for call in _accesses(branch)
    }


def _is_range(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and dotted(node.func) == "tl.arange"


def _is_program_id(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and dotted(node.func) == "tl.program_id"


def _is_load(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and dotted(node.func) == "tl.load"


def _is_loose_load(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and _is_load(node)
        and _mask(node) is not None
        and len(node.args) < 3
        and not any(keyword.arg == "other" for keyword in node.keywords)
    )
