-- End an execution of unknown outcome that others have followed; it is kept as long as before.
-- KEYS: history, history expiries
-- ARGV: 1 version  2 nonce of this operation
--       3 the record's first line between version and life: ' STATE NONCE TTL DISPATCHED '  4 outcome and result
-- Returns the new version, or nil if there is none of this version whose outcome is unknown.
local call = redis.call
local place = call('HGET', KEYS[1], 'v:' .. ARGV[1])
if not place then
  return false
end
local fence, ends = string.match(place, '^(%d+) (%d+)$')
local version, state, nonce, dispatched, head, outcome = string.match(
  call('HGET', KEYS[1], 'e:' .. fence) or '',
  '^%d+ (%d+) (%a+) (%S+) %d+ (%d) [^\n]*(\n[^\n]*\n[^\n]*\n[^\n]*\n[^\n]*)\n([^\n]*)')
if nonce == ARGV[2] then
  return tonumber(version)  -- executed before its answer got lost
end
local unknown = state == 'failed' and string.find(outcome, '"error":{"code":"outcome_unknown"', 1, true)
  or state == 'cancelled' and dispatched == '1'
local time = call('TIME')
local micros = #time[2] == 6 and time[1] .. time[2] or string.format('%s%06d', time[1], time[2])
local now = string.sub(micros, 1, -4)
if version ~= ARGV[1] or not unknown or tonumber(ends) <= tonumber(now) then
  return false
end
local fresh = micros
if tonumber(version) >= tonumber(micros) then
  fresh = string.format('%.0f', version + 1)
end
local life = string.format('%.0f', ends - now)
local text = '1 ' .. fresh .. ARGV[3] .. life .. ' 0 ' .. micros .. ' 0' .. head .. ARGV[4]
call('HSET', KEYS[1], 'e:' .. fence, text, 'v:' .. fresh, place)
call('ZADD', KEYS[2], ends, 'v:' .. fresh)
return tonumber(fresh)
