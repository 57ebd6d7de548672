"""Hugging Face transformers' logits processors, run in a process of their own: they ask for a package `kernels`.

`python processors_peer.py FILE` reads a list of cases (torch.save) and writes `FILE.expected`, their processed logits.
"""

import sys
from typing import Any

import torch


def processed(case: dict[str, Any]) -> torch.Tensor:
    """In the order in which its generation applies them."""
    from transformers import (
        MinNewTokensLengthLogitsProcessor,
        NoRepeatNGramLogitsProcessor,
        RepetitionPenaltyLogitsProcessor,
        SequenceBiasLogitsProcessor,
    )

    processors = []
    if case["bias"]:
        processors.append(
            SequenceBiasLogitsProcessor([[[token], value] for token, value in case["bias"].items()])
        )
    processors.append(RepetitionPenaltyLogitsProcessor(case["repetition"]))
    if case["ngram"]:
        processors.append(NoRepeatNGramLogitsProcessor(case["ngram"]))
    if case["min_tokens"]:
        processors.append(
            MinNewTokensLengthLogitsProcessor(
                len(case["prompt"]), case["min_tokens"], case["stop_ids"], device="cpu"
            )
        )
    ids, scores = torch.tensor([case["prompt"] + case["generated"]]), case["logits"][None]
    for process in processors:
        scores = process(ids, scores)
    return scores[0]


if __name__ == "__main__":
    sys.modules["kernels"] = None  # type: ignore[assignment]  # ours is not the one that it looks for
    torch.save([processed(case) for case in torch.load(sys.argv[1])], f"{sys.argv[1]}.expected")
