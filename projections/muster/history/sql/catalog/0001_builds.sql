-- The schema that people query. It holds views of one build of the history, and says which builds there are.
--
-- Run in one transaction by muster.history.schema, which also records it here. A file that was released is never changed: what is
-- to be otherwise is a further file.

create schema history;
comment on schema history is
    'The history of Muster: jobs, instances, attempts, placements, nodes, devices, queue shares, decisions, cycles. Views of the current build; instants are microseconds since 1970 by the log''s own time, and again as timestamps in columns named ..._at.';

create table history.migrations (
    number integer primary key,
    name text not null,
    applied_at timestamptz not null default now()
);
comment on table history.migrations is 'The files of sql/catalog that were applied to this schema.';

create table history.builds (
    schema text primary key,
    version integer not null,
    current boolean not null default false,
    made_at timestamptz not null default now()
);
comment on table history.builds is
    'The builds of the history: each in a schema of its own, made from the log alone. The views show the current one; muster history rebuild makes another beside it and switches.';
comment on column history.builds.schema is 'Its schema.';
comment on column history.builds.version is 'Of which version of the tables it is.';
comment on column history.builds.current is 'Whether the views show it.';
create unique index builds_current on history.builds (current) where current;
