-- Extend a lease.
-- KEYS: record
-- ARGV: 1 version  2 lease ms
local before, version, ttl, life, updated, after = string.match(redis.call('GET', KEYS[1]) or '',
  '^(%d+ (%d+) inflight %S+ (%d+) %d) (%d+) %d+ (%d+)( .*)$')
if version ~= ARGV[1] then
  return 0
end
local time = redis.call('TIME')
local micros = string.format('%s%06d', time[1], time[2])
local left = math.floor(updated / 1000) + life - math.floor(micros / 1000)
-- A write that takes no memory comes first: a server that is full lets a script finish that has already written.
left = math.max(left, ARGV[2], 1)
redis.call('PEXPIRE', KEYS[1], left + ttl)
redis.call('SET', KEYS[1], string.format('%s %.0f %s %s', before, left, ARGV[2], micros) .. after, 'KEEPTTL')
return 1
