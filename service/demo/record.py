"""Makes the demo's recordings anew from answers.yaml: `python -m service.demo.record`.

Run it after changing the sample, its answers, a prompt or a checklist; a test says when that is due.
"""

from __future__ import annotations

import asyncio
import tempfile
from datetime import datetime
from functools import partial
from pathlib import Path

from reviewer.engines.recording import Recorder
from reviewer.ledger import Ledger
from service.demo.author import Author
from service.demo.play import ROUNDS, play_round, recording
from service.demo.sample import build, push_fix

_NOTE = "Written by hand for the sample in service/demo/sample; no model was asked, and token counts are estimates."
_TIMES = {
    1: datetime.fromisoformat("2026-09-01T11:57:00+08:00"),
    2: datetime.fromisoformat("2026-09-01T15:20:00+08:00"),
}


async def record(target: Path) -> None:
    """Plays both rounds with the author's words and writes `round-1.jsonl` and `round-2.jsonl` into `target`."""
    with tempfile.TemporaryDirectory(prefix="whitesmoke-") as folder:
        sample = build(Path(folder, "quire"))
        ledger = Ledger()
        for index in ROUNDS:
            if index > 1:
                push_fix(sample.path)
            path = target / recording(index).name
            path.unlink(missing_ok=True)
            now = partial(_TIMES.__getitem__, index)
            recorder = Recorder(Author(index), path, note=_NOTE, now=now)
            try:
                result, _ = await play_round(sample, ledger, recorder, now(), lambda _: None)
            finally:
                recorder.close()
            ledger = result.ledger


if __name__ == "__main__":
    asyncio.run(record(recording(1).parent))
