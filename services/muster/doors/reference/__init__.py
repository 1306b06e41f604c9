"""The reference of Muster's job files, `docs/job-file.md`, made from the tables and the types that the door reads by.

`python -m muster.doors.reference` writes it. A test compares it with what is committed.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from muster.doors.fields import JOB_FIELDS, REQUEST_FIELDS, RUN_FIELDS, TASK_FIELDS, Field, bounds
from muster.doors.placing import CONSTRAINT_FIELDS, PLACE_FIELDS

_HEAD = """\
# Job files

*This page is made from the types by `python -m muster.doors.reference`; a test holds it to them.*

A job file is YAML (1.2: only `true` and `false` are booleans, so `on` is a word) or JSON. Each document is one job; a document
may also be a list of jobs. A key that is not listed here, or stands twice, is an error that names the line.

```yaml
name: train
queue: gpu
gpus: 2
cpu: 8
memory: 64Gi
time_limit: 12h
command: python train.py --config config.yaml
```

`muster submit FILE` hands it in, `muster convert FILE` shows what would be handed in, with everything that holds anyway left out.

## Amounts

| written | means |
| --- | --- |
| cores | `2`, `0.5`, `500m` (thousandths) |
| memory | with a unit: `64Gi`, `512Mi`, `1Ti` (of 1024), `64G` (of 1000, if it comes to whole MiB); `0` |
| span | seconds (`90`, `1.5`), or `90s`, `15m`, `24h`, `7d`, `1d12h` |
| decimal in quotes | a share of one GPU in thousandths: `"0.5"` |

An amount with more digits than are kept is an error, not rounded.
"""

_TAIL = """\
## Selectors and tolerations

```yaml
selector: {kubernetes.io/hostname: gpu-1}       # a label and its value, or a list of values
---
selector:
  - {key: zone, op: In, values: [a, b]}         # In, NotIn, Exists, DoesNotExist, Gt, Lt
  - {key: spot, op: DoesNotExist}
---
any_of: [{zone: a}, [{key: generation, op: Gt, values: ["3"]}]]      # one of these must be met
prefers: [{labels: {disk: ssd}, weight: 10}, {labels: {net: fast}}]  # and these are taken first
---
tolerations: ["dedicated=ml:NoSchedule", "spot:NoExecute for 300", ":NoSchedule"]
---
tolerations:
  - {key: dedicated, value: ml, effect: NoSchedule}   # no value: every value; no effect: every effect; no key: every key
```

## Groups

A job whose tasks are not alike has `groups` instead of fields of its own for tasks. It is still one gang: all groups start
together, each with at least its `min`. A group may have a `command`, an `image` and an `environment` of its own; what it does not
say is the job's, and its variables are added.

```yaml
name: train-with-head
success: head
groups:
  - {name: head, cpu: 4, memory: 16Gi, command: [python, serve.py], environment: {ROLE: head}}
  - {name: worker, count: 4, min: 2, gpus: 8, memory: 512Gi}
command: [python, train.py]
```
"""


def reference() -> str:
    """The page."""
    parts = [
        _HEAD,
        _section("The job", JOB_FIELDS),
        _section("What decisions read", REQUEST_FIELDS),
        _section("Each task", TASK_FIELDS, "These stand in the job, or in each of its groups beside the group's `name`."),
        _section("Each task's node", PLACE_FIELDS, "Likewise. What they mean in full stands in docs/constraints.md."),
        _section("All places together", CONSTRAINT_FIELDS, "These stand in the job. See docs/constraints.md."),
        _section("What is run", RUN_FIELDS, "No decision reads these."),
        _TAIL,
    ]
    return "\n".join(parts)


def _section(title: str, fields: Iterable[Field], about: str = "") -> str:
    lines = [f"## {title}", ""]
    if about:
        lines += [about, ""]
    lines += ["| field | written as | usually | meaning |", "| --- | --- | --- | --- |"]
    for field in fields:
        about = field.about + _range(field)
        lines.append(f"| `{field.key}` | {field.form} | {_usual(field)} | {about} |")
    return "\n".join(lines) + "\n"


def _usual(field: Field) -> str:
    value: Any = field.usual()
    if value is msgspec.UNSET:
        left_out = any(one.name == field.target and one.default is msgspec.UNSET for one in msgspec.structs.fields(field.part))
        return "none" if left_out else ""
    if isinstance(value, str) and field.default is not msgspec.UNSET:
        return f"`{value}`" if value == "count" else value
    if value is None or value in ("", (), {}) or field.target == "gpu_milli":
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{field.write(value)}`"


def _range(field: Field) -> str:
    if field.form != "whole number":
        return ""
    least, most = bounds(field.part, field.target)
    return f" {least} to {most}."
