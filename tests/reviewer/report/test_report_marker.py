from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from reviewer.report.marker import marker, read_marker


@given(st.dictionaries(st.text(max_size=9), st.one_of(st.text(), st.integers()), max_size=4))
def test_facts_come_back_and_cannot_end_the_comment(facts: dict[str, str | int]) -> None:
    line = marker("finding", **facts)
    assert read_marker(f"{line}\nbody") == ("finding", facts)
    assert read_marker(f"{line}\r\nbody") == ("finding", facts)
    assert "\n" not in line
    assert line.count("--") == 2


def test_a_marker_counts_at_the_very_start_alone() -> None:
    line = marker("round", round=1)
    assert read_marker(f"> {line}") is None
    assert read_marker(f"hello\n{line}") is None
    assert read_marker(f"{line} and more") is None
    assert read_marker("<!-- whitesmoke:round {broken} -->") is None
