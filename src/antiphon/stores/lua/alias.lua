-- Let an identity find a settled execution as its own.
-- KEYS: record, history, history expiries
-- ARGV: 1 identity  2 version of the execution
local record = redis.call('HMGET', KEYS[1], 'm', 'h')
local version, state, fence, ends, identity =
  string.match(record[1] or '', '^%d+ (%d+) (%a+) %S+ (%d+) %d+ %d+ %d+ %d (%d+) %d+ (.*)$')
local place
if version == ARGV[2] then
  if state == 'inflight' or identity == ARGV[1] then
    return 0
  end
  place = fence .. ' ' .. ends
  redis.call('HSETNX', KEYS[2], 'h', record[2])
else
  place = redis.call('HGET', KEYS[2], 'v:' .. ARGV[2])
  if not place then
    return 0
  end
  ends = string.match(place, ' (%d+)$')
end
redis.call('HSET', KEYS[2], 'i:' .. ARGV[1], place)
redis.call('ZADD', KEYS[3], ends, 'i:' .. ARGV[1])
local time = redis.call('TIME')
if redis.call('PTTL', KEYS[2]) < ends - (time[1] * 1000 + math.floor(time[2] / 1000)) then
  redis.call('PEXPIREAT', KEYS[2], ends)
  redis.call('PEXPIREAT', KEYS[3], ends)
end
return 1
