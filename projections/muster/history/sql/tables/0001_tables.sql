-- The tables of one build of the history, in a schema of its own: the search path says which.
--
-- Each row follows from the log alone and has its whole content (muster.history.rows, which says what stands in each column and
-- is told to PostgreSQL by the comments on the views). One transaction writes the rows of some cycles and moves the position.

create table migrations (
    number integer primary key,
    name text not null,
    applied_at timestamptz not null default now()
);

create table positions (
    cell text collate "C" primary key,
    number bigint not null,
    digest text not null,
    term bigint not null,
    position bigint not null
);

create table checkpoints (
    cell text collate "C" primary key,
    number bigint not null,
    data bytea not null
);

create table cycles (
    cell text collate "C" not null,
    number bigint not null,
    term bigint not null,
    at_us bigint not null,
    policy text collate "C" not null,
    inputs bigint not null,
    decisions bigint not null,
    digest text collate "C" not null,
    position bigint not null,
    size_bytes bigint not null,
    host text collate "C",
    build text collate "C",
    gap_us bigint,
    primary key (cell, number)
);

create table jobs (
    cell text collate "C" not null,
    job text collate "C" not null,
    name text collate "C" not null,
    user_name text collate "C" not null,
    queue text collate "C" not null,
    priority bigint not null,
    state text collate "C" not null,
    reason text collate "C" not null,
    instances bigint not null,
    pending bigint not null,
    running bigint not null,
    finished bigint not null,
    failed bigint not null,
    cancelled bigint not null,
    is_array boolean not null,
    tasks bigint not null,
    cpu_milli bigint not null,
    memory_mib bigint not null,
    gpu_milli bigint not null,
    gpu_memory_mib bigint not null,
    gpu_models jsonb not null,
    shape text collate "C" not null,
    preemptible boolean not null,
    max_retries bigint not null,
    time_limit_us bigint,
    labels jsonb not null,
    command jsonb not null,
    image text collate "C" not null,
    directory text collate "C" not null,
    submitted_us bigint,
    entered_us bigint not null,
    entered_cycle bigint not null,
    ended_us bigint,
    primary key (cell, job)
);

create table instances (
    cell text collate "C" not null,
    job text collate "C" not null,
    instance bigint not null,
    state text collate "C" not null,
    attempts bigint not null,
    retries bigint not null,
    not_before_us bigint,
    cancelling boolean not null,
    reason text collate "C" not null,
    code bigint not null,
    ended_us bigint,
    primary key (cell, job, instance)
);

create table attempts (
    cell text collate "C" not null,
    job text collate "C" not null,
    instance bigint not null,
    attempt bigint not null,
    phase text collate "C" not null,
    bound_us bigint not null,
    bound_cycle bigint not null,
    started_us bigint,
    ended_us bigint,
    tasks bigint not null,
    cpu_milli bigint not null,
    memory_mib bigint not null,
    gpu_milli bigint not null,
    stop_reason text collate "C" not null,
    stop_node text collate "C" not null,
    stop_code bigint not null,
    kill_at_us bigint,
    by_job text collate "C" not null,
    by_instance bigint,
    outcome text collate "C" not null,
    reason text collate "C" not null,
    code bigint not null,
    charged boolean not null,
    primary key (cell, job, instance, attempt)
);

create table placements (
    cell text collate "C" not null,
    job text collate "C" not null,
    instance bigint not null,
    attempt bigint not null,
    rank bigint not null,
    placed_cycle bigint not null,
    group_name text collate "C" not null,
    node text collate "C" not null,
    uid text collate "C" not null,
    phase text collate "C" not null,
    code bigint not null,
    cpu_milli bigint not null,
    memory_mib bigint not null,
    gpu_milli bigint not null,
    gpu_model text collate "C" not null,
    devices jsonb not null,
    placed_us bigint not null,
    released_us bigint,
    primary key (cell, job, instance, attempt, rank, placed_cycle)
);

create table nodes (
    cell text collate "C" not null,
    node text collate "C" not null,
    uid text collate "C" not null,
    row bigint not null,
    state text collate "C" not null,
    boot text collate "C" not null,
    boots bigint not null,
    cordoned boolean not null,
    drained boolean not null,
    fenced boolean not null,
    quarantined_until_us bigint,
    cpu_milli bigint not null,
    memory_mib bigint not null,
    disk_mib bigint not null,
    gpus bigint not null,
    zone text collate "C" not null,
    block text collate "C" not null,
    rack text collate "C" not null,
    nvlink_domain text collate "C" not null,
    labels jsonb not null,
    taints jsonb not null,
    registered_us bigint not null,
    changed_us bigint not null,
    primary key (cell, node, uid)
);

create table devices (
    cell text collate "C" not null,
    node text collate "C" not null,
    uid text collate "C" not null,
    device bigint not null,
    uuid text collate "C" not null,
    model text collate "C" not null,
    memory_mib bigint not null,
    numa bigint not null,
    island bigint not null,
    health text collate "C" not null,
    present boolean not null,
    in_foreign_use boolean not null,
    changed_us bigint not null,
    primary key (cell, node, uid, device)
);

create table shares (
    cell text collate "C" not null,
    queue text collate "C" not null,
    at_us bigint not null,
    pending bigint not null,
    running bigint not null,
    tasks bigint not null,
    cpu_milli bigint not null,
    memory_mib bigint not null,
    gpu_milli bigint not null,
    cluster_gpu_milli bigint not null,
    primary key (cell, queue, at_us)
);

create table decisions (
    cell text collate "C" not null,
    number bigint not null,
    place bigint not null,
    at_us bigint not null,
    kind text collate "C" not null,
    job text collate "C",
    instance bigint,
    attempt bigint,
    node text collate "C",
    queue text collate "C",
    shape text collate "C",
    code text collate "C",
    outcome text collate "C",
    exit_code bigint,
    by_job text collate "C",
    by_instance bigint,
    until_us bigint,
    size bigint,
    text text collate "C",
    primary key (cell, number, place)
);

-- What people ask for: who, where, when.
create index jobs_user on jobs (cell, user_name, entered_us);
create index jobs_queue on jobs (cell, queue, entered_us);
create index jobs_entered on jobs (cell, entered_us);
create index attempts_ended on attempts (cell, ended_us);
create index placements_node on placements (cell, node, placed_us);
create index placements_released on placements (cell, released_us);
create index decisions_job on decisions (cell, job, number) where job is not null;
create index decisions_shape on decisions (cell, queue, shape, number) where shape is not null;
