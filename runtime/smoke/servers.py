"""Each case's server, started, visited and ended; some at a time, since most of a start is waiting."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Self

from runtime.server.process import END_SECONDS, START_SECONDS, ServerProcess, ServerProcessError
from runtime.smoke import visit
from runtime.smoke.plan import Planned
from runtime.smoke.visit import Visit, failed

AT_ONCE = 8


class Servers:
    """Serves groups of cases; a context manager, at whose end every server is gone."""

    def __init__(self) -> None:
        self._processes: list[ServerProcess] = []
        self._is_over = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop()

    def visit_all(self, groups: Sequence[Sequence[Planned]]) -> dict[str, list[Visit]]:
        """Every case's visits, by the case's name, in order; each group has a server of its own."""
        ranks = max(group[0].config.tensor_parallel for group in groups) if groups else 1
        # Ranks have the GPUs to themselves, and are several processes already.
        at_once = 1 if ranks > 1 else min(AT_ONCE, os.cpu_count() or 1)
        visits: dict[str, list[Visit]] = {}
        with ThreadPoolExecutor(at_once) as pool:
            try:
                for done in pool.map(self._visit, groups):
                    visits |= done
            except BaseException:
                self._stop()  # else the pool would wait for servers that nobody wants any more
                raise
        return visits

    def _visit(self, group: Sequence[Planned]) -> dict[str, list[Visit]]:
        visits: dict[str, list[Visit]] = {}
        if self._is_over:
            return visits
        # Several servers share the processors.
        environment = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
        try:
            with ServerProcess(group[0].arguments, environment) as process:
                self._processes.append(process)
                if self._is_over:  # since
                    return visits
                address = process.wait_ready(START_SECONDS)
                for planned in group:
                    visits[planned.case.name] = visit.visit(address, planned, visit.SECONDS)
                process.end(END_SECONDS)
        except ServerProcessError as error:
            return {planned.case.name: _all_failed(planned, visits, str(error)) for planned in group}
        return visits

    def _stop(self) -> None:
        self._is_over = True
        for process in self._processes:
            process.kill()


def _all_failed(planned: Planned, visits: dict[str, list[Visit]], error: str) -> list[Visit]:
    """A server that breaks has given no answer that counts; what it said to each request comes first."""
    said = [one.answer["error"] for one in visits.get(planned.case.name, ())]
    said += [""] * (len(planned.case.prompts) - len(said))
    return [failed(f"{one}; {error}" if one else error) for one in said]
