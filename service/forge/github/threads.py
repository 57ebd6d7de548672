"""Threads of inline comments, which only GraphQL knows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from service.forge.base import ForgeError, Thread
from service.forge.github.client import Client
from service.forge.github.read import read_actor

_COMMENTS = "pageInfo { hasNextPage endCursor } nodes { author { login __typename } body }"

_THREADS = f"""
query ($owner: String!, $name: String!, $number: Int!, $after: String) {{
  repository(owner: $owner, name: $name) {{
    pullRequest(number: $number) {{
      reviewThreads(first: 50, after: $after) {{
        pageInfo {{ hasNextPage endCursor }}
        nodes {{ id isResolved isOutdated comments(first: 50) {{ {_COMMENTS} }} }}
      }}
    }}
  }}
}}
"""

_REST = f"""
query ($id: ID!, $after: String) {{
  node(id: $id) {{
    ... on PullRequestReviewThread {{ comments(first: 100, after: $after) {{ {_COMMENTS} }} }}
  }}
}}
"""

_RESOLVE = """
mutation ($id: ID!) {
  resolveReviewThread(input: {threadId: $id}) { thread { isResolved } }
}
"""


def list_threads(client: Client, repo: str, number: int) -> Iterator[Thread]:
    owner, _, name = repo.partition("/")
    after = None
    while True:
        data = client.query(repo, _THREADS, owner=owner, name=name, number=number, after=after)
        page = data["repository"]["pullRequest"]["reviewThreads"]
        for node in page["nodes"]:
            comments = _all_comments(client, repo, node)
            yield Thread(
                id=node["id"],
                resolved=node["isResolved"],
                outdated=node["isOutdated"],
                comments=tuple((read_actor(one["author"]), one["body"]) for one in comments),
            )
        after = page["pageInfo"]["endCursor"]
        if not page["pageInfo"]["hasNextPage"]:
            return


def resolve(client: Client, repo: str, thread_id: str) -> None:
    client.query(repo, _RESOLVE, id=thread_id)


def _all_comments(client: Client, repo: str, thread: Any) -> Iterator[Any]:
    page = thread["comments"]
    while True:
        yield from page["nodes"]
        if not page["pageInfo"]["hasNextPage"]:
            return
        node = client.query(repo, _REST, id=thread["id"], after=page["pageInfo"]["endCursor"])["node"]
        if node is None:
            raise ForgeError(
                f"the thread {thread['id']} of {repo} went away while it was read", "", status=404
            )
        page = node["comments"]
