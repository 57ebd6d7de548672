"""Celery as an alarm clock: one task, which says that a lane has work. All work itself is in the database.

A wake-up lost, doubled or late changes nothing: a worker that wakes claims what is due, and the keeper rings
regularly for what nobody was woken for.
"""

from __future__ import annotations

from celery import Celery
from kombu.exceptions import OperationalError

WAKE = "whitesmoke.wake"
VISIBILITY_SECONDS = 3600
"""One value everywhere: the shortest of any worker would hold for all."""


def make_celery(url: str) -> Celery:
    """The application for a Redis or Valkey at `url`, with settings that suit wake-ups."""
    app = Celery("whitesmoke", broker=url)
    app.conf.update(
        task_ignore_result=True,
        task_acks_late=True,
        # Not requeued when a worker dies: the row's lease runs out instead, and attempts are counted there.
        task_reject_on_worker_lost=False,
        task_publish_retry=False,
        worker_prefetch_multiplier=1,
        worker_soft_shutdown_timeout=30,
        worker_hijack_root_logger=False,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_connection_timeout=5,
        broker_pool_limit=4,
        broker_transport_options={
            "visibility_timeout": VISIBILITY_SECONDS,
            "socket_timeout": 10,
            "socket_connect_timeout": 5,
            "max_retries": 2,
        },
    )
    return app


def queue_of(lane: str) -> str:
    return f"whitesmoke.{lane}"


class Alarm:
    """Wakes the workers of a lane. Never raises for a queue that is down: the keeper rings again."""

    def __init__(self, app: Celery) -> None:
        self._app = app

    def ring(self, lane: str) -> bool:
        """False where the queue did not take the wake-up."""
        try:
            self._app.send_task(WAKE, args=(lane,), queue=queue_of(lane), expires=VISIBILITY_SECONDS)
        except (OperationalError, OSError):
            return False
        return True
