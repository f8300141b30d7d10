-- Take the claim on one intent, or return what is there (begin and take of the port).
-- KEYS: record, history, history expiries, index of the tenant
-- ARGV: 1 version to replace ('' = only if there is none)  2 identity  3 nonce of this operation  4 ttl ms  5 lease ms
--       6 head  7 format  8 index member  9 channel
-- Returns {1, version, now} or {0, now, record, own}; own is 1 if it is the current record.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local micros = time[1] * 1000000 + time[2]
local flat = redis.call('HGETALL', KEYS[1])
local record = {}
for at = 1, #flat, 2 do
  record[flat[at]] = flat[at + 1]
end
local version, state, nonce, current, ends, identity = record.t
if record.m then
  if tonumber(string.match(record.m, '^%d+')) > tonumber(ARGV[7]) then
    return {0, now, flat, 1}  -- of a newer release: neither reused nor replaced
  end
  version, state, nonce, current, ends, identity =
    string.match(record.m, '^%d+ (%d+) (%a+) (%S+) (%d+) %d+ %d+ %d+ %d (%d+) %d+ (.*)$')
  if nonce == ARGV[3] then  -- this very operation was executed before its answer got lost
    return {1, version, now}
  end
end

if not (state and version == ARGV[1]) then
  local own = identity == ARGV[2] and 1
  if not own then
    local place = redis.call('HGET', KEYS[2], 'i:' .. ARGV[2])
    if place then
      local fence, over = string.match(place, '^(%d+) (%d+)$')
      if fence == current then
        own = 1
      elseif tonumber(over) > now then
        own = redis.call('HGET', KEYS[2], 'e:' .. fence)
        if own and not state and ARGV[1] ~= '' and redis.call('HGET', KEYS[2], 'v:' .. ARGV[1]) == place then
          own = false  -- the caller has seen it and replaces it
        end
      end
    end
  end
  if state then
    return {0, now, flat, own}
  elseif own then  -- a later execution expired before the asking call's own one
    return {0, now, false, own}
  end
end

if ARGV[1] ~= '' then
  redis.call('HDEL', KEYS[2], 'i:' .. ARGV[2])
  if state and (identity ~= ARGV[2] or state ~= 'inflight') then
    -- The replaced execution stays findable for its identity, and for who shared it, until it would have expired.
    local execution, settled, place = 'e:' .. current, 'v:' .. version, current .. ' ' .. ends
    redis.call('HSET', KEYS[2], execution, cmsgpack.pack(flat), settled, place, 'h', record.h)
    redis.call('ZADD', KEYS[3], ends, execution, ends, settled)
    if identity ~= ARGV[2] then
      redis.call('HSET', KEYS[2], 'i:' .. identity, place)
      redis.call('ZADD', KEYS[3], ends, 'i:' .. identity)
    end
    local over = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', now, 'LIMIT', 0, 16)
    if #over > 0 then
      redis.call('HDEL', KEYS[2], unpack(over))
      redis.call('ZREM', KEYS[3], unpack(over))
    end
    if redis.call('PTTL', KEYS[2]) < ends - now then
      redis.call('PEXPIREAT', KEYS[2], ends)
      redis.call('PEXPIREAT', KEYS[3], ends)
    end
  end
end

if version then
  redis.call('DEL', KEYS[1])
end
local fresh = string.format('%.0f', math.max(micros, (version or 0) + 1))
local life = math.max(ARGV[4], ARGV[5], 1)
redis.call('HSET', KEYS[1], 'h', ARGV[6], 'm', string.format('%s %s inflight %s %s %.0f %.0f %s 0 %.0f %.0f ',
  ARGV[7], fresh, ARGV[3], fresh, now, now, ARGV[4], now + life, now + ARGV[5]) .. ARGV[2])
redis.call('PEXPIRE', KEYS[1], life)

-- The member '' keeps the longest time an entry can be needed; every 16th claim drops what is older.
redis.call('ZADD', KEYS[4], 'GT', now, ARGV[8], math.min(2 * life + 3600000, 9e11), '')
if micros % 16 == 0 then
  local horizon = redis.call('ZSCORE', KEYS[4], '')
  local over = redis.call('ZRANGEBYSCORE', KEYS[4], 1e12, now - horizon, 'LIMIT', 0, 64)
  if #over > 0 then
    redis.call('ZREM', KEYS[4], unpack(over))
  end
  redis.call('PEXPIRE', KEYS[4], horizon)
end

if record.w then
  redis.call('PUBLISH', ARGV[9], version .. ' ' .. ARGV[8])
end
return {1, fresh, now}
