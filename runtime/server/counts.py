"""What the server counts beside the engine's own metrics."""

from runtime.metrics import Metric, MetricKind

REASONS = ("cancelled", "slow reader", "asked", "drained", "front end gone")
METRICS = (
    Metric(
        "server_refusals_total", MetricKind.COUNTER, "Requests that were not taken, by status.", ("status",)
    ),
    Metric("server_aborts_total", MetricKind.COUNTER, "Requests that were ended early, by why.", ("reason",)),
    Metric("server_open_requests", MetricKind.GAUGE, "Requests taken and not ended."),
)
