"""Which comments and reviews of a pull request were edited, as GraphQL knows exactly."""

from __future__ import annotations

from typing import Any

from service.forge.base import Edited
from service.forge.github.client import Client

_PAGE = "pageInfo { hasNextPage endCursor } nodes { fullDatabaseId lastEditedAt }"

_QUERY = f"""
query (
  $owner: String!, $name: String!, $number: Int!,
  $comments: Boolean!, $commentsAfter: String, $reviews: Boolean!, $reviewsAfter: String
) {{
  repository(owner: $owner, name: $name) {{
    pullRequest(number: $number) {{
      comments(first: 100, after: $commentsAfter) @include(if: $comments) {{ {_PAGE} }}
      reviews(first: 100, after: $reviewsAfter) @include(if: $reviews) {{ {_PAGE} }}
    }}
  }}
}}
"""


def list_edited(client: Client, repo: str, number: int) -> Edited:
    owner, _, name = repo.partition("/")
    found: dict[str, set[int]] = {"comments": set(), "reviews": set()}
    asked: dict[str, Any] = {"comments": True, "reviews": True}
    while asked["comments"] or asked["reviews"]:
        data = client.query(repo, _QUERY, owner=owner, name=name, number=number, **asked)
        pages = data["repository"]["pullRequest"]
        for what, ids in found.items():
            page = pages.get(what)
            asked[what] = page is not None and page["pageInfo"]["hasNextPage"]
            if page is not None:
                ids |= {int(node["fullDatabaseId"]) for node in page["nodes"] if node["lastEditedAt"]}
                asked[f"{what}After"] = page["pageInfo"]["endCursor"]
    return Edited(comments=frozenset(found["comments"]), reviews=frozenset(found["reviews"]))
