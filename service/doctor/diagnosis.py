"""All checks of an installation, in the order in which one would mend it."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from functools import partial
from urllib.parse import unquote, urlsplit

from reviewer.redact import Redactor
from service.doctor import forge, server, tools
from service.doctor.findings import Check, Finding, run_checks
from service.settings import ServerSettings

# Longer than the model's own time, so that it can say what was wrong.
_MODEL_SECONDS = 60.0
_FORGES = {"github": forge.check_github, "local": forge.check_local}


PARTS = ("secret", "address", "data", "database", "queue", "git", "analysers", "forge", "model")


def diagnose(
    settings: ServerSettings, parts: Collection[str] = PARTS, *, ask_models: bool = False
) -> Iterator[Finding]:
    """Findings on `parts` as they come; nothing is created or changed. `ask_models` costs some tokens of each."""
    checks = [
        Check("secret", partial(server.check_secrets, settings)),
        Check("address", partial(server.check_address, settings)),
        Check("data", partial(server.check_data, settings)),
        Check("database", partial(server.check_database, settings)),
        Check("queue", partial(server.check_queue, settings)),
        Check("git", tools.check_git),
        Check("analysers", tools.check_analysers),
        Check("forge", partial(_FORGES[settings.forge], settings)),
        Check("model", partial(tools.check_engine, settings)),
    ]
    if ask_models:
        checks.append(Check("model", partial(tools.check_models, settings), seconds=_MODEL_SECONDS))
    return run_checks([one for one in checks if one.part in parts], Redactor(_credentials(settings)))


def _credentials(settings: ServerSettings) -> Iterator[str]:
    """Whatever must not be printed, be it in a library's error."""
    for secret in (
        settings.webhook_secret,
        settings.webhook_secret_old,
        settings.metrics_token,
        settings.github_token,
    ):
        yield secret.get_secret_value()
    yield os.environ.get("OPENAI_API_KEY", "")
    for url in (settings.database_url, settings.queue_url, os.environ.get("OPENAI_BASE_URL", "")):
        try:
            password = urlsplit(url).password or ""
        except ValueError:
            continue
        yield password
        yield unquote(password)
