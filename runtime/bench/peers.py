"""Other engines at the same shape, each in a process and a folder of its own."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from runtime.config import ModelConfig

SCRIPT = Path(__file__).with_name("transformers_peer.py")
STEPS = 20
TIMEOUT_S = 120


@dataclass(frozen=True)
class PeerFigures:
    """One peer at one shape.

    Attributes:
        decode_ms: milliseconds a step, the median; None where there is no figure.
        note: how it was run, or why there is no figure.
    """

    name: str
    batch: int
    context: int
    decode_ms: float | None
    note: str


def transformers(
    config: ModelConfig, batches: Sequence[int], context: int, device: torch.device, *, steps: int = STEPS
) -> list[PeerFigures]:
    """Hugging Face transformers, eager, its StaticCache, a manual greedy loop; random weights of the same shape.

    One process for all batches; what it did not measure has its last words as the reason.
    """
    request = {
        "config": transformers_config(config),
        "device": device.type,
        "batches": list(batches),
        "context": context,
        "steps": steps,
    }
    answers, reason = _ask(request)
    measured = {
        answer["batch"]: PeerFigures(
            f"transformers {answer['version']}",
            answer["batch"],
            context,
            answer["decode_ms"],
            "eager, StaticCache, manual greedy loop",
        )
        for answer in answers
        if "decode_ms" in answer
    }
    return [
        measured.get(batch, PeerFigures("transformers", batch, context, None, reason)) for batch in batches
    ]


def _ask(request: Mapping[str, Any]) -> tuple[list[dict[str, Any]], str]:
    """The peer's answers, and why there are not more of them."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                # -P: the script's folder is not searched for modules; its neighbours' names are common ones.
                [sys.executable, "-P", str(SCRIPT)],
                input=json.dumps(request),
                capture_output=True,
                text=True,
                cwd=folder,
                timeout=TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return [], f"not done after {TIMEOUT_S} s"
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    for answer in answers:
        if "skipped" in answer:
            return answers, answer["skipped"]
    return answers, "failed: " + (done.stderr.strip().splitlines() or ["no message"])[-1]


def transformers_config(config: ModelConfig) -> dict[str, Any]:
    """The keys of a Qwen3 config.json; dense models only."""
    return {
        "model_type": "qwen3",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.q_heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_length,
        "rms_norm_eps": config.norm_eps,
        "rope_parameters": dict(config.rope),
        "tie_word_embeddings": config.tied_embedding,
    }
