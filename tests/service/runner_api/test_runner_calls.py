"""What runners ask, over real HTTP: coming, claiming, working, going; each request also twice."""

from __future__ import annotations

import gzip
import hashlib
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from ci_dispatch.model import JobReport, Notice
from service.store import jobs, runners
from service.store.ci_tables import runners as runner_table
from service.store.schema import work
from tests.kit.ci import BASE, HEAD, inventory, job
from tests.service.runner_api.conftest import Api


def until(happens: Callable[[], object], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def registration(name: str = "h1", nonce: str = "", **values: Any) -> dict[str, Any]:
    return {"name": name, "inventory": inventory(**values).model_dump(mode="json"), "nonce": nonce}


def a_beat(**values: Any) -> dict[str, Any]:
    return {"inventory": inventory().model_dump(mode="json"), **values}


# Coming and going


def test_a_registration_token_is_good_once(api: Api) -> None:
    token = api.token()
    first = api.call("POST", "/runners", token, registration())
    assert first.status == 201
    assert api.call("POST", "/runners", token, registration("h2")).status == 401
    assert api.call("POST", "/runners/self/beat", first.json["secret"], a_beat()).status == 200


def test_a_registration_whose_answer_was_dropped_is_answered_again_for_the_same_nonce(api: Api) -> None:
    token = api.token()
    first = api.call("POST", "/runners", token, registration(nonce="n" * 32))
    again = api.call("POST", "/runners", token, registration(nonce="n" * 32))
    assert (first.status, again.status) == (201, 201)
    assert first.json["runner_id"] == again.json["runner_id"]
    assert first.json["secret"] != again.json["secret"]
    assert api.call("POST", "/runners/self/beat", first.json["secret"], a_beat()).status == 401
    assert api.call("POST", "/runners", token, registration(nonce="m" * 32)).status == 401


def test_tokens_and_secrets_are_kept_as_digests(api: Api) -> None:
    token = api.token()
    secret = api.call("POST", "/runners", token, registration()).json["secret"]
    api.ci.queue(job())
    _, lease, _ = api.grant(secret)
    with api.ci.database.read() as connection:
        for table in ("ci_tokens", "ci_runners", "ci_leases"):
            rows = str(connection.exec_driver_sql(f"SELECT * FROM {table}").all())
            assert rows != "[]"
            assert not any(each in rows for each in (token, secret, lease))


def test_a_token_for_another_architecture_is_refused_and_not_spent(api: Api) -> None:
    token = api.token(arch="sm90")
    refused = api.call("POST", "/runners", token, registration())
    assert refused.status == 422
    assert "sm90" in refused.json["problem"]
    assert api.call("POST", "/runners", token, registration(gpus=1)).status == 201


def test_a_token_that_expired_is_refused(api: Api, clock: Any) -> None:
    token = api.token()
    from datetime import timedelta

    clock.ahead = timedelta(hours=2)
    assert api.call("POST", "/runners", token, registration()).status == 401


def test_a_living_runners_name_is_taken_and_a_gone_ones_is_not(api: Api) -> None:
    secret = api.register("h1")
    taken = api.call("POST", "/runners", token := api.token(), registration("h1"))
    assert taken.status == 409
    assert "h1 is alive" in taken.json["problem"]
    assert api.call("DELETE", "/runners/self", secret).status == 204
    assert api.call("POST", "/runners", token, registration("h1")).status == 201
    assert api.call("DELETE", "/runners/self", secret).status == 401, "its secret was replaced"


def test_a_runner_that_left_comes_back_with_its_next_beat(api: Api) -> None:
    secret = api.register()
    api.ci.queue(job())
    assert api.call("DELETE", "/runners/self", secret).status == 204
    assert api.call("DELETE", "/runners/self", secret).status == 204
    assert api.claim(secret).status == 204
    assert api.call("POST", "/runners/self/beat", secret, a_beat()).status == 200
    assert api.claim(secret, 20).status == 200


def test_a_removed_runner_is_unknown(api: Api) -> None:
    secret = api.register()
    with api.ci.database.write() as connection:
        runners.remove(connection, "h1", api.ci.clock())
    assert api.claim(secret).status == 401
    assert api.call("POST", "/runners/self/beat", secret, a_beat()).status == 401


def test_a_draining_runners_claim_is_answered_at_once(api: Api) -> None:
    secret = api.register()
    api.ci.queue(job())
    began = time.monotonic()
    assert api.call("POST", "/runners/self/beat", secret, a_beat(draining=True)).status == 200
    assert api.claim(secret, 30).status == 204
    assert time.monotonic() - began < 20
    assert api.call("POST", "/runners/self/beat", secret, a_beat()).json["drain"] is False


def test_a_runner_is_told_to_drain(api: Api) -> None:
    secret = api.register()
    with api.ci.database.write() as connection:
        runners.drain(connection, "h1", api.ci.clock())
    assert api.call("POST", "/runners/self/beat", secret, a_beat()).json["drain"] is True


# Claiming


def test_a_waiting_claim_gets_a_job_that_comes_later(api: Api) -> None:
    secret = api.register()
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(api.claim(secret, 25)))
    thread.start()
    until(lambda: api.metric("whitesmoke_runner_claims") == 1)
    job_id = api.ci.queue(job())
    thread.join(30)
    (answer,) = answers
    assert answer.status == 200
    assert answer.json["job"]["spec"]["name"] == "smoke"
    assert api.ci.job(job_id).state == "leased"


def test_a_claim_for_which_nothing_comes_is_answered_empty(api: Api) -> None:
    assert api.claim(api.register(), 0.3).status == 204
    assert api.metric("whitesmoke_runner_claims") == 0


def test_a_claim_whose_client_went_away_no_longer_counts(api: Api) -> None:
    import socket

    secret = api.register()
    with socket.create_connection(("127.0.0.1", api.port)) as client:
        request = f"POST /runner/v1/runners/self/claim?wait=30 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {secret}\r\n"
        client.sendall(f"{request}Content-Length: 0\r\n\r\n".encode())
        until(lambda: api.metric("whitesmoke_runner_claims") == 1)

    def listening() -> object:
        with api.ci.database.read() as connection:
            return connection.execute(sa.select(runner_table.c.listens_until)).scalar_one()

    until(lambda: listening() is None)
    api.ci.queue(job())
    assert api.ci.assign().assigned == []


def test_two_claims_of_one_runner_get_one_job_each(api: Api) -> None:
    secret = api.register(slots=2)
    answers: list[Any] = []
    threads = [threading.Thread(target=lambda: answers.append(api.claim(secret, 1.5))) for _ in range(3)]
    for thread in threads:
        thread.start()
    until(lambda: api.metric("whitesmoke_runner_claims") == 3)
    api.ci.run(job("a"), job("b"), job("c"))
    for thread in threads:
        thread.join(30)
    assert sorted(answer.status for answer in answers) == [200, 200, 204]
    assert len({answer.json["lease_id"] for answer in answers if answer.status == 200}) == 2


def test_a_report_lets_the_next_job_start(api: Api) -> None:
    secret = api.register()
    api.ci.run(job("a"), job("b"))
    lease, token, _ = api.grant(secret)
    assert api.claim(secret, 0.5).status == 204
    assert api.call("POST", f"{lease}/report", token, JobReport()).status == 204
    assert api.claim(secret, 20).status == 200


# Working


def test_a_job_from_claim_to_report(api: Api) -> None:
    secret = api.register("h1", gpus=2)
    job_id = api.ci.queue(job(gpus=2))
    tree = gzip.compress(b"the tree")
    api.files.source_path(HEAD).write_bytes(tree)
    lease, token, grant = api.grant(secret)
    assert grant["gpus"] == ["GPU-h1-0", "GPU-h1-1"]

    fetched = api.call("GET", f"{lease}/source/head", token)
    assert (fetched.status, fetched.body) == (200, tree)
    missing = api.call("GET", f"{lease}/source/base", token)
    assert missing.status == 404
    assert BASE in missing.json["problem"]

    assert api.call("POST", f"{lease}/beat", token, {"step": "smoke"}).json == {"cancel": False}
    assert api.ci.job(job_id).state == "running"
    assert api.call("POST", f"{lease}/log?offset=0", token, b"one\n").status == 204
    assert api.call("POST", f"{lease}/log?offset=4", token, b"two\n").status == 204
    kept = api.call("PUT", f"{lease}/artifacts/out/kpis.json", token, b"{}")
    assert kept.status == 201
    assert kept.json == {
        "path": "out/kpis.json",
        "bytes": 2,
        "sha256": hashlib.sha256(b"{}").hexdigest(),
    }
    api.rings.clear()
    assert api.call("POST", f"{lease}/report", token, JobReport(log_tail="two")).status == 204
    assert api.rings == ["quick"]
    assert api.ci.job(job_id).state == "reported"
    assert api.files.read_log(job_id) == b"one\ntwo\n"
    assert api.files.open_artifact(job_id, "out/kpis.json").read() == b"{}"
    with api.ci.database.read() as connection:
        kinds = connection.execute(sa.select(work.c.kind, work.c.payload).order_by(work.c.id)).all()
        stored = jobs.report_of(connection, job_id)
    assert ("ci_result", {"job_id": job_id}) in [tuple(row) for row in kinds]
    assert stored is not None
    assert (stored.runner, stored.gpus, stored.log_tail) == ("h1", ("GPU-h1-0", "GPU-h1-1"), "two")


def test_every_request_sent_twice_has_one_effect(api: Api) -> None:
    secret = api.register()
    job_id = api.ci.queue(job())
    lease, token, _ = api.grant(secret)
    for _ in range(2):
        assert api.call("POST", f"{lease}/beat", token, {"step": "smoke"}).status == 200
        assert api.call("POST", f"{lease}/log?offset=0", token, b"abc").status == 204
        assert api.call("PUT", f"{lease}/artifacts/a", token, b"A").status == 201
    for tail in ("first", "second"):
        assert api.call("POST", f"{lease}/report", token, JobReport(log_tail=tail)).status == 204
    assert api.files.read_log(job_id) == b"abc"
    assert api.files.open_artifact(job_id, "a").read() == b"A"
    with api.ci.database.read() as connection:
        stored = jobs.report_of(connection, job_id)
    assert stored is not None
    assert stored.log_tail == "first"


def test_after_its_report_a_leases_token_is_good_for_nothing_else(api: Api) -> None:
    secret = api.register()
    api.ci.queue(job())
    lease, token, _ = api.grant(secret)
    api.call("POST", f"{lease}/report", token, JobReport())
    assert api.call("POST", f"{lease}/beat", token, {}).status == 409
    assert api.call("POST", f"{lease}/log?offset=0", token, b"x").status == 409
    assert api.call("PUT", f"{lease}/artifacts/a", token, b"x").status == 409
    assert api.call("GET", f"{lease}/source/head", token).status == 409
    assert api.call("POST", f"{lease}/return", token, {"reason": "drain"}).status == 409
    assert api.call("POST", f"{lease}/report", token, JobReport()).status == 204


def test_a_job_that_is_handed_back_is_given_to_another_with_nothing_left_of_the_first(api: Api) -> None:
    first = api.register("h1")
    job_id = api.ci.queue(job())
    lease, token, _ = api.grant(first)
    api.call("POST", f"{lease}/log?offset=0", token, b"of the first")
    api.call("PUT", f"{lease}/artifacts/a", token, b"of the first")
    for _ in range(2):
        assert api.call("POST", f"{lease}/return", token, {"reason": "drain"}).status == 204
    lease, token, _ = api.grant(api.register("h2"))
    assert api.files.read_log(job_id) == b""
    assert api.call("POST", f"{lease}/log?offset=0", token, b"of the second").status == 204
    assert api.files.read_log(job_id) == b"of the second"
    assert not (api.files.root / "artifacts" / str(job_id)).exists()


def test_no_secret_opens_what_another_one_opens(api: Api) -> None:
    secret = api.register()
    other = api.register("h2")
    api.ci.run(job("a"), job("b"))
    one, one_token, _ = api.grant(secret)
    two, two_token, _ = api.grant(other)
    for path, token in ((one, two_token), (two, one_token), (one, secret), (one, "x"), (one, "")):
        assert api.call("POST", f"{path}/beat", token, {}).status == 401
        assert api.call("POST", f"{path}/report", token, JobReport()).status == 401
        assert api.call("GET", f"{path}/source/head", token).status == 401
    assert api.claim(one_token).status == 401
    assert api.call("POST", "/runners", one_token, registration("h3")).status == 401
    assert api.call("POST", "/leases/99/beat", one_token, {}).status == 404


def test_evidence_in_a_beat_comes_back_as_quarantine(api: Api) -> None:
    secret = api.register("h1", gpus=1)
    said = {
        "inventory": inventory(1).model_dump(mode="json"),
        "notices": [Notice(kind="ecc", gpu="GPU-h1-0").model_dump(mode="json")],
    }
    assert api.call("POST", "/runners/self/beat", secret, said).json["quarantined"] == ["GPU-h1-0"]


@pytest.mark.parametrize("how", ["claims wait", "nobody waits"])
def test_the_process_ends_in_moments_though_claims_wait(start: Callable[..., Any], how: str) -> None:
    with start() as api:
        secret = api.register()
        answers: list[Any] = []
        thread = threading.Thread(target=lambda: answers.append(api.claim(secret, 30)))
        if how == "claims wait":
            thread.start()
            until(lambda: api.metric("whitesmoke_runner_claims") == 1)
        began = time.monotonic()
    # The claim would wait for 30 s, and the server itself for 20.
    assert time.monotonic() - began < 15
    if how == "claims wait":
        thread.join(10)
        assert [answer.status for answer in answers] == [204]
