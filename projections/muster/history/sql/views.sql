-- The views that people query, of the build that the search path names. Run again when another build takes its place.
--
-- What the columns are is said by their comments, which are those of muster.history.rows. A column is only ever added at the end:
-- `create or replace view` keeps what people built upon these.

create or replace view history.cycles as select
    cell,
    number,
    term,
    at_us,
    policy,
    inputs,
    decisions,
    digest,
    position,
    size_bytes,
    host,
    build,
    gap_us,
    timestamptz 'epoch' + at_us * interval '1 microsecond' as happened_at
from cycles;

comment on view history.cycles is
    'One admitted record of the log.';
comment on column history.cycles.number is
    'From 1, without a gap.';
comment on column history.cycles.at_us is
    'Log time.';
comment on column history.cycles.policy is
    'Name and version of the policy that decided.';
comment on column history.cycles.inputs is
    'How many inputs it has.';
comment on column history.cycles.digest is
    'BLAKE2b-256 of the record, in hexadecimal.';
comment on column history.cycles.position is
    'Where the record stands in its log: the engine''s own count.';
comment on column history.cycles.size_bytes is
    'The record''s size.';
comment on column history.cycles.host is
    'Who began to lead, where the record starts a term.';
comment on column history.cycles.build is
    'With host: of which build.';
comment on column history.cycles.gap_us is
    'With host: for how long nobody led.';

create or replace view history.jobs as select
    cell,
    job,
    name,
    user_name,
    queue,
    priority,
    state,
    reason,
    instances,
    pending,
    running,
    finished,
    failed,
    cancelled,
    is_array,
    tasks,
    cpu_milli,
    memory_mib,
    gpu_milli,
    gpu_memory_mib,
    gpu_models,
    shape,
    preemptible,
    max_retries,
    time_limit_us,
    labels,
    command,
    image,
    directory,
    submitted_us,
    entered_us,
    entered_cycle,
    ended_us,
    timestamptz 'epoch' + submitted_us * interval '1 microsecond' as submitted_at,
    timestamptz 'epoch' + entered_us * interval '1 microsecond' as entered_at,
    timestamptz 'epoch' + ended_us * interval '1 microsecond' as ended_at
from jobs;

comment on view history.jobs is
    'What was submitted, and what has become of it.';
comment on column history.jobs.priority is
    'As it is now.';
comment on column history.jobs.state is
    'pending (nothing of it holds a place), running (something does); once all has ended: finished, failed (an instance failed), cancelled (one was cancelled, none failed), rejected.';
comment on column history.jobs.reason is
    'Why it was rejected; else empty.';
comment on column history.jobs.pending is
    'How many of its instances wait.';
comment on column history.jobs.running is
    'How many of its instances hold places: starting, running, stopping.';
comment on column history.jobs.is_array is
    'Whether it is an array, also one of a single element.';
comment on column history.jobs.tasks is
    'Of one instance, as are the next four.';
comment on column history.jobs.gpu_milli is
    'Whole devices and shares; not what is asked for as memory of a device.';
comment on column history.jobs.gpu_memory_mib is
    'Asked for as memory of shared devices.';
comment on column history.jobs.gpu_models is
    'A list: every model that a group names.';
comment on column history.jobs.shape is
    'What makes jobs equal for placement: joins with decisions.shape, whose code says why the shape waits.';
comment on column history.jobs.labels is
    'An object of strings.';
comment on column history.jobs.command is
    'A list of strings; after 16,384 characters it is cut, and ends in an ellipsis. The environment is not kept: it may hold what is secret.';
comment on column history.jobs.submitted_us is
    'When its producer made it, by the producer''s clock; null where it does not say.';
comment on column history.jobs.entered_us is
    'When a cycle took it.';
comment on column history.jobs.ended_us is
    'When its last instance ended.';

create or replace view history.instances as select
    cell,
    job,
    instance,
    state,
    attempts,
    retries,
    not_before_us,
    cancelling,
    reason,
    code,
    ended_us,
    timestamptz 'epoch' + not_before_us * interval '1 microsecond' as not_before_at,
    timestamptz 'epoch' + ended_us * interval '1 microsecond' as ended_at
from instances;

comment on view history.instances is
    'What is bound whole or not at all: a job''s only instance, or one element of an array.';
comment on column history.instances.state is
    'pending, starting, running, stopping; finished, failed, cancelled, rejected.';
comment on column history.instances.attempts is
    'Bindings so far.';
comment on column history.instances.retries is
    'Attempts that counted against jobs.max_retries.';
comment on column history.instances.not_before_us is
    'Not bound again before this instant, after a start that failed.';
comment on column history.instances.cancelling is
    'Somebody asked for its end.';
comment on column history.instances.reason is
    'Why it ended, or why its last attempt did.';
comment on column history.instances.code is
    'Exit code of what failed.';

create or replace view history.attempts as select
    cell,
    job,
    instance,
    attempt,
    phase,
    bound_us,
    bound_cycle,
    started_us,
    ended_us,
    tasks,
    cpu_milli,
    memory_mib,
    gpu_milli,
    stop_reason,
    stop_node,
    stop_code,
    kill_at_us,
    by_job,
    by_instance,
    outcome,
    reason,
    code,
    charged,
    timestamptz 'epoch' + bound_us * interval '1 microsecond' as bound_at,
    timestamptz 'epoch' + started_us * interval '1 microsecond' as started_at,
    timestamptz 'epoch' + ended_us * interval '1 microsecond' as ended_at,
    timestamptz 'epoch' + kill_at_us * interval '1 microsecond' as kill_at_at
from attempts;

comment on view history.attempts is
    'One binding of one instance.';
comment on column history.attempts.attempt is
    'From 1.';
comment on column history.attempts.phase is
    'prepare, run, stop, ended.';
comment on column history.attempts.started_us is
    'When every member was ready and all ran.';
comment on column history.attempts.ended_us is
    'When nothing was held any more and the engine said what comes of it.';
comment on column history.attempts.tasks is
    'Places that it was bound with, as are the next three.';
comment on column history.attempts.stop_reason is
    'Why it was told to stop: a reason of StopOrdered, or preempted; else empty.';
comment on column history.attempts.stop_node is
    'The node to blame, where one is.';
comment on column history.attempts.by_job is
    'For whom it was preempted.';
comment on column history.attempts.outcome is
    'pending (its instance waits again), finished, failed, cancelled; empty until it ended.';
comment on column history.attempts.reason is
    'Why it ended.';
comment on column history.attempts.charged is
    'Whether it counts against jobs.max_retries.';

create or replace view history.placements as select
    cell,
    job,
    instance,
    attempt,
    rank,
    placed_cycle,
    group_name,
    node,
    uid,
    phase,
    code,
    cpu_milli,
    memory_mib,
    gpu_milli,
    gpu_model,
    devices,
    placed_us,
    released_us,
    timestamptz 'epoch' + placed_us * interval '1 microsecond' as placed_at,
    timestamptz 'epoch' + released_us * interval '1 microsecond' as released_at
from placements;

comment on view history.placements is
    'One task of an attempt on one node: it holds its place from placed_us to released_us. GPU-hours are the sum of gpu_milli * (released_us - placed_us), with the present for those that still hold.';
comment on column history.placements.placed_cycle is
    'The cycle that placed it: the attempt''s, or a later one where it took the place of a lost member.';
comment on column history.placements.uid is
    'Of the node.';
comment on column history.placements.phase is
    'preparing, ready, running, leaving (told to go alone); exited, lost.';
comment on column history.placements.code is
    'Exit code; 0 where it ended well or nobody knows.';
comment on column history.placements.gpu_milli is
    'Held of all its devices together; a share in memory counts by the size of its device.';
comment on column history.placements.gpu_model is
    'Of its first device.';
comment on column history.placements.devices is
    'A list: the uuids of its devices.';

create or replace view history.nodes as select
    cell,
    node,
    uid,
    row,
    state,
    boot,
    boots,
    cordoned,
    drained,
    fenced,
    quarantined_until_us,
    cpu_milli,
    memory_mib,
    disk_mib,
    gpus,
    zone,
    block,
    rack,
    nvlink_domain,
    labels,
    taints,
    registered_us,
    changed_us,
    timestamptz 'epoch' + quarantined_until_us * interval '1 microsecond' as quarantined_until_at,
    timestamptz 'epoch' + registered_us * interval '1 microsecond' as registered_at,
    timestamptz 'epoch' + changed_us * interval '1 microsecond' as changed_at
from nodes;

comment on view history.nodes is
    'A node. One that comes back with another uid is another node.';
comment on column history.nodes.row is
    'The number by which the log names it.';
comment on column history.nodes.state is
    'heard, silent (no new work), lost (what ran there is over), removed.';
comment on column history.nodes.boots is
    'The how manieth boot of the machine; 0 where that is not known.';
comment on column history.nodes.gpus is
    'Devices that are there now.';
comment on column history.nodes.labels is
    'An object of strings.';
comment on column history.nodes.taints is
    'A list of objects: key, value, effect.';
comment on column history.nodes.changed_us is
    'When state last changed.';

create or replace view history.devices as select
    cell,
    node,
    uid,
    device,
    uuid,
    model,
    memory_mib,
    numa,
    island,
    health,
    present,
    in_foreign_use,
    changed_us,
    timestamptz 'epoch' + changed_us * interval '1 microsecond' as changed_at
from devices;

comment on view history.devices is
    'A device of a node.';
comment on column history.devices.uid is
    'Of the node.';
comment on column history.devices.device is
    'Its index on the node, which never means another device.';
comment on column history.devices.island is
    'Devices of one island reach each other at full speed.';
comment on column history.devices.health is
    'healthy, degraded, failed.';
comment on column history.devices.present is
    'Whether the node, if it is there, still names it.';
comment on column history.devices.in_foreign_use is
    'Whether something that Muster did not start uses it.';
comment on column history.devices.changed_us is
    'When health or present last changed, or it was first named.';

create or replace view history.shares as select
    cell,
    queue,
    at_us,
    pending,
    running,
    tasks,
    cpu_milli,
    memory_mib,
    gpu_milli,
    cluster_gpu_milli,
    timestamptz 'epoch' + at_us * interval '1 microsecond' as happened_at
from shares;

comment on view history.shares is
    'What a queue held at the end of a minute of log time. A minute without a row in any queue ended as the one before.';
comment on column history.shares.at_us is
    'A multiple of a minute.';
comment on column history.shares.pending is
    'Instances that waited.';
comment on column history.shares.running is
    'Instances that held places.';
comment on column history.shares.cluster_gpu_milli is
    'All devices of all nodes that were there, whatever their health: the share is gpu_milli / cluster_gpu_milli.';

create or replace view history.decisions as select
    cell,
    number,
    place,
    at_us,
    kind,
    job,
    instance,
    attempt,
    node,
    queue,
    shape,
    code,
    outcome,
    exit_code,
    by_job,
    by_instance,
    until_us,
    size,
    text,
    timestamptz 'epoch' + at_us * interval '1 microsecond' as happened_at,
    timestamptz 'epoch' + until_us * interval '1 microsecond' as until_at
from decisions;

comment on view history.decisions is
    'One decision. What its kind does not have is null; the kinds are those of muster.events.decisions.';
comment on column history.decisions.number is
    'The cycle.';
comment on column history.decisions.place is
    'Its place among the cycle''s decisions, from 0.';
comment on column history.decisions.node is
    'The node it is about, or the one to blame.';
comment on column history.decisions.code is
    'What it says in one word: the leading reason of a shape that waits (ShapeDeferred, empty when it waits no more), why something was told to stop or ended.';
comment on column history.decisions.outcome is
    'What comes of the instance: pending, finished, failed, cancelled.';
comment on column history.decisions.by_job is
    'For whom, where somebody gives way.';
comment on column history.decisions.until_us is
    'Until when: the kill, the end of a nomination, of a quarantine, of a back-off, of a degraded gang''s grace.';
comment on column history.decisions.size is
    'How many places are bound or kept, or how many jobs leave the state.';
comment on column history.decisions.text is
    'What it says in a sentence: why a job was rejected.';

create or replace view history.positions as select
    cell,
    number,
    digest,
    term,
    position
from positions;

comment on view history.positions is
    'How far the history goes, for each cell: the last admitted record whose rows are here.';
comment on column history.positions.number is
    'Of its cycle.';
comment on column history.positions.digest is
    'Of the record: BLAKE2b-256 in hexadecimal.';
comment on column history.positions.position is
    'Where it stands in its log; on Kafka its offset plus one.';
