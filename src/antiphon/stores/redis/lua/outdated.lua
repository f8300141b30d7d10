-- Drop breakers whose state says nothing any more, unless they changed meanwhile.
-- KEYS: breakers of the tenant
-- ARGV: for each breaker its name and the epoch that was seen
-- Returns how many were dropped.
local dropped = 0
for at = 1, #ARGV, 2 do
  local there = redis.call('HGET', KEYS[1], ARGV[at])
  if there and string.match(there, '^%-?%d+') == ARGV[at + 1] then
    dropped = dropped + redis.call('HDEL', KEYS[1], ARGV[at])
  end
end
return dropped
