"""The examples in docs/runtime.md run as they stand, on small models of random weights."""

import argparse
import re
import subprocess
import sys
from pathlib import Path

from runtime.server.cli import add_arguments
from tests.runtime.server_kit import WAIT, Running, ask, collect
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


def examples() -> list[str]:
    """The engine from Python, and a client of the server."""
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs/runtime.md").read_text(), re.DOTALL)


def test_a_client_of_the_server_gets_a_text() -> None:
    _, example = examples()
    with Running() as running:
        ran = subprocess.run(
            [sys.executable, "-c", example.replace("127.0.0.1:50051", f"127.0.0.1:{running.port}")],
            capture_output=True,
            text=True,
            env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "PYTHONIOENCODING": "utf-8"},
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        sampling = {"temperature": 0.8, "seed": 7, "max_tokens": 16}
        answer = collect(running.stub.Generate(ask("white smoke", **sampling), timeout=WAIT))[0]
    assert ran.stdout == answer.text
    assert len(answer.text) > 1


def test_every_flag_that_the_page_names_is_one_of_the_commands() -> None:
    page = (ROOT / "docs/runtime.md").read_text()
    section = page[page.index("## The server") :]
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    known = {word for action in parser._actions for word in action.option_strings}
    of_others = {"--direct"}
    assert set(re.findall(r"--[a-z][a-z-]+", section)) - of_others <= known


def test_the_example_runs(tmp_path: Path) -> None:
    saved = subprocess.run(
        [sys.executable, "-c", SAVE, str(PEER)], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert saved.returncode == 0, saved.stderr
    example, _ = examples()
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
