"""Kubernetes manifests in the manners in which people write them, and what each comes to.

Written for these tests after manifests in public repositories: their habits, not their text.
"""

from typing import Any

from muster.events.services import Service

# name: (manifest, what its first job comes to, the keys that are named as not honoured)
MANIFESTS: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "pod-one-gpu": (
        """
apiVersion: v1
kind: Pod
metadata:
  name: cuda-vector-add
spec:
  restartPolicy: OnFailure
  containers:
    - name: cuda-vector-add
      image: "k8s.gcr.io/cuda-vector-add:v0.1"
      resources:
        limits:
          nvidia.com/gpu: 1 # requesting 1 GPU
""",
        {
            "name": "cuda-vector-add",
            "gpus": 1,
            "image": "k8s.gcr.io/cuda-vector-add:v0.1",
            "command": (),
            "max_retries": 6,
            "grace_s": 30,
        },
        [],
    ),
    "deployment": (
        """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, labels: {app: web}}
spec:
  replicas: 10
  minReadySeconds: 5
  progressDeadlineSeconds: 600
  selector: {matchLabels: {app: web}}
  strategy:
    type: RollingUpdate
    rollingUpdate: {maxUnavailable: 25%, maxSurge: 25%}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - {name: c, image: nginx, resources: {limits: {nvidia.com/gpu: 1}}}
""",
        {
            "name": "web",
            "gpus": 1,
            "labels": {"app": "web"},
            "max_retries": 0,
            "array": None,
            "service": Service(replicas=10, max_unavailable=2, max_surge=3, settle_us=5_000_000),
        },
        ["spec.progressDeadlineSeconds"],
    ),
    "deployment-of-one": (
        """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  strategy: {rollingUpdate: {maxSurge: 0, maxUnavailable: 50%}}
  template: {spec: {containers: [{image: nginx}]}}
""",
        {"service": Service(replicas=1, max_unavailable=1, max_surge=0)},
        [],
    ),
    "deployment-usual": (
        """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec: {replicas: 3, template: {spec: {restartPolicy: Always, containers: [{image: nginx}]}}}
""",
        {"service": Service(replicas=3, max_unavailable=0, max_surge=1)},
        [],
    ),
    "deployment-recreated": (
        """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec: {replicas: 3, strategy: {type: Recreate}, template: {spec: {containers: [{image: nginx}]}}}
""",
        {"service": Service(replicas=3, max_unavailable=3, max_surge=0)},
        [],
    ),
    "stateful-set": (
        """
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  replicas: 2
  updateStrategy: {type: RollingUpdate, rollingUpdate: {partition: 1}}
  template: {spec: {containers: [{image: db}]}}
""",
        {"service": Service(replicas=2)},
        ["spec.serviceName", "spec.updateStrategy.rollingUpdate.partition"],
    ),
    "pod-tolerations": (
        """
apiVersion: v1
kind: Pod
metadata: {name: gpu-pod}
spec:
  restartPolicy: Never
  runtimeClassName: nvidia
  containers:
  - name: c
    image: centos
    command: ["/bin/bash", "-c", "sleep 3600"]
    resources: {requests: {nvidia.com/gpu: 2}, limits: {nvidia.com/gpu: "2"}}
  tolerations:
  - {key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}
  - {key: sku, operator: Equal, value: gpu}
  - {operator: Exists, tolerationSeconds: 60}
""",
        {
            "gpus": 2,
            "command": ("/bin/bash", "-c", "sleep 3600"),
            "tolerations": [("nvidia.com/gpu", "", True, "NoSchedule"), ("sku", "gpu", False, ""), ("", "", True, "")],
        },
        ["spec.runtimeClassName"],
    ),
    "pod-node-selector": (
        """
apiVersion: v1
kind: Pod
metadata: {name: tensorflow-gpu, namespace: rd, labels: {app: tf}}
spec:
  containers:
  - name: tensorflow
    image: "tensorflow/tensorflow:nightly"
    ports: [{containerPort: 8888, protocol: TCP}]
    imagePullPolicy: Always
  nodeSelector: {gpu: "true", kubernetes.io/hostname: node-7}
""",
        {
            "selector": [("gpu", "In", ("true",)), ("kubernetes.io/hostname", "In", ("node-7",))],
            "labels": {"app": "tf", "namespace": "rd"},
            "gpus": 0,
        },
        [],
    ),
    "pod-affinity-required": (
        """
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  affinity:
    nodeAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        nodeSelectorTerms:
        - matchExpressions:
          - {key: nvidia.com/gpu.product, operator: In, values: [NVIDIA-GeForce-RTX-3090, NVIDIA-A10]}
          - {key: spot, operator: DoesNotExist}
          - {key: cores, operator: Gt, values: ["16"]}
          matchFields:
          - {key: metadata.name, operator: NotIn, values: [bad-node]}
  containers: [{name: c, image: x, command: [sleep, infinity]}]
""",
        {
            "selector": [
                ("nvidia.com/gpu.product", "In", ("NVIDIA-GeForce-RTX-3090", "NVIDIA-A10")),
                ("spot", "DoesNotExist", ()),
                ("cores", "Gt", ("16",)),
                ("kubernetes.io/hostname", "NotIn", ("bad-node",)),
            ]
        },
        [],
    ),
    "pod-affinity-alternatives-of-one-label": (
        """
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  affinity:
    nodeAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        nodeSelectorTerms:
        - matchExpressions: [{key: gpu-type, operator: In, values: [1080Ti]}]
        - matchExpressions: [{key: gpu-type, operator: In, values: [2080Ti]}]
  containers: [{name: c, image: x}]
""",
        {"selector": [("gpu-type", "In", ("1080Ti", "2080Ti"))]},
        [],
    ),
    "pod-affinity-alternatives": (
        """
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  affinity:
    nodeAffinity:
      preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, preference: {}}]
      requiredDuringSchedulingIgnoredDuringExecution:
        nodeSelectorTerms:
        - matchExpressions: [{key: a, operator: Exists}]
        - matchExpressions: [{key: b, operator: Exists}]
    podAntiAffinity: {}
  topologySpreadConstraints: []
  containers: [{name: c, image: x}]
""",
        {"selector": [], "any_of": [[("a", "Exists", ())], [("b", "Exists", ())]], "prefers": []},
        [],
    ),
    "pod-with-volumes": (
        """
apiVersion: v1
kind: Pod
metadata: {name: train}
spec:
  containers:
  - name: dev
    image: docker.io/someone/fire:v6
    command: ["sleep", "infinity"]
    workingDir: /develop/code
    resources: {limits: {cpu: "2", memory: "8Gi", nvidia.com/gpu: 1, ephemeral-storage: 10Gi}}
    env:
    - {name: NVIDIA_VISIBLE_DEVICES, value: all}
    - {name: EMPTY}
    - {name: NUMBER, value: 3}
    - {name: TOKEN, valueFrom: {secretKeyRef: {name: s, key: k}}}
    volumeMounts:
    - {name: fire-data, mountPath: /develop/data}
    - {name: dshm, mountPath: /dev/shm}
  volumes:
  - {name: fire-data, persistentVolumeClaim: {claimName: fire-data}}
  - {name: dshm, emptyDir: {medium: Memory}}
""",
        {
            "cpu_milli": 2000,
            "memory_mib": 8192,
            "disk_mib": 10240,
            "gpus": 1,
            "directory": "/develop/code",
            "environment": {"NVIDIA_VISIBLE_DEVICES": "all", "EMPTY": "", "NUMBER": "3"},
        },
        ["spec.containers[0].env[3].valueFrom", "spec.volumes[0]"],
    ),
    "pod-references": (
        """
apiVersion: v1
kind: Pod
metadata: {name: greet}
spec:
  containers:
  - name: c
    image: bash
    env:
    - {name: GREETING, value: hello}
    - {name: BOTH, value: "$(GREETING) $(UNKNOWN) $$(GREETING)"}
    command: [echo]
    args: ["$(BOTH)", "$(GREETING)!"]
""",
        {
            "environment": {"GREETING": "hello", "BOTH": "hello $(UNKNOWN) $(GREETING)"},
            "command": ("echo", "hello $(UNKNOWN) $(GREETING)", "hello!"),
        },
        [],
    ),
    "pod-arguments-only": (
        """
apiVersion: v1
kind: Pod
metadata: {name: args}
spec:
  containers: [{name: c, image: tf-mnist, args: ["--max_steps", "500"]}]
""",
        {"command": ("--max_steps", "500"), "environment": {"MUSTER_ENTRYPOINT": "image"}},
        [],
    ),
    "pod-of-several-containers": (
        """
apiVersion: v1
kind: Pod
metadata: {name: sidecar}
spec:
  initContainers: [{name: init, image: busybox, command: [mkdir, -p, /x]}]
  containers:
  - {name: proxy, image: envoy, resources: {limits: {cpu: 1}}}
  - {name: main, image: trainer, resources: {limits: {nvidia.com/gpu: 4, rdma/hca: 1}}}
""",
        {"image": "trainer", "gpus": 4, "cpu_milli": 0},
        ["spec.initContainers", "spec.containers[0]", "spec.containers[1].resources.limits.rdma/hca"],
    ),
    "pod-always": (
        """
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  restartPolicy: Always
  priorityClassName: high
  terminationGracePeriodSeconds: 120
  activeDeadlineSeconds: 600
  containers:
  - {name: c, image: nginx, livenessProbe: {httpGet: {path: /, port: 80}}, envFrom: [{configMapRef: {name: x}}], resource: {}}
""",
        {"grace_s": 120, "time_s": 600, "max_retries": 0},
        [
            "spec.restartPolicy",
            "spec.priorityClassName",
            "spec.containers[0].livenessProbe",
            "spec.containers[0].envFrom",
            "spec.containers[0].resource",
        ],
    ),
    "pod-priority-and-amd": (
        """
{"apiVersion": "v1", "kind": "Pod",
 "metadata": {"name": "amd", "annotations": {"note": "x"}},
 "spec": {"priority": 1000, "schedulerName": "muster",
          "containers": [{"name": "c", "image": "rocm",
                          "resources": {"limits": {"amd.com/gpu": 8, "memory": "129e6", "cpu": "0.1"}}}]}}
""",
        {"priority": 1000, "gpus": 8, "memory_mib": 124, "cpu_milli": 100},
        [],
    ),
    "pod-requests-below-limits": (
        """
apiVersion: v1
kind: Pod
metadata: {name: burst}
spec:
  containers:
  - name: c
    image: x
    resources: {requests: {cpu: 250m, memory: 1Gi}, limits: {cpu: 4, memory: 4G}}
""",
        {"cpu_milli": 250, "memory_mib": 3815},
        [],
    ),
    "job-simple": (
        """
apiVersion: batch/v1
kind: Job
metadata:
  name: pi
spec:
  backoffLimit: 4
  ttlSecondsAfterFinished: 100
  template:
    spec:
      restartPolicy: Never
      containers:
      - name: pi
        image: perl:5.34.0
        command: ["perl",  "-Mbignum=bpi", "-wle", "print bpi(2000)"]
""",
        {"name": "pi", "array": None, "max_retries": 4, "count": 1},
        ["spec.ttlSecondsAfterFinished"],
    ),
    "job-defaults": (
        """
apiVersion: batch/v1
kind: Job
metadata: {labels: {app: samples}, name: mnist}
spec:
  template:
    metadata: {labels: {app: samples, tier: gpu}}
    spec:
      containers: [{name: c, image: mnist, args: [--steps, "5"], resources: {limits: {nvidia.com/gpu: 1}}}]
      restartPolicy: OnFailure
      tolerations: [{key: "sku", operator: "Equal", value: "gpu", effect: "NoSchedule"}]
""",
        {"max_retries": 6, "labels": {"app": "samples", "tier": "gpu"}, "tolerations": [("sku", "gpu", False, "NoSchedule")]},
        [],
    ),
    "job-completions": (
        """
apiVersion: batch/v1
kind: Job
metadata: {name: many}
spec:
  completions: 8
  parallelism: 2
  activeDeadlineSeconds: 3600
  template:
    spec: {restartPolicy: Never, containers: [{name: c, image: x}]}
""",
        {"array": 8, "at_once": 2, "count": 1, "time_s": 3600, "environment": {"MUSTER_DOOR": "kubernetes"}},
        [],
    ),
    "job-work-queue": (
        """
apiVersion: batch/v1
kind: Job
metadata: {name: queue}
spec: {parallelism: 3, template: {spec: {restartPolicy: Never, containers: [{name: c, image: x}]}}}
""",
        {"array": 3},
        [],
    ),
    "job-indexed": (
        """
apiVersion: batch/v1
kind: Job
metadata: {name: indexed}
spec:
  completionMode: Indexed
  completions: 5
  parallelism: 5
  backoffLimitPerIndex: 1
  template:
    spec: {restartPolicy: Never, containers: [{name: c, image: busybox, command: [sh, -c, "echo $JOB_COMPLETION_INDEX"]}]}
""",
        {"array": 5, "count": 1, "max_retries": 1, "environment": {"MUSTER_DOOR": "kubernetes"}},
        [],
    ),
    "job-indexed-gang": (
        """
apiVersion: v1
kind: Service
metadata: {name: headless-svc}
spec: {clusterIP: None, selector: {job-name: multinode-job}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: multinode-job, labels: {kueue.x-k8s.io/queue-name: user-queue}}
spec:
  completionMode: Indexed
  completions: 2
  parallelism: 2
  suspend: true
  template:
    spec:
      subdomain: headless-svc
      restartPolicy: Never
      containers:
      - name: nccl
        image: pytorch/pytorch
        env:
        - {name: MASTER_ADDR, value: multinode-job-0.headless-svc}
        - {name: MASTER_PORT, value: "29500"}
        - {name: NCCL_DEBUG, value: INFO}
        command: [torchrun, --nnodes, "2", train.py]
        resources: {limits: {nvidia.com/gpu: 8}}
""",
        {
            "queue": "user-queue",
            "array": None,
            "count": 2,
            "min": 2,
            "gpus": 8,
            "environment": {"NCCL_DEBUG": "INFO", "MUSTER_DOOR": "kubernetes"},
        },
        ["kind", "env MASTER_ADDR", "env MASTER_PORT"],
    ),
    "job-kueue": (
        """
apiVersion: batch/v1
kind: Job
metadata:
  generateName: sample-job-
  annotations: {kueue.x-k8s.io/queue-name: lq-team-b}
spec:
  parallelism: 3
  completions: 3
  suspend: true
  template:
    spec:
      containers: [{name: dummy, image: agnhost, args: [pause], resources: {requests: {cpu: 100m, nvidia.com/gpu: 1}}}]
      restartPolicy: Never
""",
        {"name": "sample-job-00001", "queue": "lq-team-b", "array": 3, "gpus": 1},
        [],
    ),
    "job-suspended": (
        """
apiVersion: batch/v1
kind: Job
metadata: {name: later}
spec: {suspend: true, template: {spec: {restartPolicy: Never, containers: [{name: c, image: x}]}}}
""",
        {"name": "later"},
        ["spec.suspend"],
    ),
    "anchors-and-merges": (
        """
apiVersion: v1
kind: Pod
metadata: {name: anchors}
spec:
  containers:
  - name: c
    image: x
    resources:
      requests: &same {cpu: 2, memory: 4Gi}
      limits: {<<: *same, nvidia.com/gpu: 1}
""",
        {"cpu_milli": 2000, "memory_mib": 4096, "gpus": 1},
        [],
    ),
    "list-of-objects": (
        """
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Pod, metadata: {name: one}, spec: {containers: [{name: c, image: x}]}}
- {apiVersion: v1, kind: Pod, metadata: {name: two}, spec: {containers: [{name: c, image: x}]}}
""",
        {"name": "one"},
        [],
    ),
}

_POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n"
_JOB = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: p}\nspec:\n  template: {spec: {containers: [{image: x}]}}\n"

# name: (manifest, the line, the key, words of the sentence)
WRONG: dict[str, tuple[str, int, str, str]] = {
    "other-kind": (
        "apiVersion: apps/v1\nkind: DaemonSet\n",
        2,
        "kind",
        "v1/Pod, batch/v1/Job, Volcano's Job, apps/v1/Deployment",
    ),
    "old-version": ("apiVersion: batch/v1beta1\nkind: Job\n", 1, "apiVersion", "must be batch/v1"),
    "no-version": ("kind: Pod\n", 1, "file", "apiVersion"),
    "no-name": ("apiVersion: v1\nkind: Pod\nmetadata: {}\nspec: {}\n", 3, "metadata", "name"),
    "bad-name": ("apiVersion: v1\nkind: Pod\nmetadata: {name: A_b}\nspec: {}\n", 3, "metadata.name", "lower-case"),
    "no-spec": ("apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n", 1, "file", "no spec"),
    "no-containers": (_POD + "  containers: []\n", 5, "spec", "no containers"),
    "containers-no-list": (_POD + "  containers: {image: x}\n", 5, "spec.containers", "must be a list"),
    "neither-image-nor-command": (
        _POD + "  containers:\n  - name: c\n",
        6,
        "spec.containers[0]",
        "neither an image nor a command",
    ),
    "gpu-fraction": (
        _POD + "  containers:\n  - image: x\n    resources:\n      limits:\n        nvidia.com/gpu: 0.5\n",
        9,
        "spec.containers[0].resources.limits.nvidia.com/gpu",
        "whole number",
    ),
    "gpu-overcommitted": (
        _POD + "  containers:\n  - image: x\n    resources: {limits: {nvidia.com/gpu: 2}, requests: {nvidia.com/gpu: 1}}\n",
        7,
        "spec.containers[0].resources.limits.nvidia.com/gpu",
        "overcommitted",
    ),
    "memory": (
        _POD + "  containers:\n  - image: x\n    resources: {limits: {memory: 4 GB}}\n",
        7,
        "spec.containers[0].resources.limits.memory",
        "64Gi",
    ),
    "twice": (_POD + "  priority: 1\n  priority: 2\n", 6, "spec.priority", "stands twice; first in line 5"),
    "restart": (_POD + "  restartPolicy: Sometimes\n", 5, "spec.restartPolicy", "Always, OnFailure, Never"),
    "toleration": (_POD + "  tolerations: [{value: x}]\n", 5, "spec.tolerations[0]", "needs a key"),
    "operator": (_POD + "  tolerations: [{key: a, operator: exists}]\n", 5, "spec.tolerations[0].operator", "Equal, Exists"),
    "indexed-without-completions": (_JOB + "  completionMode: Indexed\n", 6, "spec.completionMode", "needs completions"),
    "no-parallelism": (_JOB + "  parallelism: 0\n", 6, "spec.parallelism", "at least 1"),
    "negative-retries": (_JOB + "  backoffLimit: -1\n", 6, "spec.backoffLimit", "from 0"),
    "slices": (
        _POD + "  containers:\n  - image: x\n    resources: {limits: {nvidia.com/mig-small: 1}}\n",
        7,
        "spec.containers[0].resources.limits.nvidia.com/mig-small",
        "profile of slices",
    ),
}
