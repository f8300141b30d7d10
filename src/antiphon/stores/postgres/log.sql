-- The run log: gap-free sequence numbers come from one counter per run, in the transaction of the events.

-- name: _log_if_won
, gate AS MATERIALIZED (SELECT FROM won), {_log}

-- name: _log_anyway
, gate AS MATERIALIZED (SELECT FROM once, (SELECT count(*) FROM ended) AS e), {_log}

-- name: _log
numbered AS (
    -- A run nobody opened yet is kept as a bare counter until its manifest comes.
    INSERT INTO antiphon.runs AS r (id, tenant, workspace, next_seq)
    SELECT %(run)s, %(tenant)s, %(workspace)s, cardinality(%(types)s::text[]) FROM gate
    ON CONFLICT (id) DO UPDATE SET next_seq = r.next_seq + excluded.next_seq WHERE NOT r.deleting
    RETURNING r.tenant, r.workspace, r.next_seq - cardinality(%(types)s::text[]) AS first
),
logged AS (
    INSERT INTO antiphon.events (run, seq, tenant, workspace, op, type, at_ms, body)
    SELECT %(run)s, r.first + l.n - 1, r.tenant, r.workspace, %(op)s, l.type, l.at_ms, l.body
    FROM numbered AS r, unnest(%(types)s::text[], %(ats)s::bigint[], %(bodies)s::bytea[])
        WITH ORDINALITY AS l (type, at_ms, body, n)
)

-- name: append
WITH {_once}, gate AS MATERIALIZED (SELECT FROM once), {_log}
SELECT first FROM numbered

-- name: append_also
-- The same in the transaction of another statement: they happen together.
WITH gate AS MATERIALIZED (SELECT), {_log}
SELECT first FROM numbered

-- name: next_seq
SELECT next_seq FROM antiphon.runs WHERE id = %(id)s AND NOT deleting

-- name: _keep_run
INSERT INTO antiphon.runs AS r (id, tenant, workspace, name, status, session, started_at_ms, manifest)
VALUES (%(id)s, %(tenant)s, %(workspace)s, %(name)s, %(status)s, %(session)s, %(started_at_ms)s, %(manifest)s)
ON CONFLICT (id) DO UPDATE SET
    tenant = excluded.tenant, workspace = excluded.workspace, name = excluded.name, status = excluded.status,
    session = excluded.session, started_at_ms = excluded.started_at_ms, manifest = excluded.manifest

-- name: open_run
{_keep_run}
WHERE r.manifest IS NULL
RETURNING true

-- name: is_deleting
SELECT deleting FROM antiphon.runs WHERE id = %(id)s

-- name: update_run
{_keep_run}

-- name: manifest
SELECT manifest FROM antiphon.runs WHERE id = %(id)s AND NOT deleting AND manifest IS NOT NULL

-- name: runs
SELECT r.manifest
FROM antiphon.runs AS r
WHERE r.tenant = %(tenant)s AND NOT r.deleting AND r.manifest IS NOT NULL
    AND (%(prefix)s = '' OR starts_with(r.id, %(prefix)s)) AND (%(name)s = '' OR r.name = %(name)s)
    AND (%(status)s = '' OR r.status = %(status)s)
    AND (r.started_at_ms, r.id) < (%(at)s, %(id)s)
ORDER BY r.started_at_ms DESC, r.id DESC
LIMIT %(limit)s

-- name: events
SELECT e.seq, e.type, e.at_ms, e.body
FROM antiphon.events AS e
WHERE e.run = %(run)s AND e.seq >= %(start)s AND e.seq < %(stop)s
    AND EXISTS (SELECT FROM antiphon.runs AS r WHERE r.id = %(run)s AND NOT r.deleting)
ORDER BY e.seq
LIMIT %(limit)s

-- name: delete_begin
UPDATE antiphon.runs SET deleting = true WHERE id = %(id)s AND NOT deleting RETURNING true

-- name: delete_batch
-- Nothing is written to a run that is being deleted, so this ends.
DELETE FROM antiphon.events
WHERE run = %(id)s AND seq >= (SELECT max(e.seq) + 1 - %(limit)s FROM antiphon.events AS e WHERE e.run = %(id)s)
    AND EXISTS (SELECT FROM antiphon.runs AS r WHERE r.id = %(id)s AND r.deleting)
RETURNING 1

-- name: delete_end
DELETE FROM antiphon.runs WHERE id = %(id)s AND deleting

-- name: half_deleted
SELECT id FROM antiphon.runs WHERE deleting LIMIT %(limit)s
