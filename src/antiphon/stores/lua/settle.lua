-- End a claim if nobody else has it by now.
-- KEYS: record
-- ARGV: 1 version  2 nonce of this operation  3 state  4 ttl ms  5 dispatched (1 or 0)  6 outcome  7 payload ('' = none)
--       8 channel  9 index member
-- Returns the new version, or nil if fenced.
local record = redis.call('HMGET', KEYS[1], 'm', 'w')
if not record[1] then
  return false
end
local form, version, state, nonce, about, identity =
  string.match(record[1], '^(%d+) (%d+) (%a+) (%S+) (%d+ %d+) %d+ %d+ %d %d+ %d+ (.*)$')
if version ~= ARGV[1] then
  return nonce == ARGV[2] and version  -- executed before its answer got lost
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local fresh = string.format('%.0f', math.max(time[1] * 1000000 + time[2], version + 1))
local meta = string.format('%s %s %s %s %s %.0f %s %s %.0f 0 ',
  form, fresh, ARGV[3], ARGV[2], about, now, ARGV[4], ARGV[5], now + ARGV[4]) .. identity
-- A write that takes no memory comes first: a server that is full lets a script finish that has already written.
redis.call('PEXPIRE', KEYS[1], math.max(ARGV[4], 1))
if ARGV[7] ~= '' then
  redis.call('HSET', KEYS[1], 'm', meta, 'b', ARGV[6], 'r', ARGV[7])
else
  redis.call('HSET', KEYS[1], 'm', meta, 'b', ARGV[6])
  if state ~= 'inflight' then
    redis.call('HDEL', KEYS[1], 'r')
  end
end
if record[2] then
  redis.call('HDEL', KEYS[1], 'w')
  redis.call('PUBLISH', ARGV[8], version .. ' ' .. ARGV[9])
end
return fresh
