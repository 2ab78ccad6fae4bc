"""What `muster import` tells of everything that it does not carry over, by path, and of what is misspelt."""

from __future__ import annotations

import pytest
import yaml
from tests.unit.cli.definitions import VOLCANO_VERSION, cluster_queue, imported, of, partition, queue, quota, refused

from muster.cli.errors import CliError
from muster.cli.imports import SYSTEMS, kueue, volcano, yunikorn


def lost(subject, path, why=""):
    return f"{subject}: {path} has no counterpart and is left out{f': {why}' if why else ''}"


def unknown(subject, path, near=""):
    hint = f' (did you mean "{near}"?)' if near else ""
    return f"{subject}: {path} is no setting that is known{hint} and is left out"


# --- everything that a definition can say ---------------------------------------------------------------------------


def test_all_that_kueue_knows_is_carried_over_or_told_by_its_path():
    _, notes = imported(
        "kueue",
        cluster_queue(
            namespaceSelector={"matchLabels": {"team": "a"}},
            preemption={"borrowWithinCohort": {"policy": "LowerPriority", "maxPriorityThreshold": 7}},
            flavorFungibility={
                "whenCanBorrow": "TryNextFlavor",
                "whenCanPreempt": "MayStopSearch",
                "preference": "PreemptionOverBorrowing",
            },
            admissionChecks=["one"],
            admissionChecksStrategy={"admissionChecks": [{"name": "two"}]},
            concurrentAdmissionPolicy={"migration": {"mode": "TryPreferredFlavors"}},
        ),
        of("ResourceFlavor", "spot", {"nodeLabels": {"x": "y"}, "nodeTaints": [{}], "topologyName": "racks"}),
        of("LocalQueue", "main", {"clusterQueue": "b"}),
        of("AdmissionCheck", "one", {"controllerName": "any"}),
    )
    subject, flavors = "ClusterQueue a", kueue.NO_FLAVORS
    assert notes == [
        lost(subject, "spec.namespaceSelector", "jobs of every namespace can name the queue"),
        lost(subject, "spec.preemption.borrowWithinCohort.policy", "who borrows takes back what the queue is entitled "
             "to, nothing else"),
        lost(subject, "spec.preemption.borrowWithinCohort.maxPriorityThreshold"),
        *(lost(subject, f"spec.flavorFungibility.{key}", flavors) for key in ("whenCanBorrow", "whenCanPreempt",
                                                                              "preference")),
        *(lost(subject, f"spec.{key}", "a job starts as soon as it has its place") for key in ("admissionChecks",
                                                                                               "admissionChecksStrategy")),
        lost(subject, "spec.concurrentAdmissionPolicy", flavors),
        'LocalQueue default/main: is left out: its ClusterQueue "b" is not in the file',
        "AdmissionCheck one: has no counterpart and is left out",
        "ResourceFlavor spot: has no counterpart and is left out",
        lost("ResourceFlavor spot", "spec.nodeLabels", "a job that needs such nodes selects them (nodeSelector)"),
        lost("ResourceFlavor spot", "spec.nodeTaints", "the taints of the nodes themselves count"),
        lost("ResourceFlavor spot", "spec.topologyName", "the levels are labels of the nodes, and a job says what it "
             "needs (topology)"),
    ]  # fmt: skip


def test_what_kueue_writes_where_nothing_was_said_is_no_news():
    fungibility = {"whenCanBorrow": "MayStopSearch", "whenCanPreempt": "TryNextFlavor"}
    preemption = dict.fromkeys(("withinClusterQueue", "reclaimWithinCohort"), "Never")
    spec = {"flavorFungibility": fungibility, "queueingStrategy": "BestEffortFIFO", "stopPolicy": "None"}
    preemption["borrowWithinCohort"] = {"policy": "Never"}
    _, notes = imported("kueue", cluster_queue(preemption=preemption, **spec))
    assert notes == []


def test_all_that_volcano_knows_is_carried_over_or_told_by_its_path():
    rules = {rule: ["g"] for rule in volcano.TERMS}
    spec = {
        "affinity": {"nodeGroupAffinity": rules, "nodeGroupAntiAffinity": rules},
        "type": "bulk",
        "extendClusters": [{"name": "other", "weight": 1, "capcity": {}}],
    }
    made, notes = imported(
        "volcano",
        queue("a", spec),
        queue("root", {"weight": 1, "reclaimable": True, "deserved": {"cpu": 3}}),
        of("Job", "train", {}, "batch.volcano.sh/v1alpha1"),
        of("PodGroup", "pg", {}, VOLCANO_VERSION),
        {"kind": "Namespace"},
    )
    assert made == {"a": {"preemption": "ANY"}}
    assert sorted(notes) == sorted(
        [
            *(
                lost("Queue a", f"spec.affinity.{affinity}.{rule}", volcano.BY_NODES)
                for affinity in ("nodeGroupAffinity", "nodeGroupAntiAffinity")
                for rule in rules
            ),
            lost("Queue a", "spec.type"),
            lost("Queue a", "spec.extendClusters", "all clusters of the cell take jobs of all queues"),
            unknown("Queue a", "spec.extendClusters[0].capcity", "capacity"),
            lost("Queue root", "spec.deserved", "the root is the tree itself here"),
            "Job train: has no counterpart and is left out",
            f"PodGroup pg: has no counterpart and is left out: {volcano.NO_PODGROUP}",
            "Namespace without a name: has no counterpart and is left out",
        ]
    )


def test_all_that_yunikorn_knows_is_carried_over_or_told_by_its_path():
    own = {
        "name": "a",
        "submitacl": "ann",
        "adminacl": "bob admins",
        "maxapplications": 3,
        "childtemplate": {"maxapplications": 1, "properties": {"a": "b"}, "resources": {"max": {"vcore": 1}}},
        "preemption": {"delay": 5},
        "properties": {
            "preemption.policy": "fence",
            "preemption.delay": "10s",
            "quota.preemption.delay": "1h",
            "application.unschedasks.backoff": "5",
            "application.unschedasks.backoff.delay": "30s",
        },
    }
    limit = {"limit": "all", "users": ["*"], "maxapplications": 1}
    file = partition(own, limits=[limit], resources={"max": {"vcore": 1}}, maxapplications=9)
    rule = {"name": "tag", "value": "namespace", "create": True, "parent": {"name": "fixed", "valu": "root.a"}}
    file["partitions"][0] |= {
        "placementrules": [rule | {"filter": {"type": "allow", "users": ["ann"]}}],
        "limits": [limit],
        "preemption": {"enabled": False, "quotapreemptionenabled": True},
        "nodesortpolicy": {"type": "binpacking", "resourceweights": {"vcore": 1}},
        "statedumpfilepath": "/tmp",
    }
    data = {"queues.yaml": yaml.safe_dump(file, sort_keys=False), "service.policyGroup": "queues", "log.level": ""}
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "yunikorn-configs"}, "data": data}
    other = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "other", "namespace": "x"}, "data": {}}
    made, notes = imported("yunikorn", config, other)
    assert made == {"a": {"preemption": "ANY"}}
    tree, template, quotas = (
        yunikorn.OF_THE_TREE,
        yunikorn.BY_TEMPLATE,
        "nobody is preempted because a limit was lowered",
    )
    assert sorted(notes) == sorted(
        [
            lost("ConfigMap", "data.service.policyGroup"),
            "ConfigMap x/other: has no counterpart and is left out",
            lost("partition default", "placementrules", yunikorn.NO_RULES),
            unknown("partition default", "placementrules[0].parent.valu", "value"),
            lost("partition default", "limits", tree),
            lost("partition default", "preemption.enabled", "whether jobs preempt is their queue's (preemption)"),
            lost("partition default", "preemption.quotapreemptionenabled", quotas),
            lost("partition default", "nodesortpolicy", "how nodes are filled is not a matter of queues"),
            lost("partition default", "statedumpfilepath"),
            lost("queue root", "limits", tree),
            lost("queue root", "resources.max", tree),
            lost("queue root", "maxapplications", tree),
            lost("queue root.a", "submitacl", "who may submit is not a matter of queues here"),
            lost("queue root.a", "adminacl", "who may submit is not a matter of queues here"),
            lost("queue root.a", "maxapplications", "per_user and per_namespace have running_jobs, a queue has not"),
            lost("queue root.a", "childtemplate.maxapplications", template),
            lost("queue root.a", "childtemplate.properties", template),
            unknown("queue root.a", "childtemplate.properties.a"),
            lost("queue root.a", "childtemplate.resources.max", template),
            lost("queue root.a", "preemption.delay", quotas),
            lost("queue root.a", "properties.preemption.policy fence", "jobs below it take back from queues outside as "
                 "well"),
            lost("queue root.a", "properties.preemption.delay", "who may preempt does so at once; min_runtime protects "
                 "what has just started"),
            lost("queue root.a", "properties.quota.preemption.delay", quotas),
            lost("queue root.a", "properties.application.unschedasks.backoff", yunikorn.BACKOFF),
            lost("queue root.a", "properties.application.unschedasks.backoff.delay", yunikorn.BACKOFF),
        ]
    )  # fmt: skip


# --- typing mistakes ------------------------------------------------------------------------------------------------


def test_a_quota_that_is_misspelt_is_refused_for_its_queue_would_stand_still():
    misspelt = of("Cohort", "c", {"resourceGroups": [{"flavors": [{"name": "f", "resources": [
        {"name": "cpu", "nominalQuotaa": 3}]}]}]})  # fmt: skip
    said = 'Cohort c: spec.resourceGroups[0].flavors[0].resources[0]: has no nominalQuota (is "nominalQuotaa" meant'
    assert said in refused("kueue", misspelt)


@pytest.mark.parametrize(
    ("system", "document", "note"),
    [
        ("kueue", cluster_queue(cohortNam="c"), unknown("ClusterQueue a", "spec.cohortNam", "cohortName")),
        (
            "kueue",
            cluster_queue(resourceGroups=quota(borowingLimit=2)),
            unknown("ClusterQueue a", "spec.resourceGroups[0].flavors[0].resources[0].borowingLimit", "borrowingLimit"),
        ),
        (
            "kueue",
            cluster_queue(fairSharing={"wight": 2}),
            unknown("ClusterQueue a", "spec.fairSharing.wight", "weight"),
        ),
        ("kueue", cluster_queue() | {"sepc": {}}, unknown("ClusterQueue a", "sepc", "spec")),
        (
            "kueue",
            cluster_queue(resourceGroups=quota(name="memry")),
            "ClusterQueue a: spec.resourceGroups[0].flavors[0].resources[0]: memry is no resource of a node "
            '(did you mean "memory"?) and is left out',
        ),
        ("volcano", queue("a", {"capabilty": {"cpu": 1}}), unknown("Queue a", "spec.capabilty", "capability")),
        (
            "volcano",
            queue("a", {"guarantee": {"resources": {}}}),
            unknown("Queue a", "spec.guarantee.resources", "resource"),
        ),
        (
            "volcano",
            queue("a", {"capability": {"gpu": 1}}),
            'Queue a: spec.capability: gpu is no resource of a node (did you mean "nvidia.com/gpu"?) and is left out',
        ),
        ("yunikorn", partition({"name": "a", "resource": {}}), unknown("queue root.a", "resource", "resources")),
        (
            "yunikorn",
            partition({"name": "a", "properties": {"application.sort.polcy": "fair"}}),
            unknown("queue root.a", "properties.application.sort.polcy", "application.sort.policy"),
        ),
        (
            "yunikorn",
            partition({"name": "a", "limits": [{"user": ["*"]}]}),
            unknown("queue root.a", "limits[0].user", "users"),
        ),
        (
            "yunikorn",
            partition({"name": "a", "resources": {"max": {"cpu": 4, "muster.io/gpu-milli": 3}}}),
            "queue root.a: resources.max.cpu is nothing there, where cpu is called vcore, and is left out",
        ),
        ("yunikorn", partition({"name": "a"}) | {"partition": []}, unknown("file.yaml", "partition", "partitions")),
    ],
)  # fmt: skip
def test_what_is_no_setting_is_named_with_the_nearest_one(system, document, note):
    made, notes = imported(system, document)
    assert note in notes
    assert set(made["a"]) <= {"preemption", "guaranteed", "limit"}
    assert set(made["a"].get("limit", {})) <= {"cpu"} - ({"cpu"} if system == "yunikorn" else set())


@pytest.mark.parametrize(
    ("system", "documents", "says"),
    [
        ("kueue", [cluster_queue(queueingStrategy="StrictFifo")], 'queueingStrategy: must be one of BestEffortFIFO, '
         "StrictFIFO, not 'StrictFifo' (did you mean"),
        ("kueue", [cluster_queue(preemption={"reclaimWithinCohort": "LowerOrNewerEqualPriority"})],
         "must be one of Never, LowerPriority, Any, not"),
        ("kueue", [cluster_queue(resourceGroups=quota() + quota())], "resources[0]: cpu of flavor f is there twice"),
        ("volcano", [queue("a", {"dequeueStrategy": "fifoo"})], "Queue a: spec.dequeueStrategy: must be one of"),
        ("volcano", [queue("a", {"state": "Shut"})], "Queue a: state: must be one of Open"),
        ("yunikorn", [partition({"name": "a", "properties": {"preemption.policy": "disable"}})],
         "queue root.a: properties.preemption.policy: must be one of default, fence, disabled, not 'disable'"),
        ("yunikorn", [partition({"name": "a", "limits": [{"users": ["*"]}, {"users": ["*"], "maxapplications": 1},
                                                         {"users": ["*"], "maxapplications": 2}]})],
         "queue root.a: limits[2]: is a second limit for every user"),
        ("volcano", [queue("a", {}), {"kind": "PriorityClass", "metadata": {"name": "p"}, "vaule": 3}],
         'PriorityClass p: has no value (did you mean "vaule"?)'),
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused_in_one_sentence(system, documents, says):
    assert says in refused(system, *documents)


def test_a_setting_that_is_there_twice_is_refused():
    text = (
        f"apiVersion: {VOLCANO_VERSION}\nkind: Queue\nmetadata: {{name: a}}\nspec: {{capability: {{cpu: 3, cpu: 5}}}}"
    )
    with pytest.raises(CliError, match=r'file\.yaml is not YAML: "cpu" is there twice'):
        SYSTEMS["volcano"](text, "file.yaml")


def test_names_that_become_one_are_told_by_what_they_were():
    said = refused("volcano", queue("sand_box", {}), queue("sand.box", {}))
    assert said == 'Queue sand_box and Queue sand.box would both be the queue "sand-box" here: rename one of them'
    said = refused("kueue", of("Cohort", "a", {}), cluster_queue("a"))
    assert said.startswith('Cohort a and ClusterQueue a would both be the queue "a"')
    said = refused("yunikorn", partition({"name": "a_b"}, {"name": "a-b"}))
    assert said.startswith("queue root.a_b and queue root.a-b would both be")
