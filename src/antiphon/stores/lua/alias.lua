-- Let an identity find a settled execution as its own.
-- KEYS: record, history, history expiries
-- ARGV: 1 identity  2 version of the execution
local record = redis.call('HMGET', KEYS[1], 'n', 's', 'i', 'x', 'a', 'h')
local place
if record[2] and record[1] == ARGV[2] then
  if record[2] == 'inflight' or record[3] == ARGV[1] then
    return 0
  end
  place = string.match(record[5], '^%d+ (%d+)') .. ' ' .. record[4]
  redis.call('HSETNX', KEYS[2], 'h', record[6])
else
  place = redis.call('HGET', KEYS[2], 'v:' .. ARGV[2])
  if not place then
    return 0
  end
end
local ends = string.match(place, ' (%d+)$')
redis.call('HSET', KEYS[2], 'i:' .. ARGV[1], place)
redis.call('ZADD', KEYS[3], ends, 'i:' .. ARGV[1])
local time = redis.call('TIME')
if redis.call('PTTL', KEYS[2]) < ends - (time[1] * 1000 + math.floor(time[2] / 1000)) then
  redis.call('PEXPIREAT', KEYS[2], ends)
  redis.call('PEXPIREAT', KEYS[3], ends)
end
return 1
