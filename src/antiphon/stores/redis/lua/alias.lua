-- Let an identity find a settled execution as its own.
-- KEYS: record, history, history expiries
-- ARGV: 1 identity  2 version of the execution
-- Returns 1 if it does now; 0 if it has another one, or if there is no such settled execution.
local version, state, life, updated, fence, identity, head = string.match(redis.call('GET', KEYS[1]) or '',
  '^%d+ (%d+) (%a+) %S+ %d+ %d (%d+) %d+ (%d+) %d\n(%d+) %d+ ([^\n]*)\n([^\n]*\n[^\n]*\n[^\n]*)')
if identity == ARGV[1] then
  return version == ARGV[2] and state ~= 'inflight' and 1 or 0
end
local place, ends
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local own = redis.call('HGET', KEYS[2], 'i:' .. ARGV[1])
if own and tonumber(string.match(own, ' (%d+)$')) <= now then
  own = false
end
if version == ARGV[2] then
  if state == 'inflight' then
    return 0
  end
  ends = string.format('%.0f', math.floor(updated / 1000) + life)
  place = fence .. ' ' .. ends
else
  place = redis.call('HGET', KEYS[2], 'v:' .. ARGV[2])
  if not place then
    return 0
  end
  ends = string.match(place, ' (%d+)$')
  local execution = redis.call('HGET', KEYS[2], 'e:' .. string.match(place, '^%d+')) or ''
  local its, result = string.match(execution, '^%d+ (%d+) (%a+) ')
  if its ~= ARGV[2] or result == 'inflight' or tonumber(ends) <= now then
    return 0
  end
end
if own == place then
  return 1
elseif own then
  local its = string.match(own, '^%d+')
  local result = its == fence and state or string.match(
    redis.call('HGET', KEYS[2], 'e:' .. its) or '', '^%d+ %d+ (%a+)')
  if result == 'done' then
    return 0
  end
end
if head then
  redis.call('HSETNX', KEYS[2], 'h', head)
end
redis.call('HSET', KEYS[2], 'i:' .. ARGV[1], place)
redis.call('ZADD', KEYS[3], ends, 'i:' .. ARGV[1])
if redis.call('PTTL', KEYS[2]) < ends - now then
  redis.call('PEXPIREAT', KEYS[2], ends)
  redis.call('PEXPIREAT', KEYS[3], ends)
end
return 1
