-- Shared breaker state. A change is always told: it is rare, and every process must hear of it.

-- name: load_breakers
SELECT key, state, epoch, until_ms, reason, updated_at_ms, tripped_by
FROM antiphon.breakers
WHERE tenant = %(tenant)s
ORDER BY key

-- name: save_breaker
WITH kept AS (
    INSERT INTO antiphon.breakers AS b (tenant, key, state, epoch, until_ms, reason, updated_at_ms, tripped_by)
    VALUES (
        %(tenant)s, %(key)s, %(state)s, %(epoch)s, %(until_ms)s, %(reason)s, %(updated_at_ms)s, %(tripped_by)s
    )
    ON CONFLICT (tenant, key) DO UPDATE SET
        state = excluded.state, epoch = excluded.epoch, until_ms = excluded.until_ms, reason = excluded.reason,
        updated_at_ms = excluded.updated_at_ms, tripped_by = excluded.tripped_by
    WHERE b.epoch <= excluded.epoch
    RETURNING b.tenant
)
SELECT pg_notify(%(channel)s, 'b' || left(kept.tenant, 512))::text FROM kept

-- name: sweep_breakers
DELETE FROM antiphon.breakers
WHERE until_ms > 0 AND until_ms < (extract(epoch FROM clock_timestamp()) * 1000)::bigint - %(kept_ms)s
