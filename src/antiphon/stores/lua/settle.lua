-- End a claim if nobody else has it by now.
-- KEYS: record
-- ARGV: 1 version  2 nonce of this operation  3 state  4 ttl ms  5 dispatched (1 or 0)  6 outcome  7 payload ('' = none)
--       8 channel  9 index member
-- Returns the new version, or nil if fenced.
local record = redis.call('HMGET', KEYS[1], 'n', 's', 'y', 'w')
local version = record[1]
if not record[2] then
  return false
end
if version ~= ARGV[1] then
  return record[3] == ARGV[2] and version  -- executed before its answer got lost
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local fresh = string.format('%.0f', math.max(time[1] * 1000000 + time[2], version + 1))
-- A removal comes first: a server that is full lets a script finish that has already written.
redis.call('HDEL', KEYS[1], 'w', 'r')
redis.call('HSET', KEYS[1], 'n', fresh, 's', ARGV[3], 'y', ARGV[2], 'x', now + ARGV[4], 'l', 0,
  'u', now .. ' ' .. ARGV[4] .. ' ' .. ARGV[5], 'b', ARGV[6])
if ARGV[7] ~= '' then
  redis.call('HSET', KEYS[1], 'r', ARGV[7])
end
redis.call('PEXPIRE', KEYS[1], ARGV[4])
if record[4] then
  redis.call('PUBLISH', ARGV[8], version .. ' ' .. ARGV[9])
end
return fresh
