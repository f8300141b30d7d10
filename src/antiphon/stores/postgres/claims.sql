-- The claim half of the store. Mechanism only: what may run is decided in antiphon.decide.
-- A name that starts with "_" is a fragment; {_name} includes it. The configured schema replaces "antiphon.".

-- name: _clock
clock AS MATERIALIZED (
    SELECT us, us / 1000 AS ms
    FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS us) AS server
)

-- name: _record
c.key, c.tool, c.idempotency_key, c.state, c.created_at_ms, c.updated_at_ms, c.expires_at_ms, c.ttl_ms, c.request,
c.version, c.fence, c.tenant, c.workspace, c.owner, c.dispatched, c.outcome, c.payload, c.lock_until_ms, c.v, c.op

-- name: _lives
-- A claim in flight always counts: clocks are set forward, and its call goes on.
(c.expires_at_ms > (SELECT ms FROM clock) OR c.state = 'inflight')

-- name: _unknown
c.state = 'failed' AND position('"error":{"code":"outcome_unknown"'::bytea IN c.outcome) > 0

-- name: _found
-- The live record of an intent, and the earlier execution that an identity made or shared.
current AS MATERIALIZED (
    SELECT c.*, c.identity = %(identity)s OR EXISTS (
            SELECT FROM antiphon.identities AS i
            WHERE i.key = c.key AND i.identity = %(identity)s AND i.fence = c.fence
        ) AS own
    FROM antiphon.claims AS c
    WHERE c.key = %(key)s AND {_lives}
),
earlier AS MATERIALIZED (
    SELECT e.*
    FROM antiphon.identities AS i JOIN antiphon.executions AS e ON e.key = i.key AND e.fence = i.fence
    WHERE i.key = %(key)s AND i.identity = %(identity)s AND e.expires_at_ms > (SELECT ms FROM clock)
),
found AS MATERIALIZED (
    SELECT c.own, {_record} FROM current AS c
    UNION ALL
    SELECT NULL, {_record} FROM earlier AS c
)

-- name: _wake
pg_notify(%(channel)s, 'c' || left(c.key, 512))::text

-- name: _raise_floor
raised AS (
    INSERT INTO antiphon.floors AS f (tenant, workspace, version)
    SELECT c.tenant, c.workspace, max(c.version) FROM gone AS c GROUP BY c.tenant, c.workspace
    ORDER BY c.tenant, c.workspace
    ON CONFLICT (tenant, workspace) DO UPDATE SET version = excluded.version WHERE f.version < excluded.version
)

-- name: _claim
INSERT INTO antiphon.claims AS c (
        key, tenant, workspace, tool, session, identity, idempotency_key, owner, state, version, fence, op, created_at_ms,
        updated_at_ms, expires_at_ms, ttl_ms, lock_until_ms, v, request, outcome
    )
    SELECT %(key)s, %(tenant)s, %(workspace)s, %(tool)s, %(session)s, %(identity)s, %(idempotency_key)s, %(owner)s,
        'inflight', next.version, next.version, %(op)s, ms,
        ms, ms + greatest(%(ttl_ms)s, %(lease_ms)s), %(ttl_ms)s, ms + %(lease_ms)s, %(v)s, %(request)s,
        %(asked)s
    FROM clock, LATERAL (
        SELECT greatest(clock.us, (
            SELECT f.version + 1 FROM antiphon.floors AS f WHERE f.tenant = %(tenant)s AND f.workspace = %(workspace)s
        )) AS version
    ) AS next

-- name: _replace
    ON CONFLICT (key) DO UPDATE SET
        tenant = excluded.tenant, workspace = excluded.workspace, tool = excluded.tool, session = excluded.session,
        identity = excluded.identity, idempotency_key = excluded.idempotency_key, owner = excluded.owner,
        state = excluded.state, version = greatest(c.version + 1, excluded.version),
        fence = greatest(c.version + 1, excluded.version), op = excluded.op,
        created_at_ms = excluded.created_at_ms, updated_at_ms = excluded.updated_at_ms,
        expires_at_ms = excluded.expires_at_ms, ttl_ms = excluded.ttl_ms, lock_until_ms = excluded.lock_until_ms,
        dispatched = false, waited = false, v = excluded.v, request = excluded.request, outcome = excluded.outcome,
        payload = NULL

-- name: begin
-- One atomic step: insert, or replace an expired record, or return what is there.
-- Neither won nor found: the record appeared after this statement's snapshot was taken, so ask again.
WITH {_clock},
{_found},
won AS (
    {_claim}
    WHERE NOT EXISTS (SELECT FROM found)
    {_replace}
    WHERE c.expires_at_ms <= excluded.updated_at_ms AND c.state <> 'inflight'
    RETURNING c.version
)
{_log_if_won}
SELECT clock.ms, won.version, c.*
FROM clock LEFT JOIN won ON true LEFT JOIN found AS c ON true

-- name: _pin
-- A mark lies among the identities, of a key that no claim has. None: somebody was faster by less than our snapshot shows.
kept AS (
    INSERT INTO antiphon.identities AS i (key, identity, tenant, workspace, fence, expires_at_ms)
    SELECT %(call)s, '', %(tenant)s, %(workspace)s, %(mark)s, clock.ms + %(ttl_ms)s FROM clock
    ON CONFLICT (key, identity) DO UPDATE SET fence = excluded.fence, expires_at_ms = excluded.expires_at_ms
    WHERE i.expires_at_ms <= excluded.expires_at_ms - %(ttl_ms)s
    RETURNING i.fence
),
pinned AS MATERIALIZED (
    SELECT fence AS mark FROM kept
    UNION ALL
    SELECT i.fence FROM antiphon.identities AS i
    WHERE i.key = %(call)s AND i.identity = '' AND NOT EXISTS (SELECT FROM kept)
)

-- name: begin_pinned
-- The same for a call whose id is tied to its arguments, in one step with that.
WITH {_clock},
{_pin},
{_found},
won AS (
    {_claim}
    WHERE NOT EXISTS (SELECT FROM found) AND (SELECT mark FROM pinned) = %(mark)s
    {_replace}
    WHERE c.expires_at_ms <= excluded.updated_at_ms AND c.state <> 'inflight'
    RETURNING c.version
)
{_log_if_won}
SELECT clock.ms, won.version, c.*, pinned.mark
FROM clock LEFT JOIN won ON true LEFT JOIN found AS c ON true LEFT JOIN pinned ON true

-- name: read
-- One read answers every caller in the process that asks for this key at the moment.
WITH {_clock},
named AS MATERIALIZED (
    SELECT i.identity, i.fence FROM antiphon.identities AS i
    WHERE i.key = %(key)s AND i.identity = ANY (%(identities)s::text[])
)
SELECT clock.ms, NULL::text, (SELECT array_agg(n.identity) FROM named AS n WHERE n.fence = c.fence), {_record}
FROM antiphon.claims AS c, clock
WHERE c.key = %(key)s AND {_lives}
UNION ALL
SELECT clock.ms, n.identity, NULL, {_record}
FROM named AS n JOIN antiphon.executions AS c ON c.key = %(key)s AND c.fence = n.fence, clock
WHERE c.expires_at_ms > clock.ms

-- name: take_over
-- The replaced record moves to where its own identity, and those who shared it, still find it.
-- A row that this very operation wrote counts as won: the answer to its first try was lost.
-- Whoever takes and whoever shares writes the row of their identity first: of two deliveries of one call, the faster one
-- has it, also where the statement of the other one began before. Its fence is the replaced version, which leads nowhere.
WITH {_clock},
held AS MATERIALIZED (
    SELECT c.*, {_lives} AS live FROM antiphon.claims AS c WHERE c.key = %(key)s FOR UPDATE
),
due AS MATERIALIZED (
    SELECT coalesce(
        (SELECT c.version FROM held AS c WHERE c.live),
        (
            SELECT e.version FROM antiphon.identities AS i
            JOIN antiphon.executions AS e ON e.key = i.key AND e.fence = i.fence
            WHERE i.key = %(key)s AND i.identity = %(identity)s AND e.expires_at_ms > (SELECT ms FROM clock)
        ),
        %(version)s
    ) = %(version)s AND NOT EXISTS (SELECT FROM held AS c WHERE c.live AND c.v > %(v)s)
        AND NOT EXISTS (SELECT FROM held AS c WHERE c.live AND c.state = 'done' AND c.identity = %(identity)s) AS mine
),
ours AS (
    INSERT INTO antiphon.identities AS i (key, identity, tenant, workspace, fence, expires_at_ms)
    SELECT %(key)s, %(identity)s, %(tenant)s, %(workspace)s, %(version)s, clock.ms + greatest(%(ttl_ms)s, %(lease_ms)s)
    FROM due, clock
    WHERE due.mine AND NOT EXISTS (SELECT FROM held AS c WHERE c.live AND c.identity = %(identity)s)
    ON CONFLICT (key, identity) DO UPDATE SET fence = excluded.fence, expires_at_ms = excluded.expires_at_ms
    WHERE NOT ({_done_at})
    RETURNING true
),
allowed AS MATERIALIZED (
    SELECT due.mine AND (
            EXISTS (SELECT FROM ours) OR EXISTS (SELECT FROM held AS c WHERE c.live AND c.identity = %(identity)s)
        ) AS mine
    FROM due
),
kept AS (
    INSERT INTO antiphon.executions (
        key, tool, idempotency_key, state, created_at_ms, updated_at_ms, expires_at_ms, ttl_ms, request,
        version, fence, tenant, workspace, owner, dispatched, outcome, payload, lock_until_ms, v, op, session, identity
    )
    SELECT {_record}, c.session, c.identity FROM held AS c, allowed WHERE c.live AND allowed.mine
),
named AS (
    INSERT INTO antiphon.identities AS i (key, identity, tenant, workspace, fence, expires_at_ms)
    SELECT c.key, c.identity, c.tenant, c.workspace, c.fence, c.expires_at_ms
    FROM held AS c, allowed WHERE c.live AND allowed.mine
    ON CONFLICT (key, identity) DO UPDATE SET fence = excluded.fence, expires_at_ms = excluded.expires_at_ms
    WHERE i.fence < excluded.fence
),
won AS (
    {_claim}
    WHERE (SELECT mine FROM allowed)
    {_replace}
    WHERE c.version = %(version)s OR (c.expires_at_ms <= excluded.updated_at_ms AND c.state <> 'inflight')
    RETURNING c.version
)
{_log_if_won}
SELECT clock.ms, coalesce(won.version, CASE WHEN c.op = %(op)s THEN c.version END),
    CASE WHEN c.waited AND won.version IS NOT NULL THEN {_wake} END
FROM clock LEFT JOIN won ON true LEFT JOIN held AS c ON true

-- name: settle
-- The events are written whether or not the claim is still ours: history does not depend on who won.
WITH {_clock},
{_once},
ended AS (
    UPDATE antiphon.claims AS c SET
        state = %(state)s, version = greatest(c.version + 1, us), op = %(op)s, updated_at_ms = ms,
        expires_at_ms = ms + %(ttl_ms)s, ttl_ms = %(ttl_ms)s, lock_until_ms = NULL, dispatched = %(dispatched)s,
        outcome = %(outcome)s, payload = %(payload)s
    FROM clock
    WHERE c.key = %(key)s AND c.version = %(version)s AND {_lives} AND EXISTS (SELECT FROM once)
    RETURNING c.key, c.version, c.waited
)
{_log_anyway}
SELECT c.version, CASE WHEN c.waited THEN {_wake} END FROM ended AS c

-- name: settle_earlier
-- The same for an execution of unknown outcome that others have followed. Again if the answer was lost.
WITH {_clock}
UPDATE antiphon.executions AS c SET
    state = %(state)s, version = greatest(c.version + 1, us), op = %(op)s, updated_at_ms = ms, ttl_ms = %(ttl_ms)s,
    dispatched = %(dispatched)s, outcome = %(outcome)s, payload = %(payload)s
FROM clock
WHERE c.key = %(key)s AND c.expires_at_ms > ms AND (
        c.op = %(op)s
        OR (c.version = %(version)s AND (({_unknown}) OR (c.state = 'cancelled' AND c.dispatched)))
    )
RETURNING c.version

-- name: _once
-- What must not happen twice holds a lock of its own while it runs, and does nothing if it comes after it was revoked.
once AS MATERIALIZED (
    SELECT WHERE pg_try_advisory_xact_lock(%(op)s) AND NOT EXISTS (
        SELECT FROM antiphon.identities AS i WHERE i.key = '' AND i.identity = %(op)s::text
    )
)

-- name: revoke
-- An operation whose answer was lost may still be on its way. The mark lies among the identities, of no claim's key.
WITH {_clock}
INSERT INTO antiphon.identities (key, identity, tenant, workspace, fence, expires_at_ms)
SELECT '', %(op)s::text, 'default', 'default', 0, clock.ms + 3600000 FROM clock
ON CONFLICT DO NOTHING

-- name: outlast
-- Or it still runs, waiting for a lock: wait for its end. It began earlier, so its time is up earlier.
WITH patient AS MATERIALIZED (SELECT set_config('lock_timeout', '0', true))
SELECT pg_advisory_xact_lock(%(op)s)::text FROM patient

-- name: took_effect
-- Did a revoked operation take effect?
SELECT
    (SELECT min(e.seq) FROM antiphon.events AS e WHERE e.run = %(run)s AND e.op = %(op)s),
    (
        SELECT c.version FROM antiphon.claims AS c WHERE c.key = %(key)s AND c.op = %(op)s
        UNION ALL
        SELECT c.version FROM antiphon.executions AS c WHERE c.key = %(key)s AND c.op = %(op)s
        LIMIT 1
    )

-- name: _done_at
-- Whether a row of identities leads to a result.
EXISTS (
        SELECT FROM antiphon.claims AS c
        WHERE c.key = i.key AND c.fence = i.fence AND c.state = 'done' AND c.expires_at_ms > (SELECT ms FROM clock)
    ) OR EXISTS (
        SELECT FROM antiphon.executions AS e
        WHERE e.key = i.key AND e.fence = i.fence AND e.state = 'done' AND e.expires_at_ms > (SELECT ms FROM clock)
    )

-- name: alias
-- An identity that runs, or that has a result, shares nothing else.
WITH {_clock}
INSERT INTO antiphon.identities AS i (key, identity, tenant, workspace, fence, expires_at_ms)
SELECT c.key, %(identity)s, c.tenant, c.workspace, c.fence, c.expires_at_ms
FROM (
    SELECT key, tenant, workspace, fence, expires_at_ms FROM antiphon.claims
    WHERE key = %(key)s AND version = %(version)s AND state <> 'inflight'
    UNION ALL
    SELECT key, tenant, workspace, fence, expires_at_ms FROM antiphon.executions
    WHERE key = %(key)s AND version = %(version)s AND state <> 'inflight' AND NOT EXISTS (
            SELECT FROM antiphon.claims AS c WHERE c.key = %(key)s AND c.identity = %(identity)s AND {_lives}
        )
) AS c
WHERE c.expires_at_ms > (SELECT ms FROM clock)
ON CONFLICT (key, identity) DO UPDATE SET fence = excluded.fence, expires_at_ms = excluded.expires_at_ms
WHERE i.fence = excluded.fence OR (i.fence < excluded.fence AND NOT ({_done_at}))
RETURNING true

-- name: renew
WITH {_clock}
UPDATE antiphon.claims AS c SET
    updated_at_ms = ms, lock_until_ms = ms + %(lease_ms)s,
    expires_at_ms = greatest(c.expires_at_ms, ms + %(lease_ms)s)
FROM clock
WHERE c.key = %(key)s AND c.version = %(version)s AND c.state = 'inflight'
RETURNING true

-- name: watch
-- Ask to be told when these claims end. A claim that is flagged already announces its end to whoever listens by now.
-- Locking the others first means that one which just ended is not waited for, and the order of their keys that two
-- processes never wait for each other.
WITH {_clock},
asked AS MATERIALIZED (SELECT * FROM unnest(%(keys)s::text[], %(versions)s::bigint[]) AS a (key, version)),
known AS MATERIALIZED (
    SELECT c.key, c.version, c.lock_until_ms
    FROM antiphon.claims AS c JOIN asked AS a ON c.key = a.key AND c.version = a.version
    WHERE c.state = 'inflight' AND c.waited
),
locked AS MATERIALIZED (
    SELECT c.key, c.version, c.lock_until_ms
    FROM antiphon.claims AS c JOIN asked AS a ON c.key = a.key AND c.version = a.version
    WHERE c.state = 'inflight' AND NOT c.waited
    ORDER BY c.key
    FOR UPDATE OF c
),
flagged AS (
    UPDATE antiphon.claims AS c SET waited = true FROM locked AS l WHERE c.key = l.key
)
SELECT h.key, h.version, h.lock_until_ms - clock.ms
FROM (SELECT * FROM known UNION ALL SELECT * FROM locked) AS h, clock

-- name: forgotten
SELECT EXISTS (
    SELECT FROM antiphon.floors AS f
    WHERE f.tenant = %(tenant)s AND f.workspace = %(workspace)s AND f.version >= %(version)s
) OR EXISTS (
    -- expired, and not swept yet
    SELECT FROM antiphon.claims AS c WHERE c.key = %(key)s AND c.version >= %(version)s
)

-- name: clear
WITH gone AS (
    DELETE FROM antiphon.claims WHERE key = %(key)s AND %(version)s IN (-1, version)
    RETURNING key, waited, tenant, workspace, version
),
{_raise_floor},
due AS MATERIALIZED (SELECT %(version)s = -1 OR EXISTS (SELECT FROM gone) AS is_due),
executed AS (DELETE FROM antiphon.executions WHERE key = %(key)s AND (SELECT is_due FROM due) RETURNING key),
named AS (DELETE FROM antiphon.identities WHERE key = %(key)s AND (SELECT is_due FROM due))
SELECT CASE WHEN c.waited THEN {_wake} END FROM gone AS c
UNION ALL
SELECT NULL FROM executed

-- name: list
WITH {_clock}
SELECT {_record}
FROM antiphon.claims AS c, clock
WHERE c.tenant = %(tenant)s AND {_lives}
    AND (%(tool)s = '' OR c.tool = %(tool)s) AND (%(session)s = '' OR c.session = %(session)s)
    AND (%(state)s = '' OR c.state = %(state)s) AND (%(prefix)s = '' OR starts_with(c.key, %(prefix)s))
    AND (c.fence, c.key) < (%(at)s, %(id)s)
ORDER BY c.fence DESC, c.key DESC
LIMIT %(limit)s

-- name: earlier
WITH {_clock}
SELECT {_record}
FROM antiphon.executions AS c, clock
WHERE c.tenant = %(tenant)s AND c.expires_at_ms > clock.ms AND (%(key)s = '' OR c.key = %(key)s)
ORDER BY c.fence DESC

-- name: counts
WITH {_clock}
SELECT c.tool,
    CASE
        WHEN c.state = 'inflight' AND c.lock_until_ms <= clock.ms THEN 'stale'
        WHEN NOT ({_unknown}) THEN c.state
        WHEN c.updated_at_ms <= clock.ms - 86400000 THEN 'unknown_1d'
        WHEN c.updated_at_ms <= clock.ms - 3600000 THEN 'unknown_1h'
        ELSE 'unknown'
    END,
    count(*)
FROM antiphon.claims AS c, clock
WHERE c.tenant = %(tenant)s AND {_lives}
GROUP BY 1, 2

-- name: tenants
-- One step in the index for each.
WITH RECURSIVE found (tenant) AS (
    SELECT min(c.tenant) FROM antiphon.claims AS c
    UNION ALL
    SELECT (SELECT min(c.tenant) FROM antiphon.claims AS c WHERE c.tenant > found.tenant)
    FROM found WHERE found.tenant IS NOT NULL
)
SELECT tenant FROM found WHERE tenant IS NOT NULL

-- name: sweep_claims
-- A claim in flight is spared the first time. Nothing else lets one expire later than both its TTL and its lease: that
-- marks it.
WITH {_clock},
doomed AS MATERIALIZED (
    SELECT c.key,
        c.state = 'inflight' AND c.expires_at_ms <= greatest(c.created_at_ms + c.ttl_ms, c.lock_until_ms) AS spare
    FROM antiphon.claims AS c
    WHERE c.expires_minute <= (SELECT ms / 60000 FROM clock) AND c.expires_at_ms <= (SELECT ms FROM clock)
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
),
spared AS (
    UPDATE antiphon.claims AS c SET expires_at_ms = clock.ms + greatest(1, c.ttl_ms)
    FROM doomed, clock WHERE c.key = doomed.key AND doomed.spare
),
gone AS (
    DELETE FROM antiphon.claims AS c USING doomed WHERE c.key = doomed.key AND NOT doomed.spare
    RETURNING c.key, c.waited, c.tenant, c.workspace, c.version
),
{_raise_floor}
SELECT CASE WHEN c.waited THEN {_wake} END FROM gone AS c

-- name: sweep_executions
WITH {_clock}
DELETE FROM antiphon.executions WHERE ctid IN (
    SELECT e.ctid FROM antiphon.executions AS e WHERE e.expires_at_ms <= (SELECT ms FROM clock)
    LIMIT %(limit)s FOR UPDATE SKIP LOCKED
)
RETURNING 1

-- name: sweep_identities
WITH {_clock}
DELETE FROM antiphon.identities WHERE ctid IN (
    SELECT i.ctid FROM antiphon.identities AS i
    WHERE i.expires_at_ms <= (SELECT ms FROM clock)
        AND NOT EXISTS (SELECT FROM antiphon.claims AS c WHERE c.key = i.key AND c.fence = i.fence)
        AND NOT EXISTS (SELECT FROM antiphon.executions AS e WHERE e.key = i.key AND e.fence = i.fence)
    LIMIT %(limit)s FOR UPDATE SKIP LOCKED
)
RETURNING 1
