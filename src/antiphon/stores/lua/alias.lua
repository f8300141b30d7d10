-- Let an identity find a settled execution as its own.
-- KEYS: record, history, history expiries
-- ARGV: 1 identity  2 version of the execution
local version, state, life, updated, fence, identity, head = string.match(redis.call('GET', KEYS[1]) or '',
  '^%d+ (%d+) (%a+) %S+ %d+ %d (%d+) %d+ (%d+) %d\n(%d+) %d+ ([^\n]*)\n([^\n]*\n[^\n]*\n[^\n]*)')
local place, ends
if version == ARGV[2] then
  if state == 'inflight' or identity == ARGV[1] then
    return 0
  end
  ends = string.format('%.0f', math.floor(updated / 1000) + life)
  place = fence .. ' ' .. ends
  redis.call('HSETNX', KEYS[2], 'h', head)
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
