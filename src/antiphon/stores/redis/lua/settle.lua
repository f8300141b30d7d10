-- End a claim if nobody else has it by now.
-- KEYS: record
-- ARGV: 1 index member  2 channel  3 how the record begins if it is in flight: '1 VERSION inflight '  4 version
--       5 nonce of this operation  6 life ms
--       7 the record's first line between version and time: ' STATE NONCE TTL DISPATCHED LIFE 0 '  8 outcome and result
-- Returns the new version, or nil if fenced.
local call = redis.call
local record = call('GET', KEYS[1])
if not record then
  return false
end
local head, waited
if string.sub(record, 1, #ARGV[3]) == ARGV[3] then
  local at = string.find(record, '\n', 1, true)
  head, waited = string.sub(record, at), string.byte(record, at - 1) == 49
else
  local version, nonce
  version, nonce, head = string.match(
    record, '^%d+ (%d+) %a+ (%S+) [^\n]*(\n[^\n]*\n[^\n]*\n[^\n]*\n[^\n]*)')
  if version ~= ARGV[4] then
    return nonce == ARGV[5] and tonumber(version)  -- executed before its answer got lost
  end
end
local time = call('TIME')
local micros = #time[2] == 6 and time[1] .. time[2] or string.format('%s%06d', time[1], time[2])
local fresh = micros
if tonumber(ARGV[4]) >= tonumber(micros) then
  fresh = string.format('%.0f', ARGV[4] + 1)
end
local text = '1 ' .. fresh .. ARGV[7] .. micros .. ' 0' .. head .. ARGV[8]
if redis.pcall('SET', KEYS[1], text, 'PX', ARGV[6]).err then
  -- A server that is full lets a script finish that has already written: a write that takes no memory goes first.
  call('PEXPIRE', KEYS[1], ARGV[6])
  call('SET', KEYS[1], text, 'PX', ARGV[6])
end
if waited then
  redis.call('PUBLISH', ARGV[2], ARGV[4] .. ' ' .. ARGV[1])
end
return tonumber(fresh)
