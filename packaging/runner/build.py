"""Makes the folder that a GPU host installs the runner from, without an index: `python packaging/runner/build.py FOLDER`.

It holds our own wheel and the locked wheels that it stands on, for each Python that a host may have. `--own-only` leaves those out.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
PYTHONS = ("3.11", "3.12", "3.13")
PLATFORMS = ("manylinux_2_17_x86_64", "manylinux2014_x86_64", "manylinux_2_28_x86_64")
MOST_BYTES = 40 << 20
_PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")


def build(folder: Path, *, own_only: bool = False) -> int:
    """Fills a folder, which is emptied first; answers its bytes. Raises SystemExit where they are too many."""
    with tempfile.TemporaryDirectory(prefix="runner-wheels-") as name:
        draft = Path(name)
        # The build's tool is in the environment already: no index is asked for it.
        subprocess.run(
            [*_PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", draft, HERE], check=True
        )
        for version in () if own_only else PYTHONS:
            _download(version, draft)
        size = sum(wheel.stat().st_size for wheel in draft.iterdir())
        if size > MOST_BYTES:
            raise SystemExit(f"the wheels take {size} bytes, more than {MOST_BYTES}: look at what was added")
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(draft, folder)
        folder.chmod(0o755)
    return size


def _download(version: str, folder: Path) -> None:
    platforms = [part for one in PLATFORMS for part in ("--platform", one)]
    subprocess.run(
        [
            *(*_PIP, "download", "--only-binary", ":all:", "--require-hashes", "--no-deps", "--dest", folder),
            *("--implementation", "cp", "--python-version", version, *platforms),
            *("--requirement", HERE / "requirements.lock"),
        ],
        check=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--own-only", action="store_true", help="our own wheel alone")
    given = parser.parse_args()
    size = build(given.folder, own_only=given.own_only)
    print(f"{len(list(given.folder.iterdir()))} wheels, {size / 1e6:.1f} MB in {given.folder}")


if __name__ == "__main__":
    main()
