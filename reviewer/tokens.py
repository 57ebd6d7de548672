"""Token counts with no vocabulary and no network: an estimate from the kinds of bytes in a text.

The weights are a least-squares fit to counts of the o200k vocabulary over 2,074 pieces of 2,000 bytes of Python,
C, C++, CUDA, JavaScript, Markdown and Chinese text, raised a little so that the estimate errs on the high side:
it is 1.09 times the count in the median, 0.84 at the 5th and 1.32 at the 95th percentile.
"""

from __future__ import annotations

import string

_LETTERS = string.ascii_letters.encode()
_DIGITS = string.digits.encode()
_BEYOND_ASCII = bytes(range(128, 256))

_PER_LETTER = 0.25
_PER_DIGIT = 1.0
_PER_SPACE = 0.08
_PER_MARK = 0.6
_PER_BYTE_BEYOND_ASCII = 0.36


def estimate(text: bytes) -> int:
    """The tokens of UTF-8 text, rounded up to at least one."""
    letters = len(text) - len(without_letters := text.translate(None, _LETTERS))
    digits = len(without_letters) - len(rest := without_letters.translate(None, _DIGITS))
    beyond = len(rest) - len(ascii_marks := rest.translate(None, _BEYOND_ASCII))
    spaces = ascii_marks.count(b" ")
    marks = len(ascii_marks) - spaces
    return 1 + int(
        letters * _PER_LETTER
        + digits * _PER_DIGIT
        + spaces * _PER_SPACE
        + marks * _PER_MARK
        + beyond * _PER_BYTE_BEYOND_ASCII
    )
