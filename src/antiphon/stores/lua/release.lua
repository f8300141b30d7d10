-- Give back a claim that was never dispatched: its caller is gone, or too few replicas have it.
-- KEYS: record
-- ARGV: 1 nonce of the claim  2 channel  3 index member
local record = redis.call('HMGET', KEYS[1], 'm', 'w')
local version, state, nonce = string.match(record[1] or '', '^%d+ (%d+) (%a+) (%S+) ')
if state ~= 'inflight' or nonce ~= ARGV[1] then
  return 0
end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 't', version)  -- versions go on from here
redis.call('PEXPIRE', KEYS[1], 3600000)
if record[2] then
  redis.call('PUBLISH', ARGV[2], version .. ' ' .. ARGV[3])
end
return 1
