"""Makes large patches that look like real ones, for benchmarks."""

from __future__ import annotations

import random
from collections.abc import Iterator

_VOCABULARY = """
batch block bucket cache commit config cursor delta digest engine error event field frame graph handle head
index kernel lane lease ledger length limit line logits mask merge node offset page path policy prompt queue
range record request result round scale schema shard slot state status stream table tensor token value weight
"""
_WORDS = _VOCABULARY.split()
_LINES = (
    "    {a}_{b} = self.{c}_{d}.gather({a}, {b}={n})",
    "    if {a}.{b} is None or len({c}_{d}) > {n}:",
    "        return {a}_{b}[{c} : {c} + {n}]",
    "    for {a}, {b} in {c}_{d}.items():",
    '        raise ValueError(f"{a} {b}: expected {n}, got {{{c}}}")',
    "    # The {a} of a {b} must outlive its {c}.",
    "        await {a}.{b}({c}_{d}, timeout={n})",
    "    {a}.{b} += {n}",
    "    }}",
    "        }},",
    "",
    "def {a}_{b}({c}: int, {d}: str) -> list[int]:",
)
_FOLDERS = ("api", "core", "kernels", "runtime", "service", "tests", "tools")
_SUFFIXES = (".py", ".py", ".py", ".cpp", ".cu", ".h", ".ts", ".yaml")
_CONTEXT = 3


def make_patch(files: int = 1467, added: int = 290_000, seed: int = 0) -> bytes:
    """A patch in git's format that adds `added` lines over `files` files; about 17 MB by default.

    Of 40 files, one is deleted, four are new, and the others have hunks that add and replace lines.
    The same arguments give the same bytes.
    """
    rng = random.Random(seed)
    # Lines are drawn from a pool: making each anew would take longer than what is to be measured.
    pool = [_make_line(rng) for _ in range(20_000)]
    growing = [index for index in range(files) if not _is_deleted(index)]
    weights = {index: rng.paretovariate(1.5) for index in growing}
    total = sum(weights.values())
    shares = {index: int(added * weights[index] / total) for index in growing}
    for index in rng.choices(growing, k=added - sum(shares.values())):
        shares[index] += 1
    return "".join(
        part for index in range(files) for part in _file(rng, pool, index, shares.get(index, 0))
    ).encode()


def _is_deleted(index: int) -> bool:
    return index % 40 == 39


def _make_line(rng: random.Random) -> str:
    a, b, c, d = rng.choices(_WORDS, k=4)
    return rng.choice(_LINES).format(a=a, b=b, c=c, d=d, n=rng.randrange(10_000))


def _file(rng: random.Random, pool: list[str], index: int, added: int) -> Iterator[str]:
    folder, suffix = rng.choice(_FOLDERS), rng.choice(_SUFFIXES)
    path = f"{folder}/{rng.choice(_WORDS)}/{rng.choice(_WORDS)}_{index}{suffix}"
    blobs = f"{rng.getrandbits(160):040x}", f"{rng.getrandbits(160):040x}"
    yield f"diff --git a/{path} b/{path}\n"
    if _is_deleted(index):
        removed = rng.randrange(5, 200)
        yield f"deleted file mode 100644\nindex {blobs[0]}..{0:040}\n--- a/{path}\n+++ /dev/null\n"
        yield f"@@ -1,{removed} +0,0 @@\n"
        yield from _lines(rng, pool, "-", removed)
    elif index % 10 == 1 and added:
        yield f"new file mode 100644\nindex {0:040}..{blobs[1]}\n--- /dev/null\n+++ b/{path}\n"
        yield f"@@ -0,0 +1,{added} @@\n"
        yield from _lines(rng, pool, "+", added)
    else:
        yield f"index {blobs[0]}..{blobs[1]} 100644\n--- a/{path}\n+++ b/{path}\n"
        yield from _hunks(rng, pool, added)


def _hunks(rng: random.Random, pool: list[str], added: int) -> Iterator[str]:
    old = new = 1
    while True:
        more = min(added, rng.randrange(1, 60))
        added -= more
        less = rng.randrange(1, 20) if not more or rng.random() < 0.6 else 0
        gap = rng.randrange(1, 200)
        old, new = old + gap, new + gap
        heading = rng.choice(pool).strip()
        yield f"@@ -{old},{less + 2 * _CONTEXT} +{new},{more + 2 * _CONTEXT} @@ {heading}\n"
        yield from _lines(rng, pool, " ", _CONTEXT)
        yield from _lines(rng, pool, "-", less)
        yield from _lines(rng, pool, "+", more)
        yield from _lines(rng, pool, " ", _CONTEXT)
        old, new = old + less + 2 * _CONTEXT, new + more + 2 * _CONTEXT
        if not added:
            return


def _lines(rng: random.Random, pool: list[str], marker: str, count: int) -> Iterator[str]:
    for line in rng.choices(pool, k=count):
        yield f"{marker}{line}\n"
