"""`whitesmoke serve`, `web`, `worker`, `replay`: the service, in one command or in its parts."""

from __future__ import annotations

import click


@click.command()
@click.option(
    "--embedded",
    is_flag=True,
    help="Use SQLite and the bundled Valkey under the data folder, whatever the environment says.",
)
def serve(embedded: bool) -> None:
    """Run the whole service: web, workers and keeper, with SQLite and Valkey unless URLs are set."""
    from service.queue.valkey import wait_for_queue
    from service.settings import load_settings
    from service.store.database import Database
    from service.store.migrations import upgrade
    from service.supervisor import Supervisor, free_port, stop_on_signals

    settings = load_settings()
    if embedded:
        settings = settings.model_copy(update={"database_url": "", "queue_url": ""})
    settings.data.mkdir(parents=True, exist_ok=True)
    settings.require_secret()
    stopped = stop_on_signals()
    database = Database(settings.database)
    upgrade(database)
    database.close()
    port = free_port()
    queue_url = settings.queue_url or f"redis://127.0.0.1:{port}/0"
    supervisor = Supervisor(
        {
            "WHITESMOKE_QUEUE_URL": queue_url,
            "WHITESMOKE_DATABASE_URL": settings.database_url,
            "WHITESMOKE_DATA": str(settings.data),
        }
    )
    with supervisor:
        if not settings.queue_url:
            supervisor.start("valkey", "valkey", f"--port={port}")
            wait_for_queue(queue_url)
        supervisor.start("web", "web")
        supervisor.start("worker", "worker")
        address = f"http://{settings.host}:{settings.port}"
        click.echo(f"whitesmoke listens on {address}, data in {settings.data}", err=True)
        supervisor.run(stopped)


@click.command(hidden=True)
@click.option("--port", type=int, required=True)
def valkey(port: int) -> None:
    """Run the bundled Valkey server for `serve`."""
    from service.queue.valkey import run_valkey
    from service.settings import load_settings
    from service.supervisor import end_with_supervisor, stop_on_signals

    end_with_supervisor()
    run_valkey(load_settings().data / "valkey", port, stop_on_signals())


@click.command()
def web() -> None:
    """Run the web process alone: deliveries in, health and metrics out."""
    from service.settings import load_settings
    from service.supervisor import end_with_supervisor
    from service.web import run_web

    end_with_supervisor()
    settings = load_settings()
    settings.require_secret()
    settings.require_queue()
    run_web(settings)


@click.command()
@click.option("--lane", type=click.Choice(["quick", "review", "ci"]), hidden=True)
def worker(lane: str | None) -> None:
    """Run the workers of all lanes and the keeper."""
    from service.settings import load_settings
    from service.store.database import Database
    from service.store.migrations import upgrade
    from service.supervisor import end_with_supervisor

    end_with_supervisor()
    settings = load_settings()
    settings.require_queue()
    if lane is not None:
        from service.queue.worker import run_lane

        run_lane(lane, settings.concurrency)
        return
    from service.keep import run_keeper

    database = Database(settings.database)
    upgrade(database)
    database.close()
    run_keeper(settings)


@click.command()
@click.argument("delivery", type=int)
def replay(delivery: int) -> None:
    """Process the stored delivery DELIVERY (its row id) again. What it asked for and got is not done twice."""
    from service.queue.celery import Alarm, make_celery
    from service.settings import load_settings
    from service.store import deliveries
    from service.store.database import Database
    from service.store.errors import StoreError
    from service.worker.station import QUICK_LANE

    settings = load_settings()
    database = Database(settings.database)
    with database.write() as connection:
        if not deliveries.replay(connection, delivery):
            raise StoreError(
                f"no delivery {delivery} with its body in {database.name}", "see the list of deliveries"
            )
    if settings.queue_url:
        Alarm(make_celery(settings.queue_url)).ring(QUICK_LANE)
    click.echo(f"delivery {delivery} will be processed again")
