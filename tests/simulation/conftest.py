"""`make simulate` ends with a count of what its seeds have shown."""

from __future__ import annotations

from collections import Counter

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    seen = [
        dict(value)
        for report in terminalreporter.getreports("passed") + terminalreporter.getreports("failed")
        for name, value in getattr(report, "user_properties", ())
        if name == "seen"
    ]
    if not seen:
        return
    runs: Counter[str] = Counter()
    times: Counter[str] = Counter()
    for counts in seen:
        runs.update(counts.keys())
        times.update(counts)
    terminalreporter.section(f"what {len(seen)} seeds have shown")
    for what in sorted(runs, key=lambda what: (-runs[what], what)):
        terminalreporter.write_line(f"{what:25} in {runs[what]:4} seeds, {times[what]:5} times")
