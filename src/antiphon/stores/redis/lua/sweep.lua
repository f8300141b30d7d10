-- Drop the index entries of a batch of one shard whose records have expired.
-- KEYS: for each intent record, history; then the index of the tenant
-- ARGV: index members
-- Returns how many were dropped.
local over = {}
for at, member in ipairs(ARGV) do
  local begin = redis.call('GETRANGE', KEYS[2 * at - 1], 0, 0)
  if (begin == '' or begin == 't') and redis.call('EXISTS', KEYS[2 * at]) == 0 then
    over[#over + 1] = member
  end
end
if #over > 0 then
  redis.call('ZREM', KEYS[#KEYS], unpack(over))
end
return #over
