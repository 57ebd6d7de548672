"""Hugging Face transformers as the peer to equal: run in a process of its own, since it asks for a package `kernels`.

`python peer.py FOLDER` saves a small random model of each configuration on standard input as `FOLDER/name`, runs the
prompts through it, and keeps logits and greedy ids as `FOLDER/name.expected`, a safetensors file. Models named in
`fp8` are saved as fp8 checkpoints, as those on the hub are; transformers reads the same weights dequantized by hand,
since its own reader of such checkpoints wants a GPU or the package `accelerate`.
"""

import json
import sys
from pathlib import Path
from typing import Any

BLOCK = 128


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
        if name in request.get("fp8", ()):
            dequantized = _quantize(folder / name, values["num_hidden_layers"])
            model = transformers.AutoModelForCausalLM.from_pretrained(dequantized, dtype=torch.float32).eval()
        expected = {}
        for index, prompt in enumerate(request["prompts"]):
            ids = torch.tensor([prompt])
            with torch.no_grad():
                expected[f"logits.{index}"] = model(ids).logits[0]
                generated = model.generate(
                    ids, max_new_tokens=request["new_tokens"], do_sample=False, eos_token_id=None
                )
                # The logits that chose each generated token, one forward over them all.
                chose = model(generated[:, :-1]).logits[0, len(prompt) - 1 :]
            expected[f"ids.{index}"] = generated[0, len(prompt) :].contiguous()
            expected[f"steps.{index}"] = chose.contiguous()
        save_file(expected, folder / f"{name}.expected")


def _quantize(folder: Path, layers: int) -> Path:
    """Make `folder` an fp8 checkpoint with fresh projections; returns a folder of the same weights dequantized.

    Blocks differ in size by up to 16 times, so that a scale at another block's place is seen.
    """
    import shutil

    import torch
    from safetensors.torch import load_file, save_file

    dequantized = folder.with_name(f"{folder.name}.dequantized")
    shutil.copytree(folder, dequantized)
    file = "model.safetensors"
    stored, plain = {}, {}
    for name, tensor in load_file(folder / file).items():
        if not name.endswith("_proj.weight"):
            stored[name] = plain[name] = tensor
            continue
        rows, columns = (size // BLOCK for size in tensor.shape)
        blocks = torch.randn(rows, BLOCK, columns, BLOCK) / tensor.shape[1] ** 0.5
        blocks *= 4 ** (2 * torch.rand(rows, 1, columns, 1) - 1)
        scale = blocks.abs().amax((1, 3)) / torch.finfo(torch.float8_e4m3fn).max
        codes = (blocks / scale[:, None, :, None]).to(torch.float8_e4m3fn)
        stored[name] = codes.reshape(tensor.shape)
        stored[f"{name}_scale_inv"] = scale
        plain[name] = (codes.float() * scale[:, None, :, None]).reshape(tensor.shape)
    save_file(stored, folder / file, metadata={"format": "pt"})
    save_file(plain, dequantized / file, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    kept = [
        f"model.layers.{layer}.{module}"
        for layer in range(layers)
        for module in ("input_layernorm", "mlp.gate", "post_attention_layernorm")
    ]
    config["quantization_config"] = {
        "activation_scheme": "dynamic",
        "modules_to_not_convert": ["lm_head", *kept],
        "fmt": "e4m3",
        "quant_method": "fp8",
        "weight_block_size": [BLOCK, BLOCK],
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    return dequantized


if __name__ == "__main__":
    sys.modules["kernels"] = None  # type: ignore[assignment]  # ours is not the one that it looks for
    main(Path(sys.argv[1]), json.load(sys.stdin))
