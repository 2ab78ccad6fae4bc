"""Writes the Grafana dashboards from the tables below: `python deploy/grafana/generate.py`.

One line a panel: title, unit, expressions with their legend, and what a healthy value looks like. The JSON is committed
so that it can be imported without running anything; a test compares it and checks every metric against the code.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).parent
WIDTH: Final = 8
HEIGHT: Final = 8
COLUMNS: Final = 24 // WIDTH

Panel = tuple[str, str, list[tuple[str, str]], str]


def p99(histogram: str, by: str = "") -> str:
    group = f"le, {by}" if by else "le"
    return f"histogram_quantile(0.99, sum by ({group}) (rate({histogram}_bucket[$__rate_interval])))"


def rate(counter: str, by: str) -> str:
    return f"sum by ({by}) (rate({counter}[$__rate_interval]))"


OVERVIEW: Final[dict[str, list[Panel]]] = {
    "Requests": [
        (
            "Calls a second",
            "reqps",
            [(rate("muster_rpc_duration_seconds_count", "method, code"), "{{method}} {{code}}")],
            "What clients ask; codes other than OK are refusals and failures.",
        ),
        (
            "Call time, p99",
            "s",
            [(p99("muster_rpc_duration_seconds", "method"), "{{method}}")],
            "SubmitJobs waits for one disk sync of NATS; watches last as long as somebody watches.",
        ),
        (
            "Calls in progress",
            "short",
            [("sum by (instance) (muster_rpcs_active)", "{{instance}}")],
            "Streams included.",
        ),
    ],
    "Decisions": [
        (
            "Leader",
            "short",
            [
                (
                    "max by (replica) (muster_queue_manager_leading"
                    " * on (instance) group_left (replica) muster_build_info)",
                    "{{replica}}",
                )
            ],
            "Exactly one replica of the cell shows 1; a change means a new term.",
        ),
        (
            "Inbox items decided a second",
            "short",
            [("sum (rate(muster_queue_manager_inbox_items_total[$__rate_interval]))", "items")],
            "Commands and facts.",
        ),
        (
            "Inbox backlog of the leader",
            "short",
            [("max (muster_queue_manager_inbox_backlog_items)", "items")],
            "Read and not decided; near zero unless the cell is overloaded.",
        ),
        (
            "Time to decide, p99",
            "s",
            [(p99("muster_queue_manager_decide_duration_seconds"), "decide and encode")],
            "Tuned to stay short; a long one delays everything else.",
        ),
        (
            "Time to commit, p99",
            "s",
            [(p99("muster_queue_manager_commit_duration_seconds"), "commit")],
            "One disk sync of NATS.",
        ),
        (
            "Transitions in a transaction, mean",
            "short",
            [
                (
                    "sum (rate(muster_queue_manager_transaction_transitions_sum[$__rate_interval]))"
                    " / sum (rate(muster_queue_manager_transaction_transitions_count[$__rate_interval]))",
                    "transitions",
                )
            ],
            "Grows with load: group commit.",
        ),
        (
            "Ledger bytes a second",
            "Bps",
            [("sum (rate(muster_queue_manager_ledger_bytes_total[$__rate_interval]))", "ledger")],
            "Trimmed below the second newest snapshot after the retention.",
        ),
        ("Jobs in the state", "short", [("max (muster_queue_manager_jobs)", "jobs")], "Finished ones stay an hour."),
        (
            "Ledger behind the leader",
            "short",
            [("max (muster_queue_manager_ledger_seq) - min (muster_queue_manager_ledger_seq)", "transactions")],
            "How far the slowest standby is behind.",
        ),
    ],
    "Pods": [
        (
            "Pods written a second",
            "short",
            [
                ("sum (rate(muster_binder_pods_created_total[$__rate_interval]))", "created"),
                ("sum (rate(muster_binder_pods_deleted_total[$__rate_interval]))", "deleted"),
            ],
            "Follows what the leader places.",
        ),
        (
            "Time to create a pod, p99",
            "s",
            [(p99("muster_binder_create_duration_seconds"), "create")],
            "As the API server answers.",
        ),
        (
            "Writes waiting",
            "short",
            [("sum by (instance) (muster_binder_writes_waiting)", "{{instance}}")],
            "Grows when the API server is slower than the leader.",
        ),
        (
            "Retries and rejections a second",
            "short",
            [
                ("sum (rate(muster_binder_retries_total[$__rate_interval]))", "retries"),
                ("sum (rate(muster_binder_placements_rejected_total[$__rate_interval]))", "rejected"),
            ],
            "Near zero; rejections mean that the model of the cluster is wrong.",
        ),
        (
            "Age of the watched pods",
            "s",
            [("max by (instance) (muster_binder_watch_stale_seconds)", "{{instance}}")],
            "A few seconds; more means a lost watch.",
        ),
    ],
    "Hardware": [
        (
            "Reports a second",
            "short",
            [
                ("sum (rate(muster_topology_nodes_reported_total[$__rate_interval]))", "nodes"),
                ("sum (rate(muster_topology_zones_reported_total[$__rate_interval]))", "zones"),
            ],
            "Only differences are reported.",
        ),
        (
            "Age of the watched nodes",
            "s",
            [("max by (instance) (muster_topology_watch_stale_seconds)", "{{instance}}")],
            "A few seconds; more means a lost watch.",
        ),
        (
            "Poll and watch errors a second",
            "short",
            [
                ("sum (rate(muster_topology_poll_errors_total[$__rate_interval]))", "polls"),
                ("sum (rate(muster_topology_watch_errors_total[$__rate_interval]))", "watches"),
            ],
            "Near zero.",
        ),
    ],
    "Shares and preemption": [
        (
            "Entitlements published a second",
            "short",
            [("sum (rate(muster_fair_share_entitlements_published_total[$__rate_interval]))", "changed")],
            "Only changes are published.",
        ),
        (
            "Time to compute entitlements, p99",
            "s",
            [(p99("muster_fair_share_compute_duration_seconds"), "compute")],
            "Blocks the follower of that replica meanwhile.",
        ),
        (
            "Plans a second",
            "short",
            [(rate("muster_preemptor_plans_total", "result"), "{{result}}")],
            "`none`: no victims would help.",
        ),
        ("Open requests", "short", [("max (muster_preemptor_requests_open)", "open")], "Goes back to zero."),
        (
            "Victim search, p99",
            "s",
            [(p99("muster_preemptor_plan_duration_seconds"), "search")],
            "Blocks the follower of that replica meanwhile.",
        ),
    ],
}

PROCESSES: Final[dict[str, list[Panel]]] = {
    "Processes": [
        (
            "Ready replicas",
            "short",
            [
                (
                    "sum by (service) (muster_ready * on (instance) group_left (service) muster_build_info)",
                    "{{service}}",
                )
            ],
            "As many as are deployed; standbys of the queue-manager are ready too.",
        ),
        (
            "CPU",
            "percentunit",
            [
                (
                    "rate(process_cpu_seconds_total[$__rate_interval])"
                    " * on (instance) group_left (service, replica) muster_build_info",
                    "{{service}} {{replica}}",
                )
            ],
            "The leader's core is the limit of a cell: one CPU.",
        ),
        (
            "Memory",
            "bytes",
            [
                (
                    "process_resident_memory_bytes * on (instance) group_left (service, replica) muster_build_info",
                    "{{service}} {{replica}}",
                )
            ],
            "Every follower holds the state of its cell.",
        ),
        (
            "Event-loop stalls, p99",
            "s",
            [(p99("muster_event_loop_stall_seconds", "instance"), "{{instance}}")],
            "Below 0.2 s in the leader, or renewals of its lease come late.",
        ),
        (
            "Longest stall since the start",
            "s",
            [("max by (instance) (muster_event_loop_stall_max_seconds)", "{{instance}}")],
            "Loading a snapshot shows here.",
        ),
        ("Open files", "short", [("max by (instance) (process_open_fds)", "{{instance}}")], "Connections and sockets."),
    ],
}


def boards() -> dict[str, Any]:
    """File name -> dashboard."""
    return {
        "overview.json": _board("muster-overview", "Muster: overview", OVERVIEW),
        "processes.json": _board("muster-processes", "Muster: processes", PROCESSES),
    }


def _board(uid: str, title: str, rows: dict[str, list[Panel]]) -> dict[str, Any]:
    panels: list[dict[str, Any]] = []
    y = 0
    for row, entries in rows.items():
        panels.append(
            {"id": len(panels) + 1, "type": "row", "title": row, "collapsed": False, "panels": []}
            | {"gridPos": {"x": 0, "y": y, "w": 24, "h": 1}}
        )
        y += 1
        for number, panel in enumerate(entries):
            position = {"x": number % COLUMNS * WIDTH, "y": y + number // COLUMNS * HEIGHT, "w": WIDTH, "h": HEIGHT}
            panels.append(_panel(len(panels) + 1, panel, position))
        y += -(-len(entries) // COLUMNS) * HEIGHT
    variable = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}
    return {
        "uid": uid,
        "title": title,
        "tags": ["muster"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [variable]},
        "panels": panels,
    }


def _panel(number: int, panel: Panel, position: dict[str, int]) -> dict[str, Any]:
    title, unit, targets, description = panel
    return {
        "id": number,
        "type": "timeseries",
        "title": title,
        "description": description,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "gridPos": position,
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}},
        "targets": [
            {"refId": chr(ord("A") + i), "expr": expression, "legendFormat": legend}
            for i, (expression, legend) in enumerate(targets)
        ],
    }


if __name__ == "__main__":
    for file, board in boards().items():
        (FOLDER / file).write_text(json.dumps(board, indent=2) + "\n")
