"""The part of GitHub's GraphQL schema that the stand-in serves, cut from the published one."""

from __future__ import annotations

import functools
import hashlib
import os
from pathlib import Path

from graphql import GraphQLSchema, build_schema, parse, print_ast
from graphql.language import (
    DocumentNode,
    EnumTypeDefinitionNode,
    FieldDefinitionNode,
    InputObjectTypeDefinitionNode,
    InterfaceTypeDefinitionNode,
    ListTypeNode,
    NamedTypeNode,
    NonNullTypeNode,
    ObjectTypeDefinitionNode,
    ScalarTypeDefinitionNode,
    TypeDefinitionNode,
    TypeNode,
)

from tests.standin.github.packages import cache_folder, installed

_FILE = "@octokit/graphql-schema/schema.graphql"

# Objects and interfaces that are served; a field of any other type is cut.
SERVED = {
    "Query": {"repository", "node", "viewer", "rateLimit"},
    "Mutation": {"resolveReviewThread", "unresolveReviewThread"},
    "Repository": {"id", "name", "nameWithOwner", "pullRequest"},
    "PullRequest": {
        "id",
        "number",
        "title",
        "author",
        "headRefOid",
        "isDraft",
        "reviewThreads",
        "comments",
        "reviews",
    },
    "PullRequestReviewThread": {
        "id",
        "isResolved",
        "isOutdated",
        "resolvedBy",
        "path",
        "line",
        "startLine",
        "subjectType",
        "comments",
        "viewerCanResolve",
    },
    "PullRequestReviewComment": {"id", "databaseId", "fullDatabaseId", "author", "body", "path", "createdAt"},
    "IssueComment": {"id", "databaseId", "fullDatabaseId", "lastEditedAt", "body"},
    "IssueCommentConnection": {"nodes", "totalCount", "pageInfo"},
    "PullRequestReview": {"id", "databaseId", "fullDatabaseId", "lastEditedAt", "body"},
    "PullRequestReviewConnection": {"nodes", "totalCount", "pageInfo"},
    "PullRequestReviewThreadConnection": {"nodes", "totalCount", "pageInfo"},
    "PullRequestReviewCommentConnection": {"nodes", "totalCount", "pageInfo"},
    "PageInfo": {"hasNextPage", "hasPreviousPage", "startCursor", "endCursor"},
    "Actor": {"login"},
    "Bot": {"id", "login", "databaseId"},
    "User": {"id", "login", "databaseId"},
    "RateLimit": {"limit", "cost", "remaining", "used"},
    "Node": {"id"},
    "ResolveReviewThreadPayload": {"thread"},
    "UnresolveReviewThreadPayload": {"thread"},
}


@functools.cache
def schema() -> GraphQLSchema:
    source = installed() / _FILE
    stamp = f"{source.stat().st_size} {source.stat().st_mtime_ns}".encode() + Path(__file__).read_bytes()
    compact = cache_folder() / f"served-{hashlib.sha256(stamp).hexdigest()[:16]}.graphql"
    if not compact.exists():
        waiting = compact.with_suffix(f".{os.getpid()}")
        waiting.write_text(cut(source.read_text()))
        waiting.replace(compact)
    return build_schema(compact.read_text())


def cut(text: str) -> str:
    known = {one.name.value: one for one in parse(text, no_location=True).definitions if hasattr(one, "name")}
    kept: dict[str, TypeDefinitionNode] = {}
    waiting: list[str] = []
    for name, fields in SERVED.items():
        one = known[name]
        assert isinstance(one, ObjectTypeDefinitionNode | InterfaceTypeDefinitionNode)
        missing = fields - {field.name.value for field in one.fields or ()}
        assert not missing, f"GitHub's {name} has no {sorted(missing)}"
        shown = tuple(_bare(field) for field in one.fields or () if field.name.value in fields)
        # An interface whose own fields are not all served here cannot be claimed.
        interfaces = tuple(
            each for each in one.interfaces or () if SERVED.get(each.name.value, {""}) <= fields
        )
        kept[name] = type(one)(
            name=one.name, description=None, directives=(), interfaces=interfaces, fields=shown
        )
        for field in shown:
            waiting += [_named(field.type), *(_named(argument.type) for argument in field.arguments or ())]
    while waiting:
        name = waiting.pop()
        found = known.get(name)
        if name in kept or not isinstance(
            found, EnumTypeDefinitionNode | InputObjectTypeDefinitionNode | ScalarTypeDefinitionNode
        ):
            continue
        kept[name] = found
        if isinstance(found, InputObjectTypeDefinitionNode):
            waiting += [_named(field.type) for field in found.fields or ()]
    plain = {"docsCategory", "possibleTypes", "preview"}
    text = print_ast(DocumentNode(definitions=tuple(kept.values())))
    return (
        "\n".join(f"directive @{name}({_ARGUMENTS[name]}) on {_PLACES}" for name in sorted(plain))
        + "\n"
        + text
    )


_ARGUMENTS = {
    "docsCategory": "name: String!",
    "possibleTypes": "concreteTypes: [String!]!, abstractType: String",
    "preview": "toggledBy: [String!]!",
}
_PLACES = "ENUM | ENUM_VALUE | FIELD_DEFINITION | INPUT_FIELD_DEFINITION | INPUT_OBJECT | INTERFACE | OBJECT | SCALAR | UNION | ARGUMENT_DEFINITION"


def _bare(field: FieldDefinitionNode) -> FieldDefinitionNode:
    return FieldDefinitionNode(
        name=field.name, type=field.type, arguments=field.arguments, description=None, directives=()
    )


def _named(one: TypeNode) -> str:
    while isinstance(one, ListTypeNode | NonNullTypeNode):
        one = one.type
    assert isinstance(one, NamedTypeNode)
    return one.name.value
