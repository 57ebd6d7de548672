"""The engine behind the demo's recordings: it answers with the words of answers.yaml.

Only `record` uses it; the demo itself replays the recordings.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

from reviewer import tokens
from reviewer.engines.base import Completion, Request, ToolCall
from reviewer.errors import EngineError

ANSWERS = Path(__file__).with_name("answers.yaml")
_ITEM = re.compile(r"^- ([a-z_]+\.[a-z0-9-]+): ", re.MULTILINE)
_FOR_THIS_FILE_ONLY = frozenset(("fault", "pass_rest"))


class Author:
    """Answers one round. Token counts are estimates; no model was asked, so there is no time and no cost."""

    def __init__(self, round_index: int) -> None:
        self._words: dict[str, Any] = yaml.safe_load(ANSWERS.read_text("utf-8"))["rounds"][round_index - 1]

    async def complete(self, request: Request) -> Completion:
        prompt = request.messages[1].content
        entry = self._entry(request, prompt)
        turns = entry.get("tool_calls", [])
        tokens_in = sum(tokens.estimate(message.content.encode()) for message in request.messages)
        if request.key.turn < len(turns):
            calls = tuple(
                ToolCall(f"call_{request.key.turn}_{number}", call["name"], json.dumps(call["arguments"]))
                for number, call in enumerate(turns[request.key.turn])
            )
            return Completion("", calls, tokens_in, 30 * len(calls), model="sample", finish="tool_calls")
        text = json.dumps(_answer(entry["answer"], prompt), ensure_ascii=False)
        return Completion(text, (), tokens_in, tokens.estimate(text.encode()), model="sample")

    def warnings(self) -> tuple[str, ...]:
        return ()

    def _entry(self, request: Request, prompt: str) -> dict[str, Any]:
        step, rep = request.key.step, request.key.rep
        entries = self._words.get(step, [])
        if step == "discover":
            found: dict[str, Any] = entries[rep]
            return found
        for entry in entries:
            if (entry.get("contains") or entry.get("subject_contains", "")) in prompt:
                if "answers" not in entry:
                    return dict(entry)
                first = len(self._words["discover"]) if step == "confirm" else 0
                return {"answer": entry["answers"][rep - first]}
        raise EngineError(
            f"{ANSWERS.name} has no answer for step {step}, rep {rep}",
            f"add one that fits:\n{prompt[-2000:]}",
        )


def _answer(answer: dict[str, Any], prompt: str) -> dict[str, Any]:
    """The answer as a model gives it: without this file's own keys, with the passes that it leaves out."""
    plain = {key: value for key, value in answer.items() if key not in _FOR_THIS_FILE_ONLY}
    if "findings" in plain:
        plain["findings"] = [
            {key: value for key, value in finding.items() if key not in _FOR_THIS_FILE_ONLY}
            for finding in plain["findings"]
        ]
    if answer.get("pass_rest"):
        listed = plain.get("checklist", [])
        named = {item["id"] for item in listed}
        rest = [{"id": id_, "answer": "pass"} for id_ in _ITEM.findall(prompt) if id_ not in named]
        plain["checklist"] = [*listed, *rest]
    return plain
