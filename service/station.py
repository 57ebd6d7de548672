"""Puts a worker's station together from the settings."""

from __future__ import annotations

import getpass
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from reviewer.checklist import Item, ReadFile, load_items
from reviewer.errors import ConfigError
from reviewer.policy import ReviewPolicy
from service.engines import Opened, choose, open_engine
from service.forge.base import Forge
from service.settings import ServerSettings
from service.store.database import Database
from service.worker.station import EngineOpener, Station


def open_station(settings: ServerSettings, owner: str, ring: Callable[[str], object]) -> Station:
    """A station for one process."""
    database = Database(settings.database)
    return Station(
        database=database,
        forge=open_forge(settings, database),
        forge_name=settings.forge,
        open_engine=_engine_of(settings),
        load_items=_load_items,
        owner=owner,
        ring=ring,
        lease_seconds=settings.lease_seconds,
        public_url=settings.public_url,
        web_url=settings.web_url if settings.forge == "github" else "",
        app_id=settings.github_app_id,
        data=settings.data,
    )


def open_forge(settings: ServerSettings, database: Database) -> Forge:
    """The forge that the settings name. Raises `ConfigError` where something is missing."""
    if settings.forge == "local":
        from service.forge.local import LocalForge

        folder = settings.local_repository
        if folder is None:
            raise ConfigError("the local forge has no repository", "set WHITESMOKE_LOCAL_REPOSITORY")
        return LocalForge(database, {local_name(folder): folder}, owner=getpass.getuser())
    from service.forge.github import make_github

    return make_github(settings)


def local_name(folder: Path) -> str:
    """What the local forge calls the repository in a folder."""
    return f"local/{folder.resolve().name}"


def _engine_of(settings: ServerSettings) -> EngineOpener:
    def opener(policy: ReviewPolicy) -> AbstractAsyncContextManager[Opened]:
        return open_engine(choose(settings.engine), policy, (), settings.recording)

    return opener


def _load_items(policy: ReviewPolicy, read: ReadFile) -> list[Item]:
    return load_items(policy.checklists, read)
