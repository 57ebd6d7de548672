"""What a runner and the service say to each other: JSON over HTTP, under `/runner/v1`.

    POST   /runners                            registration token   Registration -> Registered
    POST   /runners/self/beat                  runner's secret      Beat -> BeatAnswer
    POST   /runners/self/claim?wait=SECONDS    runner's secret      -> Grant, or 204 where nothing came
    DELETE /runners/self                       runner's secret      deregisters
    GET    /leases/ID/source/{head|base}       lease's token        -> tar.gz of the tree
    POST   /leases/ID/beat                     lease's token        LeaseBeat -> LeaseAnswer
    POST   /leases/ID/log?offset=BYTES         lease's token        bytes; those below what is kept are skipped
    PUT    /leases/ID/artifacts/PATH           lease's token        bytes -> Artifact
    POST   /leases/ID/report                   lease's token        JobReport; a second one changes nothing
    POST   /leases/ID/return                   lease's token        Returned: the job waits again, not counted as an attempt

Every refusal is `Problem` with a status: 401 unknown or spent token, 404 no such lease, 409 the lease is lost (stop the job),
413 too large, 422 malformed, 429 too many. Tokens stand in `Authorization: Bearer`.
"""

from __future__ import annotations

from pydantic import Field

from ci_dispatch.model import Frozen, Inventory, Job, JobName, Notice

PREFIX = "/runner/v1"
VERSION = 1


class Registration(Frozen):
    """A host that offers itself. A runner of the same name that is gone is replaced.

    `nonce` is the host's own, drawn once a registration: whoever asks again with it, since no answer came, is the same.
    """

    version: int = VERSION
    name: JobName
    inventory: Inventory
    nonce: str = Field(default="", max_length=64)


class Registered(Frozen):
    """`secret` is the runner's own from now on; the token that it registered with is spent."""

    runner_id: int
    secret: str
    beat_seconds: float


class Beat(Frozen):
    """A runner is well, or says what is not. One that is silent for a while offers nothing."""

    inventory: Inventory
    leases: tuple[int, ...] = Field(default=(), description="those it works on")
    draining: bool = False
    notices: tuple[Notice, ...] = Field(default=(), description="news about its GPUs")


class BeatAnswer(Frozen):
    """`drain`: claim no more, end when the last job has. `lost`: leases among the beat's that are no longer its own.

    `quarantined`: UUIDs that people or earlier failures have put out of use.
    """

    drain: bool = False
    lost: tuple[int, ...] = ()
    quarantined: tuple[str, ...] = ()


class Grant(Frozen):
    """A job to run now, on exactly these GPUs."""

    lease_id: int
    token: str
    job: Job
    gpus: tuple[str, ...] = Field(description="UUIDs")
    lease_seconds: float = Field(gt=0, description="without a beat of the lease it is lost after so long")
    log_bytes: int = Field(gt=0, description="the most that is kept of the log")
    artifact_bytes: int = Field(gt=0, description="the most that all artifacts may have together")


class LeaseBeat(Frozen):
    """`step` is the one that runs; empty before the first."""

    step: str = ""


class LeaseAnswer(Frozen):
    cancel: bool = False


class Returned(Frozen):
    reason: str = Field(max_length=500)


class Problem(Frozen):
    """What is wrong and what to do."""

    problem: str
    remedy: str = ""
