"""Other systems' queues as Muster's tree, and what is told about the rest."""

from __future__ import annotations

import pytest
import yaml

from muster.cli import importing
from muster.cli.errors import CliError
from muster.cli.imports import SYSTEMS
from muster.client import classfile, queuefile

KUEUE = """
apiVersion: kueue.x-k8s.io/v1beta1
kind: Cohort
metadata: {name: org}
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: ResourceFlavor
metadata: {name: spot}
---
apiVersion: v1
kind: List
items:
- apiVersion: kueue.x-k8s.io/v1beta1
  kind: ClusterQueue
  metadata: {name: team.a}
  spec:
    cohort: org
    namespaceSelector: {}
    queueingStrategy: StrictFIFO
    stopPolicy: Hold
    fairSharing: {weight: "0.5"}
    preemption: {withinClusterQueue: LowerPriority, reclaimWithinCohort: Any,
                 borrowWithinCohort: {policy: LowerPriority}}
    resourceGroups:
    - coveredResources: [cpu, nvidia.com/gpu]
      flavors:
      - name: on-demand
        resources:
        - {name: cpu, nominalQuota: 10, borrowingLimit: 5, lendingLimit: 2}
        - {name: nvidia.com/gpu, nominalQuota: 8}
      - name: spot
        resources:
        - {name: cpu, nominalQuota: 1500m, borrowingLimit: 1}
        - {name: nvidia.com/gpu, nominalQuota: 0}
- apiVersion: kueue.x-k8s.io/v1beta1
  kind: ClusterQueue
  metadata: {name: alone}
  spec:
    admissionScope: {admissionMode: UsageBasedAdmissionFairSharing}
    resourceGroups:
    - coveredResources: [memory]
      flavors: [{name: on-demand, resources: [{name: memory, nominalQuota: 16Gi}]}]
- apiVersion: kueue.x-k8s.io/v1beta1
  kind: LocalQueue
  metadata: {name: main, namespace: ml}
  spec: {clusterQueue: team.a, stopPolicy: Hold, fairSharing: {weight: 2}}
- apiVersion: scheduling.k8s.io/v1
  kind: PriorityClass
  metadata: {name: high}
  value: 1000
- apiVersion: kueue.x-k8s.io/v1beta1
  kind: WorkloadPriorityClass
  metadata: {name: high}
  value: 2
- apiVersion: kueue.x-k8s.io/v1beta1
  kind: WorkloadPriorityClass
  metadata: {name: low}
  value: -5
- apiVersion: scheduling.k8s.io/v1
  kind: PriorityClass
  metadata: {name: High.or.so}
  value: 7
  globalDefault: true
  preemptionPolicy: Never
- apiVersion: scheduling.k8s.io/v1
  kind: PriorityClass
  metadata: {name: system-node-critical}
  value: 2000001000
"""

VOLCANO = """
apiVersion: scheduling.volcano.sh/v1beta1
kind: Queue
metadata: {name: root}
spec: {weight: 1, capability: {cpu: 100}}
---
apiVersion: scheduling.volcano.sh/v1beta1
kind: Queue
metadata: {name: child}
spec:
  parent: dept
  weight: 3
  priority: 7
  capability: {cpu: 20, nvidia.com/gpu: 4}
  deserved: {cpu: 10}
  guarantee: {resource: {cpu: 4, memory: 1Gi}}
  reclaimable: false
  affinity: {nodeGroupAffinity: {}, x: 1}
  type: bulk
status: {state: Closed}
---
apiVersion: scheduling.volcano.sh/v1beta1
kind: PodGroup
metadata: {name: pg}
---
apiVersion: scheduling.volcano.sh/v1beta1
kind: Queue
metadata: {name: dept, annotations: {volcano.sh/hierarchy: root/dept, volcano.sh/hierarchy-weights: 1/2}}
spec: {weight: 2}
"""

YUNIKORN = """
apiVersion: v1
kind: ConfigMap
metadata: {name: yunikorn-configs}
data:
  queues.yaml: |
    partitions:
    - name: default
      placementrules: [{name: tag}]
      queues:
      - name: root
        submitacl: '*'
        queues:
        - name: prod
          properties: {application.sort.policy: fair, priority.offset: "5", preemption.policy: disabled}
          resources:
            guaranteed: {memory: 10G, vcore: 10}
            max: {memory: 20G, vcore: 20}
          limits:
          - {limit: each, users: ["*"], maxapplications: 3, maxresources: {vcore: 500m}}
          - {limit: one, users: [ann], maxapplications: 9}
          queues:
          - {name: Batch_Jobs, maxapplications: 4, properties: {application.sort.policy: stateaware}}
"""


def imported(system, text):
    found = SYSTEMS[system](text, "file.yaml")
    data = yaml.safe_load(queuefile.dump(found.queues))["queues"]
    assert queuefile.parse(queuefile.dump(found.queues)).queues == _with_defaults(found.queues)
    return data, found.notes


def _with_defaults(queues):
    """As they come back: what is the default is not written."""
    return queuefile.parse(queuefile.dump(queues)).queues


def test_kueue():
    data, notes = imported("kueue", KUEUE)
    assert data == {
        "alone": {
            "ordering": "FAIR",
            "preemption": "NEVER",
            "guaranteed": {"memory": "16Gi"},
            "limit": {"memory": "16Gi"},
        },
        "org": {
            "guaranteed": {"cpu": "11.5", "nvidia.com/gpu": "8"},
            "limit": {"cpu": "11.5", "nvidia.com/gpu": "8"},  # there is nobody above to borrow from
            "queues": {
                "team-a": {
                    "preemption": "ANY",
                    "state": "STOPPED",
                    "guaranteed": {"cpu": "11.5", "nvidia.com/gpu": "8"},
                    "limit": {"cpu": "17.5"},
                    "lending_limit": {"cpu": "3.5"},
                }
            },
        },
    }
    told = "\n".join(notes)
    for part in (
        'weights below "org": are whole numbers here, in the same proportion: ClusterQueue team.a 0.5 -> 1',
        'ClusterQueue team.a: is named "team-a" here',
        "StrictFIFO",
        "one setting here: ANY",
        "spec.preemption.borrowWithinCohort.policy has no counterpart",
        "ClusterQueue alone: admissionMode UsageBasedAdmissionFairSharing: fair between namespaces",
        "flavors on-demand, spot are added up",
        'LocalQueue ml/main: needs none: jobs of the namespace name queue "org/team-a"',
        "ResourceFlavor spot: has no counterpart",
        "LocalQueue ml/main: stopPolicy Hold is left out",
        "LocalQueue ml/main: fairSharing.weight 2 is left out",
        "WorkloadPriorityClass high: has the value 2 and is left out",
        'PriorityClass High.or.so: is named "high-or-so" here',
        "PriorityClass High.or.so: globalDefault has no counterpart",
        "PriorityClass High.or.so: preemptionPolicy has no counterpart",
        "PriorityClass system-node-critical: is Kubernetes' own and left out",
    ):
        assert part in told


def test_priority_classes_come_along(tmp_path, capsys):
    (tmp_path / "kueue.yaml").write_text(KUEUE)
    out = tmp_path / "muster.yaml"
    importing.run("kueue", str(tmp_path / "kueue.yaml"), str(out))
    assert "3 priority classes; try `muster priority-class apply -f" in capsys.readouterr().err
    assert [(of.name, of.value) for of in classfile.load(out)] == [("high", 1000), ("high-or-so", 7), ("low", -5)]
    assert "org/team-a" in [queue.path for queue in queuefile.load(out).queues]


def test_a_priority_class_of_another_range_is_refused():
    text = "kind: PriorityClass\nmetadata: {name: top}\nvalue: 1000000001\n---\n" + VOLCANO
    with pytest.raises(CliError, match="PriorityClass top: value: 1000000001 is not between"):
        SYSTEMS["volcano"](text, "file.yaml")


def test_volcano():
    data, notes = imported("volcano", VOLCANO)
    assert data == {
        "dept": {
            "weight": 2,
            "preemption": "ANY",
            "queues": {
                "child": {
                    "weight": 3,
                    "priority": 7,
                    "preemption": "ANY",
                    "state": "CLOSED",
                    "guaranteed": {"cpu": "10", "memory": "1Gi"},
                    "lending_limit": {"cpu": "6", "memory": "0"},
                    "limit": {"cpu": "20", "nvidia.com/gpu": "4"},
                }
            },
        }
    }
    told = "\n".join(notes)
    assert "Queue child: reclaimable false" in told
    assert "Queue child: spec.affinity.x is no setting" in told
    assert "Queue root: spec.capability has no counterpart" in told
    assert "Queue child: spec.type has no counterpart" in told
    assert "PodGroup pg: has no counterpart" in told
    assert "Queue dept: annotation volcano.sh/hierarchy root/dept is left out" in told
    assert "Queue dept: annotation volcano.sh/hierarchy-weights 1/2 is left out" in told


def test_yunikorn():
    data, notes = imported("yunikorn", YUNIKORN)
    assert data == {
        "prod": {
            "priority": 5,
            "guaranteed": {"cpu": "10", "memory": "9765625Ki"},
            "limit": {"cpu": "20", "memory": "19531250Ki"},
            "per_user": {"running_jobs": 3, "resources": {"cpu": "0.5"}},
            "queues": {"batch-jobs": {"preemption": "ANY"}},
        }
    }
    told = "\n".join(notes)
    for part in (
        "placementrules has no counterpart",
        "limits[1] for user ann has no counterpart",
        "maxapplications has no counterpart",
        "stateaware has no counterpart",
        'is named "batch-jobs" here',
    ):
        assert part in told


COHORT = """
apiVersion: kueue.x-k8s.io/v1beta1
kind: Cohort
metadata: {{name: org}}
spec:
  {parent}
  resourceGroups:
  - coveredResources: [cpu]
    flavors: [{{name: f, resources: [{{name: cpu, nominalQuota: {own}, borrowingLimit: 2}}]}}]
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: ClusterQueue
metadata: {{name: a}}
spec: {{cohort: org, resourceGroups: [{{flavors: [{{name: f, resources: [{{name: cpu, nominalQuota: 9}}]}}]}}]}}
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: ClusterQueue
metadata: {{name: b}}
spec: {{cohort: org, resourceGroups: [{{flavors: [{{name: f, resources: [{{name: cpu, nominalQuota: 12}}]}}]}}]}}
"""


@pytest.mark.parametrize(("own", "guaranteed", "limit"), [(0, "21", "23"), (5, "26", "28")])
def test_the_quota_of_a_cohort_is_on_top_of_that_of_its_queues(own, guaranteed, limit):
    data, _ = imported("kueue", COHORT.format(parent="parentName: above", own=own))
    org = data["above"]["queues"]["org"]
    assert (org["guaranteed"], org["limit"]) == ({"cpu": guaranteed}, {"cpu": limit})
    assert "limit" not in org["queues"]["a"]
    assert (data["above"]["guaranteed"], data["above"]["limit"]) == ({"cpu": guaranteed}, {"cpu": guaranteed})


def test_a_cohort_with_nothing_above_ends_at_what_it_has_and_may_borrow():
    data, notes = imported("kueue", COHORT.format(parent="", own=0))
    assert data["org"]["limit"] == {"cpu": "23"}
    assert "Cohort org: borrowingLimit: there is nobody above to borrow from" in "\n".join(notes)


def test_what_contradicts_itself_is_mended_and_told():
    data, notes = imported("volcano", VOLCANO.replace("{weight: 2}", "{capability: {cpu: 3}, deserved: {cpu: 50}}"))
    assert data["dept"]["limit"] == {"cpu": "10"}
    assert data["dept"]["guaranteed"] == {"cpu": "10"}
    told = "\n".join(notes)
    assert "dept: limit of cpu is raised to 10, which the queues below are guaranteed" in told
    assert "dept: guarantee of cpu is cut down to 10, its limit" in told


@pytest.mark.parametrize(
    ("system", "text", "says"),
    [
        ("kueue", "kind: Pod", "holds no Kueue ClusterQueue"),
        ("volcano", VOLCANO.replace("parent: dept", "parent: nowhere"), 'has the parent "nowhere"'),
        ("volcano", VOLCANO.replace("{weight: 2}", "{parent: child}"), "is above itself"),
        ("yunikorn", "partitions: []", "holds no YuniKorn partitions"),
        ("kueue", "a: [", "is not YAML"),
        ("volcano", VOLCANO.replace("cpu: 10", "cpu: many"), "is not a quantity"),
        ("volcano", VOLCANO.replace("weight: 3", "weight: many"), "Queue child: spec.weight: must be a whole number"),
        ("volcano", VOLCANO.replace("weight: 3", "weight: -1"), "Queue child: spec.weight: -1 is not between 0 and"),
        ("volcano", VOLCANO.replace("{weight: 2}", "[]"), "Queue dept: spec: must be a mapping, not []"),
        (
            "kueue",
            KUEUE.replace("stopPolicy: Hold\n", "stopPolicy: Halt\n"),
            "team.a: spec.stopPolicy: must be one of None,",
        ),
        (
            "kueue",
            KUEUE.replace("reclaimWithinCohort: Any", "reclaimWithinCohort: Some"),
            "team.a: spec.preemption.reclaimWithinCohort: must be one of Never,",
        ),
        (
            "kueue",
            KUEUE.replace("{name: nvidia.com/gpu, n", "{n"),
            "team.a: spec.resourceGroups[0].flavors[0].resources[1]: has no name",
        ),
        ("kueue", KUEUE.replace('"0.5"', "NaN"), "team.a: spec.fairSharing.weight: 'NaN' is not a number from 0 on"),
        (
            "yunikorn",
            YUNIKORN.replace('"5"', "high"),
            "queue root.prod: properties.priority.offset: must be a whole number, not 'high'",
        ),
        (
            "yunikorn",
            YUNIKORN.replace("users: [ann]", "users: ann"),
            "queue root.prod: limits[1].users: must be a list",
        ),
        (
            "yunikorn",
            YUNIKORN.replace("maxapplications: 3", "maxapplications: -3"),
            "limits[0].maxapplications: -3 is not",
        ),
    ],
)
def test_a_mistake_is_one_sentence(system, text, says):
    with pytest.raises(CliError) as caught:
        SYSTEMS[system](text, "file.yaml")
    assert says in caught.value.message


@pytest.mark.parametrize("text", ["[" * 5000, "partitions: [{name: p, queues: &q [{name: a, queues: *q}]}]"])
def test_what_never_ends_is_refused(tmp_path, text):
    (tmp_path / "deep.yaml").write_text(text)
    with pytest.raises(CliError, match="nested too deeply"):
        importing.run("yunikorn", str(tmp_path / "deep.yaml"), "")
