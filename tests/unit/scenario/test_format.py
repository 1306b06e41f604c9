# ruff: noqa: E501 (a step stands on one line, so that its error has one place)
"""Reading a scene: what is wrong is said with its place, and nothing is ignored."""

from fractions import Fraction
from pathlib import Path

import pytest

from muster.events.queues import Amounts, QueueSet
from muster.simulator.scenario.fields import NEVER
from muster.simulator.scenario.format import Scenario, load, parse
from muster.simulator.scenario.names import Names, expand
from muster.simulator.scenario.reading import ScenarioError

HEAD = """name: a scene
cluster:
  nodes:
    - {name: "n[1-3]", gpus: 2}
steps:
"""
TAIL = "  - {at: 9, expect: {running: a}}\n"


def scene(*steps: str) -> Scenario:
    return parse(HEAD + "".join(f"  - {step}\n" for step in steps) + TAIL)


def wrong(text: str) -> str:
    with pytest.raises(ScenarioError) as caught:
        parse(text)
    return str(caught.value)


def test_the_example_of_the_format_is_read() -> None:
    example = parse(
        """name: one victim is enough
about: eleven single-GPU nodes, all taken; a higher job needs one GPU
cluster:
  nodes:
    - {name: "n[1-11]", gpus: 1}          # a range makes many
queues:                                    # optional; default: one queue "default" with no limits
  - {name: default}
policy: {name: default}                    # optional; any field of the policy
steps:
  - {at: 0, submit: {name: "low[1-11]", gpus: 1, priority: 1}}
  - {at: 1, expect: {running: "low[1-11]"}}
  - {at: 2, submit: {name: high, gpus: 1, priority: 10}}
  - {at: 60, expect: {running_exactly: [high, "10 of low[1-11]"], preempted_count: 1}}
"""
    )
    assert [node.name for node in example.nodes] == [f"n{k}" for k in range(1, 12)]
    assert [len(step.verbs) for step in example.steps] == [1, 0, 1, 0]
    exactly = example.steps[3].expects[0][0]
    assert exactly.args == Names(("high",), ((10, tuple(f"low{k}" for k in range(1, 12))),))
    assert exactly.text == "running_exactly: [high, 10 of low[1-11]]"


def test_a_range_is_every_number_in_order() -> None:
    assert expand("a[9-11]") == ["a9", "a10", "a11"]
    assert expand("r[1-2]n[0-1]") == ["r1n0", "r1n1", "r2n0", "r2n1"]
    assert expand("n[08-10]") == ["n08", "n09", "n10"]


def test_a_pick_may_be_of_a_list() -> None:
    steps = scene(
        "{at: 0, submit: [{name: a}, {name: b}, {name: 'c[1-2]'}]}",
        "{at: 1, expect: {running: ['2 of [a, b]', '1 of a b', '1 of c[1-2]']}}",
    )
    picks = steps.steps[1].expects[0][0].args.picks
    assert picks == ((2, ("a", "b")), (1, ("a", "b")), (1, ("c1", "c2")))


def test_an_array_counts_with_its_elements() -> None:
    steps = scene("{at: 0, submit: {name: a, array: {count: 3}}}", "{at: 1, expect: {running: 2 of a}}").steps
    assert steps[1].expects[0][0].args == Names((), ((2, ("a",)),))


def test_defaults_of_a_job_are_those_of_the_format() -> None:
    job = scene("{at: 0, submit: {name: a}}").steps[0].verbs[0].args[0]
    assert (job.user, job.queue, job.array, job.stop_takes_us, job.runtime_us) == ("u", "default", None, 0, None)
    assert job.request == {"groups": [{"name": "task", "count": 1, "min": 1, "cpu_milli": 100, "memory_mib": 100}]}


def test_quantities_are_exact_and_excess_digits_stay_for_the_scheduler_to_refuse() -> None:
    job = scene(
        '{at: 0, submit: {name: a, cpu: 0.5, memory: 1.5Gi, gpu_share: "0.25", stop_takes: never, time_limit: 0.5}}',
        '{at: 0, submit: {name: b, cpu: 500m, gpu_share: "0.3333", memory: 100Ki}}',
    )
    a, b = (step.verbs[0].args[0] for step in job.steps[:2])
    group = a.request["groups"][0]
    assert (group["cpu_milli"], group["memory_mib"], group["gpu_milli"]) == (500, 1536, 250)
    assert (a.stop_takes_us, a.request["time_limit_us"]) == (NEVER, 500_000)
    assert b.request["groups"][0]["cpu_milli"] == 500
    assert Fraction(b.request["groups"][0]["gpu_milli"]).limit_denominator(10) == Fraction(3333, 10)
    assert isinstance(b.request["groups"][0]["memory_mib"], float)


def test_only_true_and_false_are_booleans() -> None:
    steps = scene("{at: 0, submit: {name: a, labels: {x: on, y: no, z: 12}}}").steps
    assert steps[0].verbs[0].args[0].request["labels"] == {"x": "on", "y": "no", "z": "12"}
    on = scene("{at: 0, submit: {name: a}}", "{at: 1, expect: {on: {a: [n1, n2]}}}").steps[1].expects[0][0]
    assert (on.key, on.args) == ("on", [("a", Names(("n1", "n2")))])


def test_steps_are_in_the_order_of_time_and_of_the_file_within_one_time() -> None:
    steps = scene("{at: 5, submit: {name: a}}", "{at: 1, submit: {name: b}}", "{at: 1, submit: {name: c}}").steps
    assert [(step.at_us, step.verbs[0].args[0].name) for step in steps[:3]] == [
        (1_000_000, "b"),
        (1_000_000, "c"),
        (5_000_000, "a"),
    ]


def test_verbs_of_a_step_keep_the_order_of_the_file() -> None:
    steps = scene("{at: 0, cordon: n1, submit: {name: a}, silence: n2, restart: true, drain: n3}").steps
    assert [verb.kind for verb in steps[0].verbs] == ["cordon", "submit", "silence", "restart", "drain"]


def test_every_verb_and_expectation_in_scope_is_read() -> None:
    steps = scene(
        '{at: 0, submit: [{name: a, groups: [{name: head, gpus: 1}, {name: worker, count: 4, min: 2, gpu_memory: 10Gi}]}, {name: "b[1-2]"}]}',
        "{at: 0, submit: {name: arr, array: {count: 3}, start_fails: {on: n1, times: 2}, tolerations: ['k=v:NoSchedule', ':NoExecute']}}",
        "{at: 1, fail: {job: a, rank: 1, reason: oom}, reprioritise: {job: b1, priority: 4}, finish: arr/2, cancel: b2}",
        "{at: 1, add_nodes: [{name: n9, taints: 'k=v:NoSchedule', labels: {z: a}}], remove_nodes: n3}",
        "{at: 1, update_node: {name: n9, gpus: 4}, reregister: {name: n1, order: [1, 0]}, return: n1, fence: n1, cordon: n1, uncordon: n1}",
        "{at: 1, device: {node: n1, index: 1, health: failed}, foreign: {node: n1, cpu: 2, memory: 1Gi, gpus: 1}}",
        "{at: 2, policy: {preemption: false, silent_after: 12.5, reclaim: false, backfill: false, aging_after: 30}, repeat_last: 2}",
        "{at: 2, queue: [{name: red, parent: default, weight: 2, preemption: false}, {name: blue, order: fair}], remove_queue: blue}",
        "{at: 2, drain: n1, silence: n2, restart: true, late: {job: a, attempt: 1, rank: 0, report: exited, code: 3}, unreadable: n1, readable: n1, lease_extend: 60}",
        '{at: 2, clock: +3600, takeover: true, restart_with_gap: 30, fail_append: landed, malformed: "{", shuffle: true}',
        "{at: 3, expect: {pending: [], starting_exactly: '1 of b[1-2]', exactly_one_of: [a, b1], holds_nothing: b2, members: {a: 4}}}",
        "{at: 3, expect: {members_by_group: {a: {head: 1, worker: {at_least: 2}}}, not_on: {a: n1}, devices: {a: {n1: [0, 1], n2: 2}}}}",
        "{at: 3, expect: {same_devices_as_at: {a: 1}, attempt: {'b[1-2]': 2}, preempted: [b1], preempted_count: 1, bound_count: {at_most: 9}}}",
        "{at: 3, expect: {decisions_since: {at: 1, count: 0}, reason: {a: nodes}, free: {n1: {gpus: 1, cpu: 0.5, memory: 1Gi}}}}",
        "{at: 3, expect: [{queue: {default: {gpus: 1.5}}}, {user: {u: {gpus/H100: 1}}, held: {default: {gpus: 1}}, node: {n1: fenced}}]}",
        "{at: 3, expect: {before: [a, b1], refused: 0, any_of: [{running: a}, {failed: a, pending: b1}]}, never: {running: [a, b1]}}",
    ).steps
    policy = next(verb for step in steps for verb in step.verbs if verb.kind == "policy")
    assert policy.args == {
        "preemption": False,
        "silent_after_us": 12_500_000,
        "reclaim": False,
        "backfill": None,
        "aging_after_us": 30_000_000,
    }
    assert next(verb for step in steps for verb in step.verbs if verb.kind == "clock").args == 3_600_000_000
    assert len(steps[-2].nevers) == 1
    assert len({verb.kind for step in steps for verb in step.verbs}) == 31


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("{at: 0, submit: {name: a, gpuss: 1}}", "scene.yaml:6: steps[0].submit.gpuss is unknown: a job knows name, queue, "),
        ("{at: 0, submit: {name: a, gpus: two}}", "scene.yaml:6: steps[0].submit.gpus must be a whole number, not 'two'"),
        ("{at: 0, submit: {name: a, gpus: 0.5}}", "scene.yaml:6: steps[0].submit.gpus must be a whole number, not '0.5'"),
        ("{at: 0, submit: {name: a, gpus: true}}", "scene.yaml:6: steps[0].submit.gpus must be a whole number, not 'true'"),
        (
            "{at: 0, submit: {name: a, memory: 64}}",
            "scene.yaml:6: steps[0].submit.memory must be memory with a unit such as 64Gi, not '64'",
        ),
        (
            "{at: 0, submit: {name: a, memory: 64GiB}}",
            "scene.yaml:6: steps[0].submit.memory must be memory with a unit such as 64Gi, not '64GiB'",
        ),
        ("{at: 0, submit: {name: a, cpu: 1c}}", "scene.yaml:6: steps[0].submit.cpu must be cores such as 0.5 or 500m, not '1c'"),
        (
            "{at: 0, submit: {name: a, within: {shelf: required}}}",
            "scene.yaml:6: steps[0].submit.within.shelf is no level: 'shelf'; there are zone, block, rack, nvlink_domain, node",
        ),
        (
            "{at: 0, submit: {name: a, within: {rack: always}}}",
            "scene.yaml:6: steps[0].submit.within.rack must be one of required, preferred, not 'always'",
        ),
        (
            "{at: 0, submit: {name: a, affinity: {by: rack}}}",
            "scene.yaml:6: steps[0].submit.affinity needs the labels of the other jobs in labels",
        ),
        (
            "{at: 0, submit: {name: a, groups: [{name: g, within: {rack: required}}]}}",
            "scene.yaml:6: steps[0].submit.groups[0].within is unknown: a group knows",
        ),
        (
            "{at: 0, submit: {name: a, kind: batch, replicas: 2}}",
            "scene.yaml:6: steps[0].submit.replicas is for services: this job is of kind 'batch'",
        ),
        (
            "{at: 0, submit: {name: a, elastic: 2}}",
            "scene.yaml:6: steps[0].submit.elastic",
        ),
        (
            "{at: 0, submit: {name: a, queue: red}}",
            "scene.yaml:6: steps[0].submit.queue names the queue 'red', which does not exist; there are default",
        ),
        (
            "{at: 0, submit: {name: a, groups: [{name: g}], gpus: 1}}",
            "scene.yaml:6: steps[0].submit.gpus must stand in the groups",
        ),
        ("{at: 0, submit: {name: A}}", "scene.yaml:6: steps[0].submit.name is no name: 'A'"),
        ("{at: 0, submit: {gpus: 1}}", "scene.yaml:6: steps[0].submit has a job without a name"),
        ("{at: 0, submit: {name: a, name: b}}", "scene.yaml:6: steps[0].submit.name stands twice"),
        (
            "{at: 0, submit: {name: a, array: {count: 2, every: 1}}}",
            "scene.yaml:6: steps[0].submit.array.every is unknown: an array knows count, at_once",
        ),
        ("{at: 0, submit: {name: a, after_ok: b}}", "scene.yaml:6: steps[0].submit.after_ok names the job 'b', which is never"),
        (
            "{at: 0, submit: {name: a, after: a/1}}",
            "scene.yaml:6: steps[0].submit.after must name jobs, not elements: 'a/1'",
        ),
        (
            "{at: 0, resize: {job: a}}",
            "scene.yaml:6: steps[0].resize has a change of size without count",
        ),
        ("{at: 0, reserve: {name: r}}", "scene.yaml:6: steps[0].reserve has a reservation without from"),
        (
            "{at: 0, reserve: {name: r, from: 1, until: 2}}",
            "scene.yaml:6: steps[0].reserve needs either nodes, or gpus (and count)",
        ),
        ("{at: 0, reserve: {name: r, from: 1, until: 1, gpus: 1}}", "scene.yaml:6: steps[0].reserve.until must be after from"),
        (
            "{at: 0, reserve: {name: r, from: 1, until: 2, gpus: 1, for: red}}",
            "scene.yaml:6: steps[0].reserve.for names the queue 'red', which does not exist; there are default",
        ),
        (
            "{at: 0, reserve: {name: r, from: 1, until: 20, gpus: 1, every: 10}}",
            "scene.yaml:6: steps[0].reserve.every a window would not be over when the next begins",
        ),
        (
            "{at: 0, reserve: {name: r, from: 1, until: 2, gpus: 1, every: {daily: '02:00', start: 2026-03-28}}}",
            "scene.yaml:6: steps[0].reserve.every needs a zone",
        ),
        (
            "{at: 0, reserve: {name: r, from: 1, until: 2, gpus: 1, every: {daily: '02:00', start: 2026-03-28, zone: Mars}}}",
            "scene.yaml:6: steps[0].reserve.every there is no time zone 'Mars' in tzdata ",
        ),
        ("{at: 0, explode: n1}", "scene.yaml:6: steps[0].explode is unknown: a step knows at, shuffle, expect, never, submit"),
        (
            "{at: 0, policy: {backfill: {n: 1}}}",
            "scene.yaml:6: steps[0].policy.backfill.n is unknown: backfill knows reservations",
        ),
        ("{at: 0, policy: {backfill: {reservations: 0}}}", "scene.yaml:6: steps[0].policy cannot be set: "),
        ("{at: 0, policy: {horizon: soon}}", "scene.yaml:6: steps[0].policy.horizon must be seconds"),
        ("{at: 0, policy: {silent_afer: 60}}", "scene.yaml:6: steps[0].policy.silent_afer is unknown"),
        ("{at: 0, cancel: b}", "scene.yaml:6: steps[0].cancel names the job 'b', which is never submitted"),
        ("{at: 0, drain: n4}", "scene.yaml:6: steps[0].drain names the node 'n4', which never exists"),
        ("{at: 0, drain: 'n[3-1]'}", "scene.yaml:6: steps[0].drain is no name: the range [3-1] runs backwards"),
        ("{at: 0, cancel: 1 of a}", "scene.yaml:6: steps[0].cancel must say exactly which, not '1 of a'"),
        (
            "{at: 0, expect: {running: '4 of n[1-3]'}}",
            "scene.yaml:6: steps[0].expect.running names the job 'n1', which is never submitted",
        ),
        ("{at: 0, expect: {running: '2 of a'}}", "scene.yaml:6: steps[0].expect.running asks for 2 of 1: '2 of a'"),
        (
            "{at: 0, policy: {filters: [nothing]}}",
            "scene.yaml:6: steps[0].policy names a plugin that is not there: policy.filters: 'nothing'",
        ),
        ("{at: 0, expect: {runing: a}}", "scene.yaml:6: steps[0].expect.runing is unknown: an expectation knows running"),
        (
            "{at: 0, expect: {planned: {a: {}}}}",
            "scene.yaml:6: steps[0].expect.planned.a needs at or by, or is one of beyond_horizon",
        ),
        ("{at: 0, expect: {planned: {a: soon}}}", "scene.yaml:6: steps[0].expect.planned.a must be one of beyond_horizon"),
        ("{at: 0, expect: {queue: {red: {gpus: 1}}}}", "scene.yaml:6: steps[0].expect.queue.red is no queue; there are default"),
        ("{at: 0, expect: {user: {v: {gpus: 1}}}}", "scene.yaml:6: steps[0].expect.user.v is no user of a job: 'v'"),
        (
            "{at: 0, expect: {running: a/1}}",
            "scene.yaml:6: steps[0].expect.running names 'a/1', but 'a' has 1 instances, numbered from 0",
        ),
        ("{at: 0, expect: {node: {n1: down}}}", "scene.yaml:6: steps[0].expect.node.n1 must be one of ready, silent, lost"),
        (
            "{at: 0, expect: {preempted_count: {at_leat: 1}}}",
            "scene.yaml:6: steps[0].expect.preempted_count.at_leat is unknown: a number knows at_least, at_most",
        ),
        (
            "{at: 0, expect: {same_devices_as_at: {a: 99}}}",
            "scene.yaml:6: steps[0].expect.same_devices_as_at.a is a time after the last step",
        ),
        (
            "{at: 0, queue: {name: red, parent: gray}}",
            "scene.yaml:6: steps[0].queue.parent names the queue 'gray', which does not exist",
        ),
        (
            "{at: 0, queue: {name: red, guarantee: {jobs: 1}}}",
            "scene.yaml:6: steps[0].queue.guarantee.jobs is unknown: amounts are gpus, gpus/MODEL, cpu, memory",
        ),
        (
            "{at: 0, queue: {name: red, guarantee: {gpus: 5}, limit: {gpus: 4}}}",
            "scene.yaml:6: steps[0].queue cannot be set: guarantee.gpu_milli is 5000, more than limit.gpu_milli, which is 4000",
        ),
        ("{at: 0, remove_queue: red}", "scene.yaml:6: steps[0].remove_queue names the queue 'red', which does not exist"),
        ("{at: -1, cordon: n1}", "scene.yaml:6: steps[0].at must be seconds from 0 in whole microseconds, not '-1'"),
        ("{at: soon, cordon: n1}", "scene.yaml:6: steps[0].at must be seconds, not 'soon'"),
        ("{at: 0}", "scene.yaml:6: steps[0] is a step in which nothing happens"),
        ("{cordon: n1}", "scene.yaml:6: steps[0] needs the time in at"),
        ("{at: 0, restart: false}", "scene.yaml:6: steps[0].restart can only be true"),
        ("{at: 0, fail_append: maybe}", "scene.yaml:6: steps[0].fail_append must be one of lost, landed, not 'maybe'"),
        (
            "{at: 0, reregister: {name: n1, order: [0, 0]}}",
            "scene.yaml:6: steps[0].reregister.order must hold each index from 0 once, not a list",
        ),
        (
            "{at: 0, add_nodes: [{name: n9, numa: 0}]}",
            "scene.yaml:6: steps[0].add_nodes[0].numa must be 1 to 64",
        ),
        ("{at: 0, expect: {same: {a: shelf}}}", "scene.yaml:6: steps[0].expect.same.a must be one of zone, block, rack"),
    ],
)
def test_an_error_names_its_place_and_key(step: str, message: str) -> None:
    said = wrong(HEAD + f"  - {step}\n" + TAIL + "  - {at: 0, submit: {name: a}}\n")
    assert said.startswith(message), said


def test_the_line_is_that_of_the_key_in_a_file_of_many_lines(tmp_path: Path) -> None:
    path = tmp_path / "G1.yaml"
    path.write_text(HEAD + "  - at: 0\n    submit:\n      name: a\n      gpus: 1\n      gpu_modle: H100\n" + TAIL)
    with pytest.raises(ScenarioError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}:10: steps[0].submit.gpu_modle is unknown: a job knows")


def test_a_queue_is_read_as_operators_say_it() -> None:
    read = scene(
        "{at: 0, queue: {name: red, guarantee: {gpus: 1.5, gpus/A100: 1, cpu: 2, memory: 1Gi}, limit: {gpus: 4, jobs: 3}, borrow: {gpus: 1}}}",
        "{at: 0, queue: {name: blue, parent: red, user_limit: {jobs: 1}, lend: {cpu: 1}, tier: 2, order: fair, preemption: subtree}}",
        "{at: 0, queue: {name: gray, max_time: 60, users: [ada, bob], default_priority: 3, protected_from: 9, weight: 0}}",
        "{at: 0, submit: {name: a, queue: blue}}",
    )
    red, blue, gray = [verb.args for step in read.steps for verb in step.verbs if verb.kind == "queue"]
    promised = Amounts(gpu_milli=1500, gpu_milli_by_model={"A100": 1000}, cpu_milli=2000, memory_mib=1024)
    assert red == QueueSet(queue="red", guarantee=promised, limit=Amounts(gpu_milli=4000, jobs=3), borrow=Amounts(gpu_milli=1000))
    assert (blue.parent, blue.user_limit, blue.lend) == ("red", Amounts(jobs=1), Amounts(cpu_milli=1000))
    assert (blue.tier, blue.order, blue.preemption) == (2, "fair", "subtree")
    assert (gray.max_time_us, gray.users, gray.default_priority, gray.protected_from) == (60_000_000, ("ada", "bob"), 3, 9)
    assert gray.weight == 0


@pytest.mark.parametrize(
    ("topology", "message"),
    [
        ("{rack: {r1: n2}}", "names the node 'n2', which the cluster does not have"),
        ("{rack: {r1: n1, r2: n1}}", "names 'n1', which is in the rack 'r1' already"),
        ("{shelf: {r1: n1}}", "shelf is unknown: a topology knows zone, block, rack, nvlink_domain"),
    ],
)
def test_the_topology_of_a_cluster_names_each_node_once_for_a_level(topology: str, message: str) -> None:
    assert message in wrong(f"name: x\ncluster: {{nodes: [{{name: n1}}], topology: {topology}}}\nsteps: []\n")


def test_a_file_that_expects_nothing_is_an_error() -> None:
    assert "expect nothing" in wrong(HEAD + "  - {at: 0, submit: {name: a}}\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "scene.yaml:1: file is empty"),
        ("name: [", "scene.yaml:"),
        ("- a\n", "scene.yaml:1: file must be a mapping (a scene), not a list"),
        ("name: a\nname: b\n", "scene.yaml:2: name stands twice"),
        ("name: a\nstpes: []\n", "scene.yaml:2: stpes is unknown: a scene knows name, about, cluster, queues, policy, steps"),
        (
            "name: a\ncluster: {nodes: [{name: n, gpus: 1}, {name: n}]}\nsteps: []\n",
            "scene.yaml:2: cluster.nodes[1] has the node 'n' twice",
        ),
    ],
)
def test_what_is_no_scene_is_said_in_one_sentence(text: str, message: str) -> None:
    said = wrong(text)
    assert said.startswith(message), said
    assert "\n" not in said


def test_amounts_beyond_any_bound_are_left_to_the_scheduler() -> None:
    steps = scene(
        "{at: 0, submit: {name: a, gpus: -1, count: 0, priority: 99999999999999999999, cpu: 4611686018427387904}}"
    ).steps
    group = steps[0].verbs[0].args[0].request["groups"][0]
    assert (group["gpus"], group["count"], group["cpu_milli"]) == (-1, 0, 4611686018427387904000)
