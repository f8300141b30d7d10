-- Claims, run log and breakers. Tenant and workspace stand in every table (D31); times are milliseconds of the server's clock.

CREATE TABLE antiphon.claims (
    key             text COLLATE "C" PRIMARY KEY,
    tenant          text COLLATE "C" NOT NULL,
    workspace       text COLLATE "C" NOT NULL,
    tool            text COLLATE "C" NOT NULL,
    session         text COLLATE "C" NOT NULL,
    identity        text COLLATE "C" NOT NULL,
    idempotency_key text COLLATE "C" NOT NULL,
    owner           text COLLATE "C" NOT NULL,
    state           text COLLATE "C" NOT NULL,
    version         bigint NOT NULL,
    fence           bigint NOT NULL,
    op              bigint NOT NULL,                 -- which operation wrote the row: settles lost answers
    created_at_ms   bigint NOT NULL,
    updated_at_ms   bigint NOT NULL,
    expires_at_ms   bigint NOT NULL,
    ttl_ms          bigint NOT NULL,
    lock_until_ms   bigint,
    dispatched      boolean NOT NULL DEFAULT false,
    waited          boolean NOT NULL DEFAULT false,  -- somebody listens for the end of this claim
    v               smallint NOT NULL,
    request         bytea NOT NULL,                  -- JSON, byte for byte
    outcome         bytea,
    payload         bytea,
    -- Settling usually stays within the minute the claim would have expired in, so no index entry moves.
    expires_minute  bigint GENERATED ALWAYS AS (expires_at_ms / 60000) STORED
) WITH (fillfactor = 75, autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX claims_by_expiry ON antiphon.claims (expires_minute);
CREATE INDEX claims_by_tool ON antiphon.claims (tenant, tool);
CREATE INDEX claims_by_session ON antiphon.claims (tenant, session);

-- Earlier executions of an intent, kept for redeliveries of the calls that made them (D2).
CREATE TABLE antiphon.executions (
    key             text COLLATE "C" NOT NULL,
    tenant          text COLLATE "C" NOT NULL,
    workspace       text COLLATE "C" NOT NULL,
    tool            text COLLATE "C" NOT NULL,
    session         text COLLATE "C" NOT NULL,
    identity        text COLLATE "C" NOT NULL,
    idempotency_key text COLLATE "C" NOT NULL,
    owner           text COLLATE "C" NOT NULL,
    state           text COLLATE "C" NOT NULL,
    version         bigint NOT NULL,
    fence           bigint NOT NULL,
    op              bigint NOT NULL,
    created_at_ms   bigint NOT NULL,
    updated_at_ms   bigint NOT NULL,
    expires_at_ms   bigint NOT NULL,
    ttl_ms          bigint NOT NULL,
    lock_until_ms   bigint,
    dispatched      boolean NOT NULL,
    v               smallint NOT NULL,
    request         bytea NOT NULL,
    outcome         bytea,
    payload         bytea,
    PRIMARY KEY (key, fence)
);
CREATE INDEX executions_by_expiry ON antiphon.executions (expires_at_ms);

-- Which execution a call identity finds as its own: the one it made, or one whose result it shared.
CREATE TABLE antiphon.identities (
    key             text COLLATE "C" NOT NULL,
    identity        text COLLATE "C" NOT NULL,
    tenant          text COLLATE "C" NOT NULL,
    workspace       text COLLATE "C" NOT NULL,
    fence           bigint NOT NULL,
    expires_at_ms   bigint NOT NULL,
    PRIMARY KEY (key, identity)
);
CREATE INDEX identities_by_expiry ON antiphon.identities (expires_at_ms);

-- How far versions had come when records were forgotten: a key's version grows even if the server's clock goes back.
CREATE TABLE antiphon.floors (
    tenant          text COLLATE "C" NOT NULL,
    workspace       text COLLATE "C" NOT NULL,
    version         bigint NOT NULL,
    PRIMARY KEY (tenant, workspace)
);

-- The manifest is pushed out of line early: each step of a run rewrites the rest of its row.
CREATE TABLE antiphon.runs (
    id              text COLLATE "C" PRIMARY KEY,
    tenant          text COLLATE "C" NOT NULL,
    workspace       text COLLATE "C" NOT NULL,
    name            text COLLATE "C" NOT NULL DEFAULT '',
    status          text COLLATE "C" NOT NULL DEFAULT '',
    session         text COLLATE "C" NOT NULL DEFAULT '',
    started_at_ms   bigint NOT NULL DEFAULT 0,
    next_seq        bigint NOT NULL DEFAULT 0,
    deleting        boolean NOT NULL DEFAULT false,
    manifest        bytea
) WITH (fillfactor = 50, toast_tuple_target = 256, autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX runs_by_start ON antiphon.runs (tenant, started_at_ms DESC, id DESC);
CREATE INDEX runs_deleting ON antiphon.runs (id) WHERE deleting;

CREATE TABLE antiphon.events (
    run             text COLLATE "C" NOT NULL,
    seq             bigint NOT NULL,
    tenant          text COLLATE "C" NOT NULL,
    workspace       text COLLATE "C" NOT NULL,
    op              bigint NOT NULL,
    type            text COLLATE "C" NOT NULL,
    at_ms           bigint NOT NULL,
    body            bytea NOT NULL,
    PRIMARY KEY (run, seq)
);

CREATE TABLE antiphon.breakers (
    tenant          text COLLATE "C" NOT NULL,
    key             text COLLATE "C" NOT NULL,
    workspace       text COLLATE "C" NOT NULL DEFAULT 'default',
    state           text COLLATE "C" NOT NULL,
    epoch           bigint NOT NULL,
    until_ms        bigint NOT NULL,
    reason          text COLLATE "C" NOT NULL,
    updated_at_ms   bigint NOT NULL,
    tripped_by      text COLLATE "C" NOT NULL,
    PRIMARY KEY (tenant, key)
);
