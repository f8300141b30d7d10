-- The schema after all migrations, with the indexes that came later. A test compares it with a database that applied
-- them one by one.

CREATE TABLE meta (
    name TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- version_floor: no version up to this one is given again, also after its record is gone and the clock went back.
INSERT INTO meta (name, value) VALUES ('version_floor', 0);

-- catalogued: claims up to this id are in the index below.
INSERT INTO meta (name, value) VALUES ('catalogued', 0);

-- The current execution of each intent. A new claim on the same key is a new row, so the newest claim has the highest id.
CREATE TABLE claims (
    id INTEGER PRIMARY KEY,
    key TEXT NOT NULL,
    tenant TEXT NOT NULL,
    workspace TEXT NOT NULL,
    tool TEXT NOT NULL,
    session TEXT NOT NULL,
    identity TEXT NOT NULL,
    idempotency_key TEXT NOT NULL,
    state TEXT NOT NULL,
    version INTEGER NOT NULL,
    fence INTEGER NOT NULL,
    owner TEXT NOT NULL,
    created_at_ms INTEGER NOT NULL,
    updated_at_ms INTEGER NOT NULL,
    expires_at_ms INTEGER NOT NULL,
    lock_until_ms INTEGER NOT NULL,
    ttl_ms INTEGER NOT NULL,
    sweep_at_ms INTEGER NOT NULL,  -- when this row and all its history have expired
    history INTEGER NOT NULL,      -- whether executions may hold rows of this key
    dispatched INTEGER NOT NULL DEFAULT 0,
    request BLOB NOT NULL,
    outcome BLOB,
    payload BLOB,
    v INTEGER NOT NULL
) STRICT;

CREATE UNIQUE INDEX claims_by_key ON claims (key);

-- The index: what operators and the sweeper look claims up by. A call does not wait for it: whoever needs it first
-- enters the claims that are newer than it, each once. Its entries say where to look, the claims say what is true.

CREATE TABLE claim_places (
    tenant TEXT NOT NULL,
    kind TEXT NOT NULL,  -- tool or session
    value TEXT NOT NULL,
    id INTEGER NOT NULL,
    PRIMARY KEY (tenant, kind, value, id)
) STRICT, WITHOUT ROWID;

-- Claims that were not done when they were last looked at.
CREATE TABLE claim_open (
    id INTEGER PRIMARY KEY
) STRICT;

-- When to look whether a claim can go.
CREATE TABLE claim_expiry (
    at_ms INTEGER NOT NULL,
    id INTEGER NOT NULL,
    PRIMARY KEY (at_ms, id)
) STRICT, WITHOUT ROWID;

-- Earlier executions of an intent, and aliases of shared ones, by call identity (D2).
CREATE TABLE executions (
    key TEXT NOT NULL,
    identity TEXT NOT NULL,
    tenant TEXT NOT NULL,
    workspace TEXT NOT NULL,
    version INTEGER NOT NULL,
    expires_at_ms INTEGER NOT NULL,
    record BLOB NOT NULL,
    v INTEGER NOT NULL,
    PRIMARY KEY (key, identity)
) STRICT;

CREATE INDEX executions_by_expiry ON executions (expires_at_ms);
CREATE INDEX executions_of_calls ON executions (tenant, key) WHERE identity <> '';

-- A run may have events before it has a manifest. Numbers are never used twice.
CREATE TABLE runs (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    tenant TEXT,
    workspace TEXT,
    name TEXT,
    status TEXT,
    started_at_ms INTEGER,
    manifest BLOB
) STRICT;

CREATE INDEX runs_by_time ON runs (tenant, started_at_ms, id);
CREATE INDEX runs_by_status ON runs (tenant, status, started_at_ms, id);

-- The id of an event is its run's number in the upper 32 bits and its sequence number in the lower: a run's events lie
-- side by side, found without an index of their own. Tenant and workspace are those of the run.
CREATE TABLE events (
    id INTEGER PRIMARY KEY,
    type TEXT NOT NULL,
    at_ms INTEGER NOT NULL,
    body BLOB NOT NULL
) STRICT;

CREATE TABLE breakers (
    tenant TEXT NOT NULL,
    key TEXT NOT NULL,
    state TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    until_ms INTEGER NOT NULL,
    reason TEXT NOT NULL,
    updated_at_ms INTEGER NOT NULL,
    tripped_by TEXT NOT NULL,
    PRIMARY KEY (tenant, key)
) STRICT, WITHOUT ROWID;
