"""Checks on Python."""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Iterator
from fractions import Fraction

from reviewer.detectors.source import Source, Span, dotted, span

_ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow)
_ASSERTING = (
    "assert",
    "raises",
    "warns",
    "fail",
    "check",
    "verify",
    "expect",
    "validate",
    "ensure",
    "compare",
)
_REMOVED = frozenset(
    [
        "aifc",
        "asynchat",
        "asyncore",
        "audioop",
        "cgi",
        "cgitb",
        "crypt",
        "distutils",
        "imghdr",
        "imp",
        "lib2to3",
        "mailcap",
        "nntplib",
        "pipes",
        "smtpd",
        "sndhdr",
        "telnetlib",
        "xdrlib",
    ]
)

_DOWNLOADS = ("from_pretrained", "hf_hub_download", "snapshot_download", "load_dataset")
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def literal_attribute(source: Source) -> Iterator[Span]:
    """getattr and its kin with a literal; not on modules, where a name may depend on the version."""
    if "attr(" not in source.text:
        return
    modules = _imported_names(source.nodes)
    for node in source.nodes:
        if not (isinstance(node, ast.Call) and len(node.args) >= 2):
            continue
        owner, name = node.args[0], node.args[1]
        if (
            dotted(node.func) in ("getattr", "setattr", "delattr")
            and isinstance(name, ast.Constant)
            and isinstance(name.value, str)
            and name.value.isidentifier()
            and not keyword.iskeyword(name.value)
            and not name.value.startswith("__")
            and dotted(owner).partition(".")[0] not in modules
        ):
            yield span(node)


def _imported_names(nodes: list[ast.AST]) -> frozenset[str]:
    return frozenset(
        (alias.asname or alias.name).partition(".")[0]
        for node in nodes
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    )


def float_equality(source: Source) -> Iterator[Span]:
    """A computed value compared by equality with a decimal that binary floating point cannot hold."""
    for node in source.nodes:
        if (
            isinstance(node, ast.Compare)
            and len(node.ops) == 1
            and isinstance(node.ops[0], ast.Eq | ast.NotEq)
        ):
            sides = (node.left, node.comparators[0])
            for literal, other in (sides, sides[::-1]):
                if _inexact(literal) and isinstance(other, ast.BinOp) and isinstance(other.op, _ARITHMETIC):
                    yield span(node)


def _inexact(node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp):
        node = node.operand
    if not (isinstance(node, ast.Constant) and isinstance(node.value, float)):
        return False
    written = repr(node.value)
    return written[0].isdigit() and Fraction(node.value) != Fraction(written)


def coroutine_not_awaited(source: Source) -> Iterator[Span]:
    """A statement that only calls a coroutine function of this module, or of the same class through self."""
    if "async def" not in source.text:
        return
    module = _coroutines(source.tree.body)
    for node in source.nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            name = dotted(node.value.func)
            if name in module and not _rebound(source.nodes, name):
                yield span(node)
        if isinstance(node, ast.ClassDef):
            methods = {f"self.{name}" for name in _coroutines(node.body)}
            for inner in ast.walk(node):
                if (
                    isinstance(inner, ast.Expr)
                    and isinstance(inner.value, ast.Call)
                    and dotted(inner.value.func) in methods
                ):
                    yield span(inner)


def _coroutines(body: list[ast.stmt]) -> frozenset[str]:
    """Undecorated coroutine functions defined once. Generators are called without await, so they do not count."""
    names: list[str] = [
        node.name for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    ]
    return frozenset(
        node.name
        for node in body
        if isinstance(node, ast.AsyncFunctionDef)
        and not node.decorator_list
        and names.count(node.name) == 1
        and not any(isinstance(inner, ast.Yield) for inner in ast.walk(node))
    )


def _rebound(nodes: list[ast.AST], name: str) -> bool:
    """Whether the name is also a parameter, a variable or a nested function somewhere in the file."""
    definitions = 0
    for node in nodes:
        match node:
            case ast.arg(arg=bound) | ast.alias(asname=bound) | ast.Name(id=bound, ctx=ast.Store()):
                if bound == name:
                    return True
            case ast.FunctionDef(name=bound) | ast.AsyncFunctionDef(name=bound):
                definitions += bound == name
    return definitions > 1


def test_without_assertion(source: Source) -> Iterator[Span]:
    """A test that computes a result and checks nothing. Calls of helpers may check, so they excuse it."""
    local = {node.name for node in source.nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    for node in source.nodes:
        if not (isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test")):
            continue
        inside = [inner for statement in node.body for inner in ast.walk(statement)]
        computes = any(
            isinstance(at, ast.Assign) and isinstance(at.value, ast.Call | ast.Await) for at in inside
        )
        given = local | {argument.arg for argument in node.args.args}
        if computes and not node.decorator_list and not any(_may_check(inner, given) for inner in inside):
            yield node.lineno, node.lineno


def _may_check(node: ast.AST, given: set[str]) -> bool:
    if isinstance(node, ast.Assert | ast.Raise | ast.With | ast.AsyncWith):
        return True
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else dotted(node.func)
    own = dotted(node.func).partition(".")[0] in given
    return own or any(word in name.lower() for word in _ASSERTING)


test_without_assertion.__test__ = False  # type: ignore[attr-defined]  # pytest would collect it by its name


def assert_true_of_two(source: Source) -> Iterator[Span]:
    """assertTrue(value, expected): only a second argument that cannot be a message counts."""
    for node in source.nodes:
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("assertTrue", "assertFalse")
            and len(node.args) == 2
            and _cannot_be_message(node.args[1])
        ):
            yield span(node)


def _cannot_be_message(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return not isinstance(node.value, str) and node.value is not None
    return isinstance(node, ast.List | ast.Tuple | ast.Dict | ast.Set) or (
        isinstance(node, ast.Call) and dotted(node.func) == "len"
    )


def removed_module(source: Source) -> Iterator[Span]:
    """Imports of removed modules, unless a branch or a handler shows that the author knows."""
    guarded = {
        id(inner)
        for node in source.nodes
        if isinstance(node, ast.Try | ast.If)
        for inner in ast.walk(node)
        if isinstance(inner, ast.Import | ast.ImportFrom)
    }
    for node in source.nodes:
        if id(node) in guarded:
            continue
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names = [node.module]
        if isinstance(node, ast.stmt) and any(name.partition(".")[0] in _REMOVED for name in names):
            yield span(node)


def late_binding_closure(source: Source) -> Iterator[Span]:
    """A lambda over the loop variable that is put into a container, and so outlives its turn of the loop."""
    for node in source.nodes:
        if isinstance(node, ast.For | ast.AsyncFor):
            variables = _bound(node.target)
            for statement in node.body:
                for inner in ast.walk(statement):
                    yield from (span(at) for at in _kept_lambdas(inner) if _reads(at, variables))
        elif isinstance(node, ast.ListComp) and isinstance(node.elt, ast.Lambda):
            variables = {name for generator in node.generators for name in _bound(generator.target)}
            if _reads(node.elt, variables):
                yield span(node.elt)


def _kept_lambdas(node: ast.AST) -> list[ast.Lambda]:
    match node:
        case ast.Call(func=ast.Attribute(attr="append" | "add" | "setdefault"), args=values):
            return [value for value in values if isinstance(value, ast.Lambda)]
        case ast.Assign(targets=[ast.Subscript()], value=ast.Lambda() as value):
            return [value]
    return []


def _bound(target: ast.expr) -> set[str]:
    return {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}


def _reads(function: ast.Lambda, names: set[str]) -> bool:
    arguments = function.args
    own = {each.arg for each in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]}
    return any(isinstance(node, ast.Name) and node.id in names - own for node in ast.walk(function.body))


def unpinned_model(source: Source) -> Iterator[Span]:
    """A download from the Hugging Face hub by a literal `owner/name`; a variable may well be a local folder."""
    for node in source.nodes:
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else dotted(node.func)
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        if name in _DOWNLOADS and not given.keys() & {"revision", None}:
            repository = given.get("repo_id") or next(iter(node.args), None)
            if (
                isinstance(repository, ast.Constant)
                and isinstance(repository.value, str)
                and _REPOSITORY.fullmatch(repository.value)
            ):
                yield span(node)


def world_writable(source: Source) -> Iterator[Span]:
    """chmod with a literal mode that lets everyone write, the sticky bit of shared folders aside."""
    for node in source.nodes:
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("chmod", "fchmod", "lchmod")
            and any(
                isinstance(argument, ast.Constant)
                and type(argument.value) is int
                and argument.value & 0o1002 == 0o002
                for argument in [*node.args[:2], *(keyword.value for keyword in node.keywords)]
            )
        ):
            yield span(node)
