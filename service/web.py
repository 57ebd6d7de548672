"""The web process: the intake over the store, waking workers for what it stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ci_dispatch.protocol import PREFIX
from service.events import EVENTS
from service.intake.app import create_app
from service.intake.server import Server
from service.intake.settings import IntakeSettings
from service.intake.sink import sink_into
from service.queue.celery import Alarm, make_celery
from service.queue.valkey import QueueError
from service.runner_api.desk import Desk
from service.runner_api.files import CiFiles
from service.runner_api.limits import Limits
from service.runner_api.router import make_router
from service.settings import ServerSettings
from service.store.database import Database
from service.store.errors import StoreError
from service.store.migrations import is_current
from service.worker.station import CI_LANE, QUICK_LANE


def run_web(settings: ServerSettings) -> None:
    """Serves until SIGTERM. Raises `ConfigError` where no webhook secret is set."""
    # GitHub waits ten seconds for an answer.
    database = Database(settings.database, patience=7)
    alarm = Alarm(make_celery(settings.queue_url))
    intake = IntakeSettings(
        secrets=settings.secrets,
        events=EVENTS,
        metrics_token=settings.metrics_token.get_secret_value() or None,
    )

    def on_stored(_: Sequence[int]) -> None:
        if not alarm.ring(QUICK_LANE):
            raise QueueError("the queue does not take wake-ups", "check that it runs; the keeper rings again")

    checks = {"database": _schema_is_current(database), "queue": _queue_answers(settings.queue_url)}

    def on_jobs() -> None:
        for lane in (CI_LANE, QUICK_LANE):
            alarm.ring(lane)

    desk = Desk(database, CiFiles(settings.data), on_jobs, Limits())
    app = create_app(intake, sink_into(database), checks, on_stored, [partial(make_router, desk)])
    Server(app, settings.host, settings.port, paced=(PREFIX,)).run()


def _schema_is_current(database: Database) -> Callable[[], None]:
    def check() -> None:
        if not is_current(database):
            raise StoreError(f"database {database.name} has another version's schema", "run the migrations")

    return check


def _queue_answers(url: str) -> Callable[[], None]:
    import redis

    client = redis.Redis.from_url(url, socket_timeout=2, socket_connect_timeout=2)

    def check() -> None:
        try:
            client.ping()
        except redis.RedisError as error:
            raise QueueError(f"the queue does not answer: {type(error).__name__}", "start it") from error

    return check
