-- name: claim
SELECT key, tool, idempotency_key, state, created_at_ms, updated_at_ms, expires_at_ms, ttl_ms, request, version, fence,
       tenant, workspace, owner, dispatched, outcome, payload, lock_until_ms, v, identity, history, sweep_at_ms, id, session
FROM claims WHERE key = ?;

-- name: execution
SELECT record, v FROM executions WHERE key = ? AND identity = ? AND expires_at_ms > ?;

-- name: execution_of_version
SELECT record, v FROM executions WHERE key = ? AND version = ? AND expires_at_ms > ?;

-- name: executions
-- Who shares an execution has a row of its own.
SELECT key, record, v FROM executions
WHERE tenant = ? AND (? = '' OR key = ?) AND expires_at_ms > ? AND identity <> ''
GROUP BY key, version;

-- name: settle_execution
UPDATE executions SET version = ?, record = ? WHERE key = ? AND version = ? AND identity <> '';

-- name: insert_claim
-- OR FAIL: a statement that writes one row has nothing to undo, so SQLite need not prepare for it.
INSERT OR FAIL INTO claims (key, tenant, workspace, tool, session, identity, idempotency_key, state, version, fence, owner,
                    created_at_ms, updated_at_ms, expires_at_ms, lock_until_ms, ttl_ms, sweep_at_ms, history, request,
                    outcome, v)
SELECT ?, ?, ?, ?, ?, ?, ?, 'inflight', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?
WHERE ? > (SELECT value FROM meta WHERE name = 'version_floor')
ON CONFLICT (key) DO NOTHING;

-- name: version_floor
SELECT value FROM meta WHERE name = 'version_floor';

-- name: delete_claim
DELETE FROM claims WHERE id = ?;

-- name: settle
UPDATE claims
SET state = ?, version = ?, updated_at_ms = ?, expires_at_ms = ?, ttl_ms = ?, dispatched = ?, outcome = ?, payload = ?,
    lock_until_ms = 0, sweep_at_ms = max(?, CASE WHEN history THEN sweep_at_ms ELSE 0 END)
WHERE key = ? AND version = ? AND (expires_at_ms > ? OR state = 'inflight');

-- name: renew
UPDATE claims
SET updated_at_ms = ?, lock_until_ms = ?, expires_at_ms = max(expires_at_ms, ?), sweep_at_ms = max(sweep_at_ms, ?)
WHERE key = ? AND version = ? AND state = 'inflight';

-- name: insert_execution
INSERT INTO executions (key, identity, tenant, workspace, version, expires_at_ms, record, v)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (key, identity) DO UPDATE
SET version = excluded.version, expires_at_ms = excluded.expires_at_ms, record = excluded.record, v = excluded.v;

-- name: pin
-- A mark lies among the executions, of a key that no claim has.
INSERT INTO executions (key, identity, tenant, workspace, version, expires_at_ms, record, v)
VALUES (?, '', ?, ?, ?, ?, x'', 0)
ON CONFLICT (key, identity) DO UPDATE
SET version = excluded.version, expires_at_ms = excluded.expires_at_ms WHERE expires_at_ms <= ?;

-- name: pinned
SELECT version FROM executions WHERE key = ? AND identity = '' AND expires_at_ms > ?;

-- name: delete_execution
DELETE FROM executions WHERE key = ? AND identity = ?;

-- name: delete_executions
DELETE FROM executions WHERE key = ?;

-- name: mark_history
UPDATE claims SET history = 1, sweep_at_ms = max(sweep_at_ms, ?) WHERE key = ?;

-- name: in_flight
SELECT 1 FROM claims WHERE key = ? AND version = ? AND state = 'inflight';

-- name: raise_floor
UPDATE meta SET value = max(value, ?) WHERE name = 'version_floor';

-- name: open_claim
INSERT OR IGNORE INTO claim_open (id) SELECT id FROM claims WHERE key = ?;

-- name: expire_claim
INSERT OR IGNORE INTO claim_expiry (at_ms, id) SELECT sweep_at_ms, id FROM claims WHERE key = ?;

-- name: newest_claim
SELECT coalesce(max(id), 0) FROM claims;

-- name: row_of
SELECT id FROM claims WHERE key = ? AND tenant = ? AND fence = ?;

-- name: indexed
SELECT value FROM meta WHERE name = 'catalogued';

-- name: set_indexed
UPDATE meta SET value = ? WHERE name = 'catalogued';

-- name: shrink_indexed
UPDATE meta SET value = (SELECT coalesce(max(id), 0) FROM claims)
WHERE name = 'catalogued' AND value > (SELECT coalesce(max(id), 0) FROM claims);

-- name: index_tools
INSERT OR IGNORE INTO claim_places (tenant, kind, value, id)
SELECT tenant, 'tool', tool, id FROM claims WHERE id > ? AND id <= ?;

-- name: index_sessions
INSERT OR IGNORE INTO claim_places (tenant, kind, value, id)
SELECT tenant, 'session', session, id FROM claims WHERE id > ? AND id <= ?;

-- name: index_open
INSERT OR IGNORE INTO claim_open (id) SELECT id FROM claims WHERE id > ? AND id <= ? AND state <> 'done';

-- name: index_expiry
INSERT OR IGNORE INTO claim_expiry (at_ms, id)
SELECT CASE WHEN state = 'inflight' THEN min(expires_at_ms, ?) ELSE sweep_at_ms END, id
FROM claims WHERE id > ? AND id <= ?;

-- name: delete_place
DELETE FROM claim_places WHERE tenant = ? AND kind = ? AND value = ? AND id = ?;

-- name: delete_open
DELETE FROM claim_open WHERE id = ?;

-- name: close_open
DELETE FROM claim_open WHERE id IN (
    SELECT o.id FROM claim_open AS o LEFT JOIN claims AS c ON c.id = o.id WHERE c.id IS NULL OR c.state = 'done'
);

-- name: due
SELECT e.at_ms, e.id, c.key, c.version, c.history, c.tenant, c.tool, c.session, c.state, c.sweep_at_ms,
       c.expires_at_ms, c.ttl_ms, c.expires_at_ms > max(c.created_at_ms + c.ttl_ms, c.lock_until_ms)
FROM claim_expiry AS e LEFT JOIN claims AS c ON c.id = e.id WHERE e.at_ms <= ? ORDER BY e.at_ms LIMIT ?;

-- name: spare
-- Nothing else lets a claim in flight expire later than both its TTL and its lease: that marks it.
UPDATE claims SET expires_at_ms = ?, sweep_at_ms = max(sweep_at_ms, ?) WHERE id = ?;

-- name: abandon
-- The row stays, as its history lives on; it counts as little as if it were gone.
UPDATE claims SET state = 'cancelled', expires_at_ms = 0, lock_until_ms = 0 WHERE id = ?;

-- name: insert_expiry
INSERT OR IGNORE INTO claim_expiry (at_ms, id) VALUES (?, ?);

-- name: delete_expiry
DELETE FROM claim_expiry WHERE at_ms = ? AND id = ?;

-- name: sweep_pins
DELETE FROM executions WHERE rowid IN (
    SELECT rowid FROM executions WHERE expires_at_ms <= ? AND identity = '' AND v = 0 ORDER BY expires_at_ms LIMIT ?
);

-- name: sweep_executions
DELETE FROM executions WHERE rowid IN (SELECT rowid FROM executions WHERE expires_at_ms <= ? ORDER BY expires_at_ms LIMIT ?);

-- name: tools
WITH RECURSIVE tools (tool) AS (
    SELECT min(value) FROM claim_places WHERE tenant = ? AND kind = 'tool'
    UNION ALL
    SELECT (SELECT min(value) FROM claim_places WHERE tenant = ? AND kind = 'tool' AND value > tools.tool)
    FROM tools WHERE tools.tool IS NOT NULL
)
SELECT tool FROM tools WHERE tool IS NOT NULL;

-- name: tenants
-- One step in the index for each.
WITH RECURSIVE tenants (tenant) AS (
    SELECT min(tenant) FROM claim_places
    UNION ALL
    SELECT (SELECT min(p.tenant) FROM claim_places AS p WHERE p.tenant > tenants.tenant)
    FROM tenants WHERE tenants.tenant IS NOT NULL
)
SELECT tenant FROM tenants WHERE tenant IS NOT NULL;

-- name: count_all
SELECT value, count(*) FROM claim_places WHERE tenant = ? AND kind = 'tool' GROUP BY value;

-- name: count_not_done
SELECT c.tool,
    CASE
        WHEN c.state = 'inflight' AND c.lock_until_ms <= ? THEN 'stale'
        WHEN c.state <> 'failed' OR NOT instr(c.outcome, CAST('"error":{"code":"outcome_unknown"' AS BLOB)) THEN c.state
        WHEN c.updated_at_ms <= ? - 86400000 THEN 'unknown_1d'
        WHEN c.updated_at_ms <= ? - 3600000 THEN 'unknown_1h'
        ELSE 'unknown'
    END,
    c.expires_at_ms <= ? AND c.state <> 'inflight', count(*)
FROM claim_open AS o CROSS JOIN claims AS c ON c.id = o.id
WHERE c.tenant = ? AND c.state <> 'done' AND c.id <= ? GROUP BY 1, 2, 3;

-- name: count_done_expired
SELECT c.tool, count(DISTINCT c.id) FROM claim_expiry AS e CROSS JOIN claims AS c ON c.id = e.id
WHERE e.at_ms <= ? AND c.expires_at_ms <= ? AND c.tenant = ? AND c.state = 'done' AND c.id <= ? GROUP BY c.tool;

-- name: open_run
INSERT INTO runs (id, tenant, workspace, name, status, started_at_ms, manifest) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE
SET tenant = excluded.tenant, workspace = excluded.workspace, name = excluded.name, status = excluded.status,
    started_at_ms = excluded.started_at_ms, manifest = excluded.manifest
WHERE runs.manifest IS NULL;

-- name: update_run
INSERT INTO runs (id, tenant, workspace, name, status, started_at_ms, manifest) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE
SET tenant = excluded.tenant, workspace = excluded.workspace, name = excluded.name, status = excluded.status,
    started_at_ms = excluded.started_at_ms, manifest = excluded.manifest;

-- name: name_run
INSERT INTO runs (id) VALUES (?) ON CONFLICT (id) DO NOTHING;

-- name: run_number
SELECT number FROM runs WHERE id = ?;

-- name: end_of_run
SELECT number, (SELECT max(id) FROM events WHERE id >= number << 32 AND id < (number + 1) << 32) FROM runs WHERE id = ?;

-- name: insert_next_event
INSERT OR FAIL INTO events (id, type, at_ms, body) SELECT ?, ?, ?, ? WHERE EXISTS (SELECT 1 FROM runs WHERE number = ? >> 32);

-- name: insert_event
INSERT INTO events (id, type, at_ms, body) VALUES (?, ?, ?, ?);

-- name: manifest
SELECT manifest FROM runs WHERE id = ? AND manifest IS NOT NULL;

-- name: events
SELECT id, type, at_ms, body FROM events WHERE id >= ? AND id < ? ORDER BY id LIMIT ?;

-- name: delete_run
DELETE FROM runs WHERE number = ?;

-- name: delete_events
DELETE FROM events WHERE id >= ? AND id < ?;

-- name: breakers
SELECT key, state, epoch, until_ms, reason, updated_at_ms, tripped_by FROM breakers WHERE tenant = ? ORDER BY key;

-- name: save_breaker
INSERT INTO breakers (tenant, key, state, epoch, until_ms, reason, updated_at_ms, tripped_by) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (tenant, key) DO UPDATE
SET state = excluded.state, epoch = excluded.epoch, until_ms = excluded.until_ms, reason = excluded.reason,
    updated_at_ms = excluded.updated_at_ms, tripped_by = excluded.tripped_by
WHERE excluded.epoch >= breakers.epoch;

-- name: sweep_breakers
DELETE FROM breakers WHERE until_ms > 0 AND until_ms < ?;
