"""Where GitHub's description is known to say something else than GitHub does. Each line here has its reason."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]


def correct(document: Json) -> None:
    """Changes the description in place."""
    schemas = document["components"]["schemas"]
    # Errors carry their status as text, which only the basic error mentions.
    for name in ("validation-error", "validation-error-simple"):
        schemas[name]["properties"]["status"] = {"type": "string"}
    merge = document["paths"]["/repos/{owner}/{repo}/pulls/{pull_number}/merge"]["put"]["responses"]
    for refused in ("405", "409"):
        merge[refused]["content"]["application/json"]["schema"]["properties"]["status"] = {"type": "string"}
    # A diff that is too large is refused with the reason in a list beside the message.
    schemas["basic-error"]["properties"]["errors"] = {"type": "array", "items": {"type": "object"}}
    # A comment that is outdated has no line and no position.
    for name in ("line", "position"):
        schemas["pull-request-review-comment"]["properties"][name]["nullable"] = True
    # The fork that a pull request came from may be gone.
    head = schemas["pull-request"]["properties"]["head"]["properties"]
    head["repo"] = {"nullable": True, "anyOf": [head["repo"]]}
    # The list spells the schema out, and asks that an account is a user and an enterprise at once.
    answer = document["paths"]["/app/installations"]["get"]["responses"]["200"]
    answer["content"]["application/json"]["schema"]["items"] = {"$ref": "#/components/schemas/installation"}


def correct_events(schema: Json) -> None:
    """Changes the schemas of webhooks in place."""
    definitions = schema["definitions"]
    # As `pull-request` has it: the fork that a pull request came from may be gone.
    inline = definitions["pull_request_review_comment$created"]["properties"]["pull_request"]
    for pull in (definitions["simple-pull-request"], inline):
        head = pull["properties"]["head"]["properties"]
        head["repo"] = {"oneOf": [head["repo"], {"type": "null"}]}
