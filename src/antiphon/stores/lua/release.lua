-- Give back a claim that was never dispatched: its caller is gone, or too few replicas have it.
-- KEYS: record
-- ARGV: 1 nonce of the claim  2 channel  3 index member
local record = redis.call('HMGET', KEYS[1], 'n', 's', 'y', 'w')
if record[2] ~= 'inflight' or record[3] ~= ARGV[1] then
  return 0
end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'n', record[1])  -- versions go on from here
redis.call('PEXPIRE', KEYS[1], 3600000)
if record[4] then
  redis.call('PUBLISH', ARGV[2], record[1] .. ' ' .. ARGV[3])
end
return 1
