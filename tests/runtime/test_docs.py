"""The example in docs/runtime.md runs as it stands, on a small model of random weights."""

import re
import subprocess
import sys
from pathlib import Path

from tests.runtime.test_fp8_parity import PEER

ROOT = Path(__file__).parents[2]
SAVE = """
import json, runpy, sys
sys.modules["kernels"] = None
main = runpy.run_path(sys.argv[1])["main"]
from pathlib import Path
model = {"model_type": "qwen3", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 64,
         "max_position_embeddings": 128, "eos_token_id": None}
main(Path("."), {"seed": 3, "models": {"model": model}, "prompts": [[1, 2, 3]], "new_tokens": 8})
"""


def test_the_example_runs(tmp_path: Path) -> None:
    saved = subprocess.run(
        [sys.executable, "-c", SAVE, str(PEER)], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert saved.returncode == 0, saved.stderr
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/runtime.md").read_text(), re.DOTALL)
    ran = subprocess.run(
        [sys.executable, "-c", example],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", "PATH": "/usr/bin:/bin"},
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert len(lines) == 2 + 8 + 3 + 2 + 1
    # The prompt's embeddings give what its tokens give.
    ids = re.compile(r"\[[\d, ]+\]")
    assert ids.findall(lines[-1]) == ids.findall(lines[0])
