-- Extend a lease.
-- KEYS: record
-- ARGV: 1 version  2 lease ms
local record = redis.call('HMGET', KEYS[1], 'n', 's', 'x', 'u')
if record[1] ~= ARGV[1] or record[2] ~= 'inflight' then
  return 0
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local ends = now + ARGV[2]
redis.call('HSET', KEYS[1], 'l', ends, 'u', now .. string.match(record[4], ' .*$'))
if tonumber(record[3]) < ends then
  redis.call('HSET', KEYS[1], 'x', ends)
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 1
