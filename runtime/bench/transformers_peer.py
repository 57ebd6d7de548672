"""Decode steps of Hugging Face transformers: a script of its own, which no module imports.

It is run by its path from an empty folder, because transformers asks for a package named `kernels` and would find ours.
Standard input: JSON with `config` (of transformers), `device`, `batches`, `context` and `steps`. Standard output: a line of
JSON with `version`, `batch` and `decode_ms` for each batch, or one with `skipped`, a reason. Weights are random, drawn on
the device; nothing is downloaded. A prefill of random ids fills a StaticCache, then a loop of our own feeds back the
likeliest token (cheaper than what our engine samples). Each step is waited for; the median counts.
"""

import json
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

WARM_STEPS = 2


def main(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    try:
        import torch
        import transformers
    except ImportError as error:
        yield {"skipped": f"transformers cannot be imported: {error}"}
        return
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    device = torch.device(request["device"])
    config = transformers.AutoConfig.for_model(**request["config"])
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    with device:
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    steps = request["steps"]
    prompt = max(1, request["context"] - steps // 2)
    for batch in request["batches"]:
        cache = transformers.StaticCache(config=config, max_cache_len=prompt + WARM_STEPS + steps)
        ids = torch.randint(config.vocab_size, (batch, prompt), device=device)
        samples = []
        for _ in range(1 + WARM_STEPS + steps):
            started = time.perf_counter()
            logits = model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
            ids = logits[:, -1].argmax(-1, keepdim=True)
            ids.tolist()  # an engine's ids reach the host too
            samples.append((time.perf_counter() - started) * 1e3)
        decode_ms = statistics.median(samples[1 + WARM_STEPS :])  # the first one is the prefill
        yield {"version": transformers.__version__, "batch": batch, "decode_ms": decode_ms}


if __name__ == "__main__":
    sys.modules["kernels"] = None  # type: ignore[assignment]  # ours is not the one that it looks for
    for answer in main(json.load(sys.stdin)):
        print(json.dumps(answer), flush=True)
