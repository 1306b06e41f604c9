"""What the verbs of a step do to the world of a scene."""

import json
from collections.abc import Callable
from typing import Any

import msgspec

from muster.events.base import Event
from muster.events.codec import encode_entry
from muster.events.jobs import JobCancelRequested, JobCheckpointed, JobReprioritised
from muster.events.levels import TaskReport
from muster.events.nodes import NodeRemoved
from muster.events.operations import LeaseExtended, NodeCordoned, NodeDrained, NodeFenced, NodeUncordoned
from muster.events.queues import QueueRemoved, QueueSet
from muster.simulator.agents import Behaviour
from muster.simulator.scenario.fields import JobScene, NodeScene, with_changes
from muster.simulator.scenario.format import Verb
from muster.simulator.scenario.names import split_unit
from muster.simulator.scenario.reserving import ReserveScene, reserve, unreserve
from muster.simulator.scenario.world import JOBS, OPERATIONS, START_US, Outgoing, SceneFailure, World


def act(world: World, verb: Verb, previous: list[Outgoing]) -> None:
    """Do it. What it sends waits in the outbox; `previous` is what the step before sent.

    Raises:
        SceneFailure: it cannot be done in this world.
    """
    if verb.kind == "repeat_last":
        for _ in range(verb.args):
            world.outbox.extend(previous)
        return
    _ACTIONS[verb.kind](world, verb.args)


def _submit(world: World, jobs: list[JobScene]) -> None:
    for scene in jobs:
        earlier = world.newest(scene.name)
        if earlier is not None and earlier in world.state.jobs and world.state.jobs[earlier].open:
            raise SceneFailure(f"the job {scene.name} to have ended before it is submitted again", "it has not")
        job = world.promised.pop(scene.name, "") or _job_id(world)
        world.jobs.setdefault(scene.name, []).append(job)
        world.scenes[job] = scene
        world.behaviours[job] = _behaviour(scene)
        request = scene.request
        if "deadline_us" in request:
            request = request | {"deadline_us": START_US + request["deadline_us"]}
        if scene.after:
            request = {**request, "after": [{"job": _awaited(world, name), "when": when} for name, when in scene.after]}
        body = {
            "job": job,
            "name": scene.name,
            "user": scene.user,
            "queue": scene.queue,
            "submitted_us": START_US + world.now_us,
            "request": request,
        }
        world.send(JOBS, b'["JobSubmitted",1,' + json.dumps(body, separators=(",", ":")).encode() + b"]", job)


def _revise(world: World, scene: JobScene) -> None:
    job, _ = _of(world, scene.name)
    world.scenes[job] = scene
    world.behaviours[job] = _behaviour(scene)
    body = {"job": job, "request": scene.request}
    world.send(JOBS, b'["JobRevised",1,' + json.dumps(body, separators=(",", ":")).encode() + b"]", job)


def _scale(world: World, args: tuple[str, int]) -> None:
    job, _ = _of(world, args[0])
    body = {"job": job, "replicas": args[1]}
    world.send(JOBS, b'["JobScaleRequested",1,' + json.dumps(body, separators=(",", ":")).encode() + b"]", job)


def _metric(world: World, args: tuple[str, int]) -> None:
    job, _ = _of(world, args[0])
    body = {"job": job, "value_milli": args[1]}
    world.send(JOBS, b'["JobMetricReported",1,' + json.dumps(body, separators=(",", ":")).encode() + b"]", job)


def _behaviour(scene: JobScene) -> Behaviour:
    fails = scene.start_fails
    return Behaviour(
        ready_takes_us=scene.ready_takes_us,
        runtime_us=scene.runtime_us,
        stop_takes_us=scene.stop_takes_us,
        fails_to_start_on=fails.on if fails is not None else (),
        start_failures=fails.times if fails is not None else None,
    )


def _job_id(world: World) -> str:
    """A UUIDv7 of the virtual time and a counter."""
    ms = (START_US + world.now_us) // 1000
    number = len(world.scenes) + len(world.promised) + 1
    return f"{ms >> 16:08x}-{ms & 0xFFFF:04x}-7000-8000-{number:012x}"


def _awaited(world: World, name: str) -> str:
    """The id of the newest job of this name, or the one that the first will have."""
    known = world.newest(name)
    if known is None and name not in world.promised:
        world.promised[name] = _job_id(world)
    return known or world.promised[name]


def _of(world: World, name: str) -> tuple[str, int | None]:
    """The job's id and the instance that a name means.

    Raises:
        SceneFailure: it was not submitted yet.
    """
    base, index = split_unit(name)
    job = world.newest(base)
    if job is None:
        raise SceneFailure(f"the job {base} to be submitted by now", "it is not")
    return job, index


def _cancel(world: World, names: list[str]) -> None:
    for name in names:
        job, index = _of(world, name)
        world.send(JOBS, encode_entry(JobCancelRequested(job=job, instance=index)), job)


def _finish(world: World, names: list[str]) -> None:
    for name in names:
        running = [pair for pair in world.fleet.running(*_of(world, name)) if pair[1].phase == "running"]
        if not running:
            raise SceneFailure(f"{name} to run when it finishes", "none of its tasks runs")
        for agent, task in running:
            agent.exit(task, 0)


def _fail(world: World, args: tuple[str, int, str]) -> None:
    name, rank, reason = args
    found = [pair for pair in world.fleet.running(*_of(world, name)) if pair[1].key[3] == rank]
    if len(found) != 1:
        raise SceneFailure(f"{name} to have one task of rank {rank} when it fails", f"there are {len(found)}")
    agent, task = found[0]
    agent.exit(task, 1, reason=reason)


def _reprioritise(world: World, args: tuple[str, int]) -> None:
    job, _ = _of(world, args[0])
    body = {"job": job, "priority": args[1]}
    data = b'["JobReprioritised",1,' + json.dumps(body, separators=(",", ":")).encode() + b"]"
    world.send(JOBS, encode_entry(JobReprioritised(job=job, priority=args[1])) if abs(args[1]) < 2**53 else data, job)


def _resize(world: World, args: tuple[str, int]) -> None:
    job, _ = _of(world, args[0])
    body = {"job": job, "count": args[1]}
    world.send(JOBS, b'["JobResizeRequested",1,' + json.dumps(body, separators=(",", ":")).encode() + b"]", job)


def _checkpoint(world: World, names: list[str]) -> None:
    for name in names:
        job, index = _of(world, name)
        world.send(JOBS, encode_entry(JobCheckpointed(job=job, instance=index)), job)


def _add_nodes(world: World, nodes: list[NodeScene]) -> None:
    for scene in nodes:
        if scene.name in world.fleet.agents:
            raise SceneFailure(f"the node {scene.name} to be gone before it is added", "it is there")
        world.add_node(scene)


def _remove_nodes(world: World, names: list[str]) -> None:
    for name in names:
        agent = world.remove_node(name)
        world.send(OPERATIONS, encode_entry(NodeRemoved(node=name, uid=agent.uid)))


def _update_node(world: World, args: tuple[str, dict[str, Any]]) -> None:
    name, changes = args
    world.describe(world.agent(name), msgspec.structs.replace(world.nodes[name], **changes))


def _reregister(world: World, args: tuple[str, list[int]]) -> None:
    name, order = args
    agent = world.agent(name)
    if len(order) != len(agent.present):
        raise SceneFailure(f"the order of {name} to name its {len(agent.present)} devices", f"it names {len(order)}")
    agent.order = [agent.present[place] for place in order]
    agent.announce = agent.changed = True


def _silence(world: World, names: list[str]) -> None:
    for name in names:
        agent = world.agent(name)
        world.report(agent)  # the last that is heard
        world.fleet.silence(agent, world.policy.lease_us)


def _return(world: World, names: list[str]) -> None:
    for name in names:
        world.come_back(world.agent(name))


def _fence(world: World, names: list[str]) -> None:
    for name in names:
        world.fleet.fence(world.agent(name))
        world.send(OPERATIONS, encode_entry(NodeFenced(node=name)))


def _operate(kind: type[Event]) -> Callable[[World, list[str]], None]:
    def operate(world: World, names: list[str]) -> None:
        for name in names:
            world.send(OPERATIONS, encode_entry(kind(node=name)))

    return operate


def _device(world: World, args: tuple[str, int, Any]) -> None:
    name, index, health = args
    agent = world.agent(name)
    if index >= len(agent.devices):
        raise SceneFailure(f"{name} to have a device {index}", f"it has {len(agent.devices)}")
    for each in agent.devices_of(index):
        agent.health[agent.devices[each].uuid] = health
    agent.changed = True


def _foreign(world: World, args: tuple[str, int, int, int]) -> None:
    name, cpu_milli, memory_mib, gpus = args
    agent = world.agent(name)
    if gpus > len(agent.present):
        raise SceneFailure(f"{name} to have {gpus} GPUs for something else to use", f"it has {len(agent.present)}")
    agent.use_foreign(cpu_milli, memory_mib, gpus)


def _policy(world: World, changes: dict[str, Any]) -> None:
    world.set_policy(with_changes(world.policy, changes))


def _queue(world: World, event: QueueSet) -> None:
    world.send(OPERATIONS, encode_entry(event))


def _remove_queue(world: World, name: str) -> None:
    world.send(OPERATIONS, encode_entry(QueueRemoved(queue=name)))


def _reserve(world: World, scene: ReserveScene) -> None:
    reserve(world, scene, _awaited(world, scene.job) if scene.job else "")


def _licences(world: World, licences: dict[str, int]) -> None:
    world.set_licences(licences)


def _late(world: World, args: tuple[str, int, int, str, int]) -> None:
    name, attempt, rank, report, code = args
    job, index = _of(world, name)
    placement = world.book.places.get((job, index or 0, attempt), {}).get(rank)
    if placement is None:
        raise SceneFailure(f"{name} to have had a task of rank {rank} in attempt {attempt}", "it had none")
    uid = world.uids[job, index or 0, attempt, rank]
    word = TaskReport(
        job=job,
        instance=index or 0,
        attempt=attempt,
        rank=rank,
        phase={"ready": "ready", "started": "running", "exited": "exited"}[report],  # type: ignore[arg-type]
        code=code,
    )
    for agent in world.fleet.agents.values():
        if agent.uid == uid:
            world.send(world.source(agent.name), agent.report(world.now_us, word), agent.name)
            return
    gone = world.gone[uid]
    world.send(world.source(gone.name), gone.report(world.now_us, word), gone.name)


def _readable(readable: bool) -> Callable[[World, list[str]], None]:
    def change(world: World, names: list[str]) -> None:
        for name in names:
            world.set_readable(name, readable)

    return change


def _lease_extend(world: World, micros: int) -> None:
    world.send(OPERATIONS, encode_entry(LeaseExtended(until_us=world.log_now_us + micros)))


def _clock(world: World, micros: int) -> None:
    world.clock_us += micros


def _restart(world: World, args: Any) -> None:
    world.end_cycle()
    world.lead(gap_us=0)


def _takeover(world: World, args: Any) -> None:
    world.end_cycle()
    world.lead(gap_us=0, takeover=True)


def _restart_with_gap(world: World, micros: int) -> None:
    world.end_cycle()
    world.stop_leading(world.now_us + micros)


def _fail_append(world: World, how: str) -> None:
    world.fail_append = how


def _malformed(world: World, text: str) -> None:
    world.send(JOBS, text.encode())


_ACTIONS: dict[str, Callable[[World, Any], None]] = {
    "submit": _submit,
    "cancel": _cancel,
    "finish": _finish,
    "fail": _fail,
    "reprioritise": _reprioritise,
    "revise": _revise,
    "scale": _scale,
    "metric": _metric,
    "resize": _resize,
    "checkpoint": _checkpoint,
    "add_nodes": _add_nodes,
    "remove_nodes": _remove_nodes,
    "update_node": _update_node,
    "reregister": _reregister,
    "silence": _silence,
    "return": _return,
    "fence": _fence,
    "cordon": _operate(NodeCordoned),
    "uncordon": _operate(NodeUncordoned),
    "drain": _operate(NodeDrained),
    "device": _device,
    "foreign": _foreign,
    "policy": _policy,
    "queue": _queue,
    "remove_queue": _remove_queue,
    "licences": _licences,
    "reserve": _reserve,
    "unreserve": unreserve,
    "late": _late,
    "unreadable": _readable(False),
    "readable": _readable(True),
    "lease_extend": _lease_extend,
    "clock": _clock,
    "restart": _restart,
    "takeover": _takeover,
    "restart_with_gap": _restart_with_gap,
    "fail_append": _fail_append,
    "malformed": _malformed,
}
