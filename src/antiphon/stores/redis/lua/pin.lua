-- Keep a mark for a call unless it has one; in a Cluster, where the claim is in another slot (see claim.lua).
-- KEYS: mark
-- ARGV: 1 mark  2 TTL ms
-- Returns the mark that is kept.
local kept = redis.call('GET', KEYS[1])
if kept then
  return kept
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return ARGV[1]
