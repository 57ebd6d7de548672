"""Hugging Face transformers' beam search, in a process of its own, as `peer.py` is.

`python peer_beams.py FOLDER` reads models and searches on standard input, saves each model's folder, and writes what
`generate` returned as `FOLDER/expected.json`: for each search its sequences and scores. A search without `prompt` is run
over a table of logits by step and last token instead of a model; the tables are kept as `FOLDER/tables.safetensors`.
"""

import json
import sys
from pathlib import Path
from typing import Any

STAND_IN = -1e8  # above it no score of transformers' own, which are -1e9 divided by a length


def main(folder: Path, request: dict[str, Any]) -> None:
    import torch
    import transformers
    from safetensors.torch import save_file
    from transformers.generation import GenerationMixin
    from transformers.modeling_outputs import CausalLMOutputWithPast

    class Table(transformers.PreTrainedModel, GenerationMixin):  # type: ignore[misc]
        """A language model that knows the step and the last token: logits [steps, vocab, vocab]."""

        config_class = transformers.Qwen3Config

        def __init__(self, logits: torch.Tensor) -> None:
            super().__init__(transformers.Qwen3Config(vocab_size=logits.shape[1], eos_token_id=None))
            self.logits = torch.nn.Parameter(logits, requires_grad=False)
            self.post_init()

        def forward(self, input_ids: torch.Tensor, **_: object) -> CausalLMOutputWithPast:
            return CausalLMOutputWithPast(logits=self.logits[input_ids.shape[1] - 1, input_ids[:, -1:]])

        def prepare_inputs_for_generation(
            self, input_ids: torch.Tensor, **_: object
        ) -> dict[str, torch.Tensor]:
            return {"input_ids": input_ids}

    def search(model: Any, prompt: list[int], given: dict[str, Any]) -> dict[str, Any]:
        found = model.generate(
            torch.tensor([prompt]),
            do_sample=False,
            num_beams=given["beams"],
            length_penalty=given["length_penalty"],
            early_stopping=given["early_stopping"],
            num_return_sequences=given["return_sequences"],
            max_new_tokens=given["max_tokens"],
            eos_token_id=given["stop_ids"] or None,
            suppress_tokens=given["banned"] or None,
            repetition_penalty=given["repetition_penalty"],
            pad_token_id=0,
            use_cache=not isinstance(model, Table),
            return_dict_in_generate=True,
            output_scores=True,
        )
        lengths = (found.beam_indices >= 0).sum(1).tolist()
        rows = zip(
            found.sequences[:, len(prompt) :].tolist(), lengths, found.sequences_scores.tolist(), strict=True
        )
        kept = [(row[:length], score) for row, length, score in rows if score > STAND_IN]
        return {"tokens": [tokens for tokens, _ in kept], "scores": [score for _, score in kept]}

    torch.manual_seed(request["seed"])
    models = {}
    for name, values in request["models"].items():
        config = transformers.AutoConfig.for_model(**values)
        models[name] = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        # As they are made, all tokens are about as likely: no beam would ever be far ahead.
        models[name].lm_head.weight.data *= 12
        models[name].save_pretrained(folder / name)
    expected, tables = [], {}
    for index, given in enumerate(request["searches"]):
        if "prompt" in given:
            model, prompt = models[given["model"]], given["prompt"]
        else:
            size = given["vocab_size"]
            tables[str(index)] = torch.randn(given["max_tokens"], size, size) * 2
            model, prompt = Table(tables[str(index)]), [0]
        if given.get("stops_that_occur"):
            free = search(model, prompt, given)["tokens"]
            given["stop_ids"] = sorted(
                {row[place] for row, place in zip(free, given["stops_that_occur"], strict=False)}
            )
        expected.append(given | search(model, prompt, given))
    save_file(tables, folder / "tables.safetensors")
    (folder / "expected.json").write_text(json.dumps(expected))


if __name__ == "__main__":
    sys.modules["kernels"] = None  # type: ignore[assignment]  # ours is not the one that it looks for
    main(Path(sys.argv[1]), json.load(sys.stdin))
