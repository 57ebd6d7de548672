"""Hugging Face transformers as the peer to equal: run in a process of its own, since it asks for a package `kernels`.

`python peer.py FOLDER` saves a small random model of each configuration on standard input as `FOLDER/name`, runs the
prompts through it, and keeps logits and greedy ids as `FOLDER/name.expected`, a safetensors file.
"""

import json
import sys
from pathlib import Path
from typing import Any


def main(folder: Path, request: dict[str, Any]) -> None:
    import torch
    import transformers
    from safetensors.torch import save_file

    torch.manual_seed(request["seed"])
    for name, values in request["models"].items():
        config = transformers.AutoConfig.for_model(**values)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        for parameter in model.parameters():
            # Norms start as ones and would hide a norm that is left out or misplaced.
            if parameter.dim() == 1:
                parameter.data = 1 + 0.2 * torch.randn_like(parameter)
        model.save_pretrained(folder / name, max_shard_size="200KB" if "shards" in name else "5GB")
        expected = {}
        for index, prompt in enumerate(request["prompts"]):
            ids = torch.tensor([prompt])
            with torch.no_grad():
                expected[f"logits.{index}"] = model(ids).logits[0]
                generated = model.generate(
                    ids, max_new_tokens=request["new_tokens"], do_sample=False, eos_token_id=None
                )
            expected[f"ids.{index}"] = generated[0, len(prompt) :].contiguous()
        save_file(expected, folder / f"{name}.expected")


if __name__ == "__main__":
    sys.modules["kernels"] = None  # type: ignore[assignment]  # ours is not the one that it looks for
    main(Path(sys.argv[1]), json.load(sys.stdin))
