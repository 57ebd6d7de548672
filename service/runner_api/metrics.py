"""What the runners' API counts, beside the intake's counters."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class ApiMetrics:
    """Counters of one router, in the application's registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Counter(
            "whitesmoke_runner_requests",
            "Requests of runners answered.",
            ["call", "status"],
            registry=registry,
        )
        self.decision_seconds = Histogram(
            "whitesmoke_ci_decision_seconds",
            "Seconds to decide which jobs start, reading and writing included.",
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1),
            registry=registry,
        )
        self.assigned = Counter("whitesmoke_ci_assigned", "Jobs given to a runner.", registry=registry)
        self.reaped = Counter(
            "whitesmoke_ci_reaped", "Jobs that the reaper ended or put back.", ["why"], registry=registry
        )
        self.jobs = Gauge("whitesmoke_ci_jobs", "Jobs by state.", ["state"], registry=registry)
        self.claims = Gauge("whitesmoke_runner_claims", "Claims that wait for a job.", registry=registry)
        self.log_bytes = Counter("whitesmoke_ci_log_bytes", "Bytes of logs received.", registry=registry)
