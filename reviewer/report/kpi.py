"""The round in numbers, as the JSON that a comment carries."""

from __future__ import annotations

import json

from reviewer.model import Kpi


def render_kpi(kpi: Kpi) -> str:
    """The keys of the established format first and in their order, then ours; two spaces of indent."""
    return json.dumps(kpi.model_dump(mode="json"), indent=2, ensure_ascii=False)
