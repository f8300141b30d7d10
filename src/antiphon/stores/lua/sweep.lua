-- Drop the index entries of a batch of one shard whose records have expired.
-- KEYS: for each intent record, history; then the index of the tenant
-- ARGV: index members
-- Returns how many were dropped.
local over = {}
for at, member in ipairs(ARGV) do
  local record, history = KEYS[2 * at - 1], KEYS[2 * at]
  if redis.call('HEXISTS', record, 'm') == 0 and redis.call('EXISTS', history) == 0 then
    over[#over + 1] = member
  end
end
if #over > 0 then
  redis.call('ZREM', KEYS[#KEYS], unpack(over))
end
return #over
