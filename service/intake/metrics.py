"""What the intake counts."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector


class Metrics:
    """Counters of one application, in their own registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.deliveries = Counter(
            "whitesmoke_deliveries",
            "Webhook requests answered.",
            ["event", "outcome"],
            registry=self.registry,
        )
        self.batch_size = Histogram(
            "whitesmoke_intake_batch_size",
            "Deliveries in one transaction.",
            buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256),
            registry=self.registry,
        )
        self.commit_seconds = Histogram(
            "whitesmoke_intake_commit_seconds",
            "Seconds to insert and commit a batch, failures included.",
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5),
            registry=self.registry,
        )
        self.queue_depth = Gauge(
            "whitesmoke_intake_queue_depth", "Deliveries waiting for their commit.", registry=self.registry
        )
        self.lost_wakeups = Counter(
            "whitesmoke_intake_lost_wakeups",
            "Stored deliveries whose wake-up failed; the reaper finds them.",
            registry=self.registry,
        )
