"""Where pods may run, and which of them start together: what manifests say of it, and what of it is named."""

import json
from typing import Any

import pytest
from msgspec import UNSET

from muster.doors import DoorError, Opened, Origin, open_file
from muster.doors.kubernetes_places import level_of
from muster.doors.muster_file import job_document, read_job_file
from muster.events.jobs import Constraints, JobTerm, Preference, Requirement, Spread, Within
from muster.reading.values import read_documents

ORIGIN = Origin(new_id=lambda: "01900000-0000-7000-8000-000000000001", user="ann", submitted_us=7)
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def read(manifest: str) -> Opened:
    return open_file(manifest.encode(), "pod.yaml", ORIGIN)


def pod(spec: str, metadata: str = "name: p") -> str:
    return f"""
apiVersion: v1
kind: Pod
metadata: {{{metadata}}}
spec:
  containers: [{{name: c, image: x}}]
{spec}
"""


def indexed(spec: str, marks: str = 'muster.io/gang: "true"', count: int = 4, more: str = "") -> str:
    return f"""
apiVersion: batch/v1
kind: Job
metadata: {{name: j, labels: {{app: j}}}}
spec:
  completionMode: Indexed
  completions: {count}
  parallelism: {count}
  template:
    metadata: {{annotations: {{{marks}}}}}
    spec:
      restartPolicy: Never
      containers: [{{name: c, image: x}}]
{spec}
{more}
"""


def label(key: str, *values: str) -> Requirement:
    return Requirement(key=key, values=values)


def test_pods_are_kept_near_and_away_by_labels_and_levels() -> None:
    opened = read(
        pod(
            f"""
  affinity:
    podAffinity:
      {REQUIRED}:
      - {{topologyKey: topology.kubernetes.io/zone, labelSelector: {{matchLabels: {{app: cache}}}}}}
      {PREFERRED}:
      - {{weight: 50, podAffinityTerm: {{topologyKey: rack, namespaces: [a, b], labelSelector: {{matchLabels: {{app: db}}}}}}}}
    podAntiAffinity:
      {REQUIRED}:
      - topologyKey: kubernetes.io/hostname
        labelSelector:
          matchExpressions: [{{key: app, operator: In, values: [noisy, loud]}}, {{key: calm, operator: DoesNotExist}}]
""",
            "name: p, namespace: rd",
        )
    )
    assert opened.notices == ()
    assert opened.jobs[0].request.constraints == Constraints(
        affinity=(
            JobTerm(labels=(label("app", "cache"), label("namespace", "rd")), by="zone"),
            JobTerm(labels=(label("app", "db"), label("namespace", "a", "b")), by="rack", required=False),
        ),
        anti_affinity=(
            JobTerm(
                labels=(label("app", "noisy", "loud"), Requirement(key="calm", op="DoesNotExist"), label("namespace", "rd")),
                by="node",
            ),
        ),
    )


def test_preferred_nodes_have_weights() -> None:
    (job,) = read(
        pod(f"""
  affinity:
    nodeAffinity:
      {PREFERRED}:
      - {{weight: 80, preference: {{matchExpressions: [{{key: disk, operator: In, values: [ssd]}}]}}}}
      - {{weight: 1, preference: {{matchExpressions: [{{key: slow, operator: DoesNotExist}}]}}}}
""")
    ).jobs
    assert job.request.groups[0].prefers == (
        Preference(labels=(label("disk", "ssd"),), weight=80),
        Preference(labels=(Requirement(key="slow", op="DoesNotExist"),)),
    )


def test_a_gang_is_spread_and_kept_within_a_domain() -> None:
    opened = read(
        indexed(
            """
      topologySpreadConstraints:
      - maxSkew: 1
        topologyKey: kubernetes.io/hostname
        whenUnsatisfiable: DoNotSchedule
        labelSelector: {matchLabels: {app: j}}
""",
            "kueue.x-k8s.io/podset-required-topology: cloud.provider.com/topology-block",
        )
    )
    assert opened.notices == ()
    (job,) = opened.jobs
    assert (job.request.array, job.request.groups[0].count) == (None, 4)
    assert job.request.constraints == Constraints(within=(Within(level="block"),), spread=(Spread(level="node", skew=1),))


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ("{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: ScheduleAnyway}", "spreads as required, or not at all"),
        ("{maxSkew: 1, topologyKey: planet, whenUnsatisfiable: DoNotSchedule}", "none of Muster's levels"),
        (
            "{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: other}}}",
            "others than the job's own",
        ),
        ("{maxSkew: 1, minDomains: 3, topologyKey: zone, whenUnsatisfiable: DoNotSchedule}", "minDomains"),
    ],
)
def test_what_spread_cannot_say_is_named(spec: str, named: str) -> None:
    opened = read(indexed(f"      topologySpreadConstraints: [{spec}]"))
    assert any(named in str(notice) for notice in opened.notices)
    alone = read(pod(f"  topologySpreadConstraints: [{spec}]"))
    assert alone.notices


@pytest.mark.parametrize(
    ("term", "named"),
    [
        ("{topologyKey: planet, labelSelector: {matchLabels: {app: a}}}", "none of Muster's levels"),
        ("{topologyKey: zone}", "must name labels"),
        ("{topologyKey: zone, labelSelector: {matchExpressions: [{key: a, operator: NotIn, values: [b]}]}}", "must name labels"),
        (
            "{topologyKey: zone, namespaceSelector: {matchLabels: {a: b}}, labelSelector: {matchLabels: {app: a}}}",
            "namespaceSelector",
        ),
        ("{topologyKey: zone, matchLabelKeys: [a], labelSelector: {matchLabels: {app: a}}}", "matchLabelKeys"),
    ],
)
def test_what_affinity_cannot_say_is_named(term: str, named: str) -> None:
    opened = read(pod(f"  affinity: {{podAntiAffinity: {{{REQUIRED}: [{term}]}}}}"))
    assert [named in str(notice) for notice in opened.notices] == [True]


def test_ports_of_the_node_seconds_of_tolerations_and_gates() -> None:
    opened = read("""
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  schedulingGates: [{name: example.com/wait}]
  tolerations: [{key: bad, operator: Exists, effect: NoExecute, tolerationSeconds: 300}]
  containers:
  - name: c
    image: x
    ports: [{containerPort: 80, hostPort: 8080}, {containerPort: 90}]
    resources: {requests: {ephemeral-storage: 20Gi}}
""")
    (group,) = opened.jobs[0].request.groups
    assert (group.ports, group.tolerations[0].seconds, group.disk_mib) == ((8080,), 300, 20 * 1024)
    assert [notice.key for notice in opened.notices] == ["spec.schedulingGates"]
    (group,) = (
        read("""
apiVersion: v1
kind: Pod
metadata: {name: p}
spec: {hostNetwork: true, containers: [{name: c, image: x, ports: [{containerPort: 29500}]}]}
""")
        .jobs[0]
        .request.groups
    )
    assert group.ports == (29500,)


CLASS = """
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: high}
value: 100000
"""


def test_a_priority_class_that_stands_in_the_file_is_a_priority() -> None:
    opened = read(pod("  priorityClassName: high") + CLASS)
    assert [job.request.priority for job in opened.jobs] == [100_000]
    assert opened.notices == ()
    alone = read(pod("  priorityClassName: high"))
    assert alone.jobs[0].request.priority == 0
    assert "PriorityClass is not in the file" in str(alone.notices[0])
    with pytest.raises(DoorError, match="holds no job"):
        read(CLASS)


def test_kueue_says_a_least_a_time_and_a_class() -> None:
    manifest = indexed("", 'muster.io/gang: "true", kueue.x-k8s.io/job-min-parallelism: "2"').replace(
        "labels: {app: j}",
        "labels: {kueue.x-k8s.io/queue-name: team, kueue.x-k8s.io/priority-class: high, "
        'kueue.x-k8s.io/max-exec-time-seconds: "90"}',
    )
    (job,) = read(
        manifest + CLASS.replace("scheduling.k8s.io/v1", "kueue.x-k8s.io/v1beta1").replace("Pri", "WorkloadPri", 1)
    ).jobs
    (group,) = job.request.groups
    assert (job.queue, job.request.priority, job.request.time_limit_us) == ("team", 100_000, 90_000_000)
    assert (group.count, group.min) == (4, 2)


MEMBERS = """
apiVersion: scheduling.x-k8s.io/v1alpha1
kind: PodGroup
metadata: {name: team}
spec: {minMember: 3}
---
apiVersion: v1
kind: Pod
metadata: {name: head, labels: {scheduling.x-k8s.io/pod-group: team}}
spec: {containers: [{name: c, image: x, command: [head]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: w1, labels: {scheduling.x-k8s.io/pod-group: team}}
spec: {containers: [{name: c, image: x, command: [worker], resources: {limits: {nvidia.com/gpu: 8}}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: w2, labels: {scheduling.x-k8s.io/pod-group: team}}
spec: {containers: [{name: c, image: x, command: [worker], resources: {limits: {nvidia.com/gpu: 8}}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: alone}
spec: {containers: [{name: c, image: x}]}
"""


def test_the_pods_of_one_group_are_one_gang_with_groups() -> None:
    opened = read(MEMBERS)
    gang, alone = opened.jobs
    assert (gang.name, alone.name) == ("team", "alone")
    assert [(group.name, group.count, group.min, group.gpus) for group in gang.request.groups] == [
        ("head", 1, 1, 0),
        ("w1", 2, 2, 8),
    ]
    assert [gang.run.of(name).command for name in ("head", "w1")] == [("head",), ("worker",)]
    assert gang.run.of("w1").image == "x"
    assert opened.notices == ()


def test_a_group_of_which_not_all_pods_are_in_the_file_is_named() -> None:
    one = MEMBERS.replace("minMember: 3", "minMember: 5")
    assert "has 3 of the 5 pods of the group team" in str(read(one).notices[0])


VOLCANO = """
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: tf, labels: {team: ml}}
spec:
  minAvailable: 3
  schedulerName: volcano
  queue: training
  maxRetry: 5
  plugins: {svc: [], env: []}
  tasks:
  - name: ps
    replicas: 1
    template:
      spec:
        containers:
        - {name: c, image: tf, command: [python, ps.py], env: [{name: MASTER_ADDR, value: tf-ps-0}, {name: A, value: b}]}
  - name: worker
    replicas: 2
    policies: [{event: TaskCompleted, action: CompleteJob}, {event: PodEvicted, action: RestartJob}]
    template:
      spec: {containers: [{name: c, image: tf, command: [python, worker.py], resources: {limits: {nvidia.com/gpu: 1}}}]}
"""


def test_a_job_of_volcano_is_a_gang_with_a_group_for_each_task() -> None:
    opened = read(VOLCANO)
    (job,) = opened.jobs
    assert (job.name, job.queue, job.request.max_retries, job.request.success) == ("tf", "training", 5, "worker")
    assert [(group.name, group.count, group.min, group.gpus) for group in job.request.groups] == [
        ("ps", 1, 1, 0),
        ("worker", 2, 2, 1),
    ]
    ps, worker = job.run.of("ps"), job.run.of("worker")
    assert (ps.command, worker.command) == (("python", "ps.py"), ("python", "worker.py"))
    assert ps.environment == {"A": "b", "MUSTER_DOOR": "kubernetes"}
    assert "A" not in worker.environment
    assert worker.groups is UNSET
    assert [notice.key for notice in opened.notices] == ["spec.plugins", "env MASTER_ADDR"]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("minAvailable: 3", "minAvailable: 2", "2 is not honoured: each task starts with its own minAvailable"),
        ("action: RestartJob", "action: RestartTask", "a gang that loses a member is run again, whole"),
    ],
)
def test_what_volcano_says_beyond_that_is_named(old: str, new: str, words: str) -> None:
    assert any(words in str(notice) for notice in read(VOLCANO.replace(old, new)).notices)


def test_a_task_of_volcano_with_a_least_starts_with_it() -> None:
    one = VOLCANO.replace("minAvailable: 3", "minAvailable: 2").replace(
        "    replicas: 2\n", "    replicas: 2\n    minAvailable: 1\n"
    )
    assert [group.min for group in read(one).jobs[0].request.groups] == [1, 1]
    with pytest.raises(DoorError, match="must have 1 to"):
        read(VOLCANO.partition("  tasks:")[0])


@pytest.mark.parametrize("manifest", [MEMBERS, VOLCANO, indexed("")])
def test_what_they_come_to_is_written_and_read_as_the_same(manifest: str) -> None:
    for job in read(manifest).jobs:
        (again,) = read_job_file(read_documents(json.dumps(job_document(job)), "f"), ORIGIN)
        assert again == job


@pytest.mark.parametrize(
    ("key", "level"),
    [
        ("kubernetes.io/hostname", "node"),
        ("failure-domain.beta.kubernetes.io/zone", "zone"),
        ("cloud.google.com/gce-topology-block", "block"),
        ("cloud.google.com/gce-topology-subblock", "rack"),
        ("cloud.provider.com/topology-rack", "rack"),
        ("nvidia.com/gpu.clique", "nvlink_domain"),
        ("topology.kubernetes.io/region", None),
        ("backrack", None),
    ],
)
def test_a_topology_key_is_a_level(key: str, level: Any) -> None:
    assert level_of(key) == level
