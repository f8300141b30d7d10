-- Extend a lease.
-- KEYS: record
-- ARGV: 1 version  2 lease ms
local meta = redis.call('HGET', KEYS[1], 'm')
local form, version, state, about, ttl, ends, identity =
  string.match(meta or '', '^(%d+) (%d+) (%a+) (%S+ %d+ %d+) %d+ (%d+ %d) (%d+) %d+ (.*)$')
if version ~= ARGV[1] or state ~= 'inflight' then
  return 0
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local lease = now + ARGV[2]
if tonumber(ends) < lease then
  ends = lease
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
redis.call('HSET', KEYS[1], 'm',
  string.format('%s %s %s %s %.0f %s %.0f %.0f ', form, version, state, about, now, ttl, ends, lease) .. identity)
return 1
