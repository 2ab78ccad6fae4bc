"""One sample of everything that is stored: inbox items, transitions, parts of snapshots (LOG-10).

Run as a program it adds the bytes of samples that have none yet to `golden/bytes.json`; it never changes what is there.
A sample whose encoding has changed is a broken promise to every stored ledger: append fields with defaults instead, or
make a new version and keep the decoder of the old one. A struct that got a field keeps its sample without it: the
program adds the longer bytes to the older ones, which must go on decoding to the same. The field itself is shown by a
sample of its own, named `... #2` and so on.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, get_args

from msgspec.structs import replace

from muster.core import commands as c
from muster.core import snapshot_parts as sp
from muster.core import transitions as tr
from muster.core.attempts import Attempt, PodEnd, Resize
from muster.core.model import (
    Allowance,
    GroupPlacement,
    InboxPosition,
    JobOptions,
    JobSpec,
    NodeSpec,
    PodChange,
    PriorityClass,
    QueueSpec,
    Requirement,
    Taint,
    TaskGroup,
    Toleration,
    Zone,
)
from muster.core.state import Ask, Forgotten, Hold
from muster.core.tree_log import TreeChange
from muster.wire import codec

FILE: Final = Path(__file__).parent / "golden" / "bytes.json"
ID: Final = "0123456789abcdef0123456789abcdef"
OTHER: Final = "fedcba9876543210fedcba9876543210"

TASK = TaskGroup(
    name="worker",
    replicas=4,
    min_replicas=2,
    requests=(("cpu", 12_000), ("memory", 96 << 30), ("nvidia.com/gpu", 1000)),
    node_selector=(("pool", "a"),),
    affinity=((Requirement("zone", "In", ("x", "y")),),),
    tolerations=(Toleration("spot", "Exists", "", "NoSchedule"),),
    policy="SPREAD",
    template=b'{"spec":{}}',
)
SPEC = JobSpec(
    id=ID,
    namespace="team-a",
    name="bert",
    queue="research/vision",
    tasks=(TASK,),
    priority=-5,
    submitter="ann",
    request_id="exp-17",
    digest="d1",
    labels=(("a", "b"),),
    annotations=(("c", "d"),),
    max_runtime_ms=3_600_000,
    max_wait_ms=5,
    cluster_selector=(("muster.io/cluster", "sim-a"),),
    preemptible=False,
    trace="00-ab-cd-01",
    options=JobOptions(("deadline",)),
)
QUEUE = QueueSpec(
    id="q7",
    name="vision",
    parent="q1",
    revision=3,
    weight=2,
    priority=1,
    ordering="FIFO",
    preemption="NEVER",
    state="STOPPED",
    guaranteed=(("cpu", 1),),
    limit=(("cpu", 2),),
    lending_limit=(("cpu", 3),),
    labels=(("x", "y"),),
)
NODE = NodeSpec(
    cluster="sim-a",
    name="node-1",
    allocatable=(("cpu", 64_000), ("pods", 110)),
    labels=(("zone", "x"),),
    taints=(Taint("spot", "true", "NoExecute"),),
    ready=False,
    cordoned=True,
    device_resource="nvidia.com/gpu",
    devices=8,
    used_by_others=(("cpu", 500),),
)
ZONE = Zone(1, (("cpu", 32_000),), (("cpu", 1),), (0, 1))
PLACEMENT = (GroupPlacement(0, ((3, 2), (70_000, 1)), b"\x00\x01\x07"),)
POSITION = InboxPosition(70_000, 3)
ATTEMPT = Attempt(1, 10, 20, 30, "Preempted", "preempted by job x", 1, PLACEMENT)

ITEMS: Final = (
    c.SubmitJob(SPEC),
    c.SubmitJob(replace(SPEC, completion="EVERY_INDEX", max_parallel=8, checkpoint_ms=600_000)),
    c.SubmitJob(replace(SPEC, max_preemptions=0, priority_class="high")),
    c.CancelJob(ID, "ann", "typo", "r1"),
    c.UpsertQueue("research/vision", QUEUE, 2, "r1", "research/images"),
    c.DeleteQueue("research/vision", 2, "r1"),
    c.ChangeQueues((c.UpsertQueue("research", QUEUE, 2), c.DeleteQueue("research/vision", 2)), "r1"),
    c.ChangeQueues((c.DeleteQueue("research/vision", 2),), "r1", 812),
    c.CordonNode("sim-a", "node-1", False, "r1"),
    c.UpdateJob(ID, ("priority",), SPEC, 2, "r1"),
    c.SuspendJob(ID, "r1"),
    c.ResumeJob(ID, "r1"),
    c.RequeueJob(ID, "r1"),
    c.ReportCheckpoint(ID, 1, 2, "r1"),
    c.UpsertPriorityClass("high", 5, (("a", "b"),), "r1"),
    c.UpsertPriorityClass("high", 5, (), "r1", 600_000),
    c.DeletePriorityClass("high", "r1"),
    c.UpsertReservation("r", "r1"),
    c.DeleteReservation("r", "r1"),
    c.NodesReported("sim-a", (NODE,), ("node-2",), True, True),
    c.NodeTopologyReported("sim-a", "node-1", (ZONE,), "nvidia.com/gpu", 8),
    c.PodsObserved("sim-a", (c.PodFact(ID, 2, 1, 4, 1, "uid", 137, "OOMKilled"),)),
    c.PlacementRejected("sim-a", ID, 2, 1, "Invalid", "no"),
    c.EntitlementsComputed(9, (c.Entitlement("q7", (("cpu", 5),)),)),
    c.PreemptionPlanned(ID, 4, ((OTHER, 2),), PLACEMENT, 9),
    c.PreemptionPlanned(ID, 4, (), PLACEMENT, 9, ((OTHER, 2, (1, 3)),), 99, "why"),
    c.PlacementRejected("sim-a", ID, 2, 1, "Invalid", "no", 3, by_node=False),
)
TRANSITIONS: Final = (
    tr.LeaderElected(3, "qm-1"),
    tr.InboxItemQuarantined(POSITION, "why"),
    tr.CommandRefused(POSITION, "SubmitJob", ID, "r1", "NOT_FOUND", "queue", "no", "Q1"),
    tr.CommandRefused(POSITION, "SubmitJob", ID, "r1", "NOT_FOUND", "queue", "no", "Q1", "team-a", "bert", "nowhere"),
    tr.CyclePaused((-5, 1_700_000_000_000, ID)),
    tr.NodeUpserted(3, NODE),
    tr.NodeRemoved(3),
    tr.NodeZonesUpdated(3, (ZONE,)),
    tr.ClusterListStarted("sim-a"),
    tr.NodesSeen("sim-a", (1, 70_000)),
    tr.ClusterSynced("sim-a"),
    tr.QueueUpserted(QUEUE),
    tr.QueueRemoved("q7"),
    tr.EntitlementsSet((c.Entitlement("q7", (("cpu", 5),)),), 9),
    tr.JobQueued(SPEC, "q7", POSITION),
    tr.JobPlaced(ID, 2, PLACEMENT),
    tr.PodsChanged(ID, 2, (PodChange(1, 4, 1, 137, "OOMKilled"),)),
    tr.JobStarting(ID, 2),
    tr.JobRunning(ID, 2),
    tr.JobStopping(ID, 2, "Queued", "StartTimeout", "late", 99, (3, 4), 1),
    tr.JobPreempted(ID, 2, OTHER, 99),
    tr.JobRequeued(ID, "Preempted", 99),
    tr.JobSucceeded(ID, 2),
    tr.JobFailed(ID, "PodFailed", "exit", 137),
    tr.JobCancelled(ID, "CancelledByUser", "by ann"),
    tr.JobForgotten(ID),
    tr.RequestIdsDropped(5),
    tr.PreemptionRequested(ID, 4),
    tr.HoldMade(ID, PLACEMENT, ((OTHER, 2),), 99),
    tr.HoldReleased(ID, "expired"),
    tr.PreemptionAnswered(ID, 4, "no plan", 1000),
    tr.JobGrown(ID, 2, PLACEMENT),
    tr.JobShrunk(ID, 2, (1, 70_000), OTHER, "NodeLost", "why", (3,)),
    tr.QueueUpserted(
        replace(
            QUEUE,
            per_namespace=Allowance(3, 4, (("cpu", 5),)),
            per_user=Allowance(0, -1),
            fair_by="USER",
            min_runtime_ms=60_000,
        )
    ),
    tr.HoldMade(ID, PLACEMENT, ((OTHER, 2),), 99, ((OTHER, 3, (1, 3)),)),
    tr.PreemptionAnswered(ID, 4, "overtaken", 1000, True),
    tr.QueueUpserted(replace(QUEUE, parent="", half_life_ms=604_800_000)),
    tr.JobPlaced(ID, 2, (replace(PLACEMENT[0], skipped=((0, 3), (5, 1))),)),
    tr.CheckpointReported(ID, 2, 1_700_000_000_000),
    tr.HoldExtended(ID, 99),
    tr.PriorityClassUpserted(PriorityClass("high", 5, (("a", "b"),), 600_000)),
    tr.PriorityClassRemoved("high"),
    tr.JobQueued(replace(SPEC, priority=5, priority_class="high", min_runtime_ms=600_000), "q7", POSITION),
    tr.JobStopping(ID, 2, "Queued", "PlacementRejected", "no", 99, (3, 4), suspects_until_ms=1_700_000_000_000),
    tr.JobShrunk(ID, 2, (1,), "", "PlacementRejected", "no", (3,), 99, 1_700_000_000_000),
)
HEADER: Final = tr.Header(1, "3-17", 16, 3, 1_700_000_000_000, InboxPosition(5, 0), POSITION, 1000, 12)
HOLD: Final = Hold(ID, PLACEMENT, ((OTHER, 2),), 99)
JOB: Final = sp.JobRecord(
    spec=SPEC,
    gang=0,
    queue="q7",
    submit_position=POSITION,
    submit_ms=1_700_000_000_000,
    state="Running",
    reason="Placed",
    message="m",
    epoch=2,
    placement=PLACEMENT,
    phases=b"\x02\x03\x05",
    unplaced=1,
    not_before_ms=1,
    placed_ms=2,
    started_ms=3,
    finished_ms=4,
    exit_code=5,
    next_state="Queued",
    suspects=(3,),
    requeues=6,
    preemptions=7,
    attempts=(ATTEMPT,),
)
TALLY: Final = sp.TallyRecord(
    account=("q7", "team-a", "ann", -5),
    usage=(("cpu", 0, 5), ("memory", 3, 7)),
    lost=(("cpu", 0, 1),),
    submitted=1,
    started=2,
    succeeded=3,
    failed=4,
    cancelled=5,
    preempted=6,
    shrunk_pods=7,
    waits=8,
    waited_ms=9,
    waited_max_ms=10,
)
HEAD: Final = sp.HeadPart(
    version=1,
    cell="main",
    ledger_seq=16,
    position=POSITION,
    now_ms=1_700_000_000_000,
    epoch=3,
    leader="qm-1",
    cycle_after=(-5, 1, ID),
    cycle_owed=True,
    changes=8,
    requests=4,
    next_queue_number=8,
    queues=(QUEUE,),
    entitled=(("q7", (("cpu", 5),)),),
    entitled_seq=9,
    clusters=(sp.ClusterRecord("sim-a", True, (1, 2)), sp.ClusterRecord("sim-b", False, None)),
    vanished=((3, (ID,)),),
    holds=(HOLD,),
    asks=((ID, Ask(4, 2, True, 99, 8)),),
    nodes=1,
    jobs=1,
    forgotten=1,
)
PARTS: Final = (
    HEAD,
    sp.NodesPart(1, (sp.NodeRecord(NODE, True, (ZONE,)),)),
    sp.GangsPart(1, ((TASK,),)),
    sp.JobsPart(1, (JOB,)),
    sp.JobsPart(1, (replace(JOB, leaving=(0, 2), regrown=((2, 1),), victim=True),)),
    sp.JobsPart(
        1, (replace(JOB, exits=((1, 137),), attempts=(replace(ATTEMPT, pods=(PodEnd(1, 4, 137), PodEnd(0, 3))),)),)
    ),
    sp.JobsPart(1, (replace(JOB, asks=1, saved_ms=8, began=((0, 9),)),)),
    sp.ForgottenPart(1, ((ID, Forgotten("d1", 99)),)),
    sp.AccountsPart(1, 3_600_000, 7_200_000, (TALLY,), (("q3", "research/old"),)),
    replace(HEAD, histories=(sp.HistoryRecord("q7", 1_700_000_000_000, (("cpu", b"\x01\x00\x00"),)),)),
    sp.TailPart(1, ((1, ID, 2),), (OTHER,), ((99, 1, ID, 2),), True, (ID,), (ID,), (ID,), True),
    replace(HEAD, holds=(replace(HOLD, shrinks=((OTHER, 3, (1, 3)),), made_ms=1_700_000_000_000),)),
    replace(HEAD, classes=(PriorityClass("high", 5, (("a", "b"),), 600_000), PriorityClass("low", -5))),
    sp.JobsPart(1, (replace(JOB, suspects_until_ms=1_700_000_000_000),)),
    replace(HEAD, tree_revision=15, tree_changes=(TreeChange(15, POSITION, 7, ("research", "research/vision")),)),
    sp.JobsPart(1, (replace(JOB, resizes=(Resize(2, 9, grown=3), Resize(2, 12, 0, 2, "Shrunk", "m", OTHER, (1, 2)))),)),
)


def samples() -> dict[str, tuple[Any, bytes]]:
    """Name -> (value, its encoding now)."""
    found: dict[str, tuple[Any, bytes]] = {}
    for item in ITEMS:
        _add(found, f"inbox {type(item).__name__}", (item,), codec.encode_inbox((item,)))
    for transition in TRANSITIONS:
        tx = tr.Transaction(HEADER, (transition,))
        _add(found, f"ledger {type(transition).__name__}", tx, codec.encode_transaction(tx))
    for part in PARTS:
        _add(found, f"snapshot {type(part).__name__}", part, codec.encode_snapshot_part(part))
    return found


def _add(found: dict[str, tuple[Any, bytes]], name: str, value: Any, data: bytes) -> None:
    number = sum(known.partition("#")[0] == name for known in found) + 1
    found[name if number == 1 else f"{name}#{number}"] = (value, data)


def kinds() -> dict[str, tuple[type, ...]]:
    """Every type that can be stored, by where."""
    return {"inbox": get_args(c.AnyItem), "ledger": get_args(tr.AnyTransition), "snapshot": get_args(sp.AnyPart)}


if __name__ == "__main__":
    known: dict[str, list[str]] = json.loads(FILE.read_text()) if FILE.exists() else {}
    added = 0
    for name, (_, data) in samples().items():
        stored = known.setdefault(name, [])
        if data.hex() not in stored:
            if stored and not all(len(data) > len(bytes.fromhex(older)) for older in stored):
                raise SystemExit(f"{name}: its encoding has changed without growing")
            stored.append(data.hex())
            added += 1
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(json.dumps(known, indent=1) + "\n")
    print(f"{added} added, {len(known)} samples")
