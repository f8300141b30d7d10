-- Connections, server facts and the table that says which migrations were applied.

-- name: session
-- A generic plan is right for lookups by key, and planning costs more than running them.
-- Each statement sees what was committed before it began, and the newest version of a row that it waited for.
SELECT
    set_config('default_transaction_isolation', 'read committed', false),
    set_config('search_path', 'pg_catalog', false),
    set_config('statement_timeout', %(statement_timeout_ms)s::text, false),
    set_config('lock_timeout', %(lock_timeout_ms)s::text, false),
    set_config('plan_cache_mode', 'force_generic_plan', false),
    set_config('jit', 'off', false)

-- name: isolation
SELECT current_setting('default_transaction_isolation')

-- name: server
SELECT
    current_setting('server_version'), current_setting('server_encoding'), current_setting('transaction_read_only')::boolean,
    current_setting('synchronous_commit'), current_setting('fsync'), current_database()::text

-- name: has_migrations
-- Asked of the catalogue's tables, not of to_regclass: its cache may be older than a lock we waited for.
SELECT EXISTS (
    SELECT FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    WHERE n.nspname = %(schema)s AND c.relname = 'migrations'
)

-- name: applied
SELECT coalesce(max(version), 0)::bigint FROM antiphon.migrations

-- name: has_schema
SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace AS n WHERE n.nspname = %(schema)s)

-- name: create_schema
CREATE SCHEMA antiphon

-- name: create_migrations
CREATE TABLE IF NOT EXISTS antiphon.migrations (
    version         integer PRIMARY KEY,
    name            text NOT NULL,
    applied_at      timestamptz NOT NULL DEFAULT clock_timestamp()
)

-- name: note_migration
INSERT INTO antiphon.migrations (version, name) VALUES (%(version)s, %(name)s)

-- name: now
SELECT clock_timestamp()::text
