-- Keep a mark for a call unless it has one.
-- KEYS: mark
-- ARGV: 1 mark  2 TTL ms
-- Returns the mark that is kept.
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
  return ARGV[1]
end
return redis.call('GET', KEYS[1])
