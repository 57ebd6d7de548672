"""Checks on CUDA C++ that look at kernel launches and stream captures."""

from __future__ import annotations

import re
from collections.abc import Iterator

from reviewer.detectors.source import Source, Span

_LAUNCH = re.compile(r"<<<(?P<arguments>[^;{}]*?)>>>")
_TORCH = re.compile(r"#\s*include\s*[<\"](?:torch|ATen|c10)/")
_CHECKED = re.compile(
    r"cuda(?:GetLast|PeekAtLast)Error"
    r"|\w*(?:cuda|gpu|hip|kernel|launch)\w*_?check\w*\s*\(|check\w*_?(?:cuda|gpu|hip|kernel|launch)\w*\s*\(",
    re.IGNORECASE,
)
_BEGIN = re.compile(r"\bcudaStreamBeginCapture\s*\([^;]*;")
_END = re.compile(r"\bcudaStreamEndCapture\s*\(|^\}", re.MULTILINE)
_REFUSED = re.compile(
    r"\bcuda(?:Malloc|Free|MallocHost|FreeHost|HostAlloc|Memcpy|Memset"
    r"|DeviceSynchronize|StreamSynchronize|EventSynchronize)\s*\("
)


def default_stream_launch(source: Source) -> Iterator[Span]:
    """Launches without a stream in a file of a PyTorch extension."""
    if _TORCH.search(source.text):
        for match in _LAUNCH.finditer(source.code):
            if len(_split(match["arguments"])) < 4:
                yield _span(source, match)


def unchecked_launch(source: Source) -> Iterator[Span]:
    """Launches in a file that checks none: where some are checked, a macro may check the others."""
    if not _CHECKED.search(source.code):
        for match in _LAUNCH.finditer(source.code):
            yield _span(source, match)


def native_capture_call(source: Source) -> Iterator[Span]:
    """Refused calls between begin and end of a capture in one function; a relaxed capture permits some."""
    for begin in _BEGIN.finditer(source.code):
        end = _END.search(source.code, begin.end())
        if end and end.group().startswith("cuda") and "Relaxed" not in begin.group():
            for call in _REFUSED.finditer(source.code, begin.end(), end.start()):
                yield _span(source, call)


def _span(source: Source, match: re.Match[str]) -> Span:
    return source.line_at(match.start()), source.line_at(match.end())


def _split(arguments: str) -> list[str]:
    """Splits at the commas outside all brackets."""
    depth, parts = 0, [""]
    for character in arguments:
        depth += (character in "([{<") - (character in ")]}>")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts
