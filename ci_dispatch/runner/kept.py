"""What a runner keeps of its leases until the service has acknowledged their reports, so that an agent that died loses none.

One folder a lease: the grant with its token, whether the first step began, the log, the report. Nobody else may read it.
"""

from __future__ import annotations

import logging
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from ci_dispatch.model import JobReport
from ci_dispatch.protocol import Grant
from ci_dispatch.runner.files import private_folder, write_private

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KeptLease:
    """One lease's folder."""

    grant: Grant
    folder: Path

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @property
    def has_begun(self) -> bool:
        return (self.folder / "begun").exists()

    def mark_begun(self) -> None:
        (self.folder / "begun").touch(mode=0o600)

    def write_report(self, report: JobReport) -> None:
        """Raises OSError."""
        write_private(self.folder / "report.json", report.model_dump_json().encode())

    def report(self) -> JobReport | None:
        """The report, where there is a whole one."""
        try:
            return JobReport.model_validate_json((self.folder / "report.json").read_bytes())
        except (OSError, ValidationError):
            return None

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Kept:
    """The folder of all leases."""

    folder: Path

    def open(self, grant: Grant) -> KeptLease:
        """Raises OSError."""
        private_folder(self.folder)
        folder = self.folder / str(grant.lease_id)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        write_private(folder / "grant.json", grant.model_dump_json().encode())
        return KeptLease(grant, folder)

    def set_aside(self) -> list[KeptLease]:
        """Those of earlier lives, the oldest first, in a folder of their own: a lease may be granted again under its number.

        What cannot be read is removed and named in the log. Raises OSError.
        """
        earlier = private_folder(self.folder.with_name(f"{self.folder.name}.earlier"))
        for folder in self.folder.iterdir() if self.folder.is_dir() else ():
            folder.rename(earlier / f"{folder.name}.{secrets.token_hex(4)}")
        leases = []
        for folder in earlier.iterdir():
            try:
                grant = Grant.model_validate_json((folder / "grant.json").read_bytes())
            except (OSError, ValidationError) as error:
                logger.warning("the kept lease %s cannot be read: %s", folder, type(error).__name__)
                shutil.rmtree(folder, ignore_errors=True)
                continue
            leases.append(KeptLease(grant, folder))
        return sorted(leases, key=lambda lease: lease.grant.lease_id)
