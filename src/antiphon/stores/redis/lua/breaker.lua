-- Keep the state of a breaker unless a newer epoch is there, and tell the other processes.
-- KEYS: breakers of the tenant
-- ARGV: 1 breaker  2 epoch  3 row  4 channel
local there = redis.call('HGET', KEYS[1], ARGV[1])
if there and tonumber(string.match(there, '^%-?%d+')) > tonumber(ARGV[2]) then
  return 0
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. '\n' .. ARGV[3])
redis.call('PUBLISH', ARGV[4], ARGV[3])
return 1
