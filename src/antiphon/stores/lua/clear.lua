-- Forget intents: all that fit of a batch of one shard (clear and flush of the port).
-- KEYS: for each intent record, history, history expiries; then the index of the tenant, if there is one
-- ARGV: 1 tool  2 session (as in the head; '' = any)  3 channel  4... index members
-- Returns how many live records were dropped, and how many keys of any kind.
local dropped, removed = 0, 0
local index = KEYS[3 * (#ARGV - 3) + 1]
for at = 4, #ARGV do
  local first = 3 * (at - 4)
  local record = redis.call('HMGET', KEYS[first + 1], 'm', 'h', 'w')
  local head = record[2] or redis.call('HGET', KEYS[first + 2], 'h')
  local fits = head
  if head and (ARGV[1] ~= '' or ARGV[2] ~= '') then
    local tool, session = string.match(head, '^([^\n]*)\n([^\n]*)\n')
    fits = (ARGV[1] == '' or ARGV[1] == tool) and (ARGV[2] == '' or ARGV[2] == session)
  end
  if fits then
    removed = removed + redis.call('DEL', KEYS[first + 1], KEYS[first + 2], KEYS[first + 3])
    if index then
      redis.call('ZREM', index, ARGV[at])
    end
    if record[1] then
      local version = string.match(record[1], '^%d+ (%d+)')
      redis.call('HSET', KEYS[first + 1], 't', version)  -- versions go on from here
      redis.call('PEXPIRE', KEYS[first + 1], 3600000)
      dropped = dropped + 1
      if record[3] then
        redis.call('PUBLISH', ARGV[3], version .. ' ' .. ARGV[at])
      end
    end
  end
end
return {dropped, removed}
