"""What is remembered of a pull request from round to round: findings by lasting ids, and files as reviewed."""

from __future__ import annotations

from typing import Literal

from pydantic import ValidationError

from reviewer.errors import LedgerError
from reviewer.model import Finding, Frozen, ReportedFinding, RoundReport, State
from reviewer.plan import FileMark
from reviewer.verdict import settle


class Dismissal(Frozen):
    """A maintainer's word that a finding does not matter, and what the finding was before it."""

    by: str
    reason: str


class Ledger(Frozen):
    """The state between rounds. `last` is the report of the last round, `folded` the places that share a
    root cause with a finding and are known by its id."""

    schema_version: Literal[1] = 1
    rounds: int = 0
    next_number: int = 1
    findings: dict[str, ReportedFinding] = {}
    folded: dict[str, tuple[Finding, ...]] = {}
    dismissals: dict[str, Dismissal] = {}
    files: dict[str, FileMark] = {}
    last: RoundReport | None = None

    def open_findings(self) -> tuple[ReportedFinding, ...]:
        return tuple(one for one in self.findings.values() if one.state is State.OPEN)

    def dismiss(self, finding_id: str, by: str, reason: str) -> Ledger:
        """The ledger with one open finding set aside for good, and the last round's verdict without it."""
        finding = self._finding(finding_id, State.OPEN, "only an open finding can be dismissed")
        if not reason.strip():
            raise LedgerError(f"the dismissal of {finding_id} has no reason", "say why it does not matter")
        dismissed = finding.model_copy(update={"state": State.DISMISSED})
        return self._with(dismissed, {**self.dismissals, finding_id: Dismissal(by=by, reason=reason)})

    def reopen(self, finding_id: str) -> Ledger:
        """The ledger with a dismissal taken back."""
        finding = self._finding(finding_id, State.DISMISSED, "only a dismissed finding can be reopened")
        dismissals = {key: value for key, value in self.dismissals.items() if key != finding_id}
        return self._with(finding.model_copy(update={"state": State.OPEN}), dismissals)

    def to_json(self) -> str:
        return self.model_dump_json(indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, name: str) -> Ledger:
        """Raises `LedgerError` naming the file and the first thing wrong with it."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"]) or "file"
            raise LedgerError(
                f"{name} is not a ledger of this version: {place}: {first['msg']}",
                "move it away to start again from round 1",
            ) from error

    def _finding(self, finding_id: str, state: State, else_say: str) -> ReportedFinding:
        finding = self.findings.get(finding_id)
        if finding is None:
            known = ", ".join(self.findings) or "none"
            raise LedgerError(f"no finding {finding_id} in this pull request", f"known ones: {known}")
        if finding.state is not state:
            raise LedgerError(f"finding {finding_id} is {finding.state}", else_say)
        return finding

    def _with(self, finding: ReportedFinding, dismissals: dict[str, Dismissal]) -> Ledger:
        update: dict[str, object] = {
            "findings": {**self.findings, finding.id: finding},
            "dismissals": dismissals,
        }
        if self.last is not None:
            update["last"] = settle(self.last, finding)
        return self.model_copy(update=update)
