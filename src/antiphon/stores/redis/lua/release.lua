-- Give back a claim that was never dispatched: its caller is gone, or too few replicas have it.
-- KEYS: record
-- ARGV: 1 nonce of the claim  2 channel  3 index member
local version, nonce, waited =
  string.match(redis.call('GET', KEYS[1]) or '', '^%d+ (%d+) inflight (%S+) %d+ %d %d+ %d+ %d+ (%d)\n')
if nonce ~= ARGV[1] then
  return 0
end
redis.call('DEL', KEYS[1])
redis.call('SET', KEYS[1], 't ' .. version, 'PX', 3600000)  -- versions go on from here
if waited == '1' then
  redis.call('PUBLISH', ARGV[2], version .. ' ' .. ARGV[3])
end
return 1
