-- Forget intents: all that fit of a batch of one shard (clear and flush of the port).
-- KEYS: for each intent record, history, history expiries; then the index of the tenant, if there is one
-- ARGV: 1 tool  2 session (as in the record; '' = any)  3 channel  4... index members
-- Returns how many live records were dropped, and how many keys of any kind.
local dropped, removed = 0, 0
local index = KEYS[3 * (#ARGV - 3) + 1]
for at = 4, #ARGV do
  local first = 3 * (at - 4)
  local version, waited, head = string.match(redis.call('GET', KEYS[first + 1]) or '',
    '^%d+ (%d+) %a+ %S+ %d+ %d %d+ %d+ %d+ (%d)\n[^\n]*\n([^\n]*\n[^\n]*\n)')
  head = head or redis.call('HGET', KEYS[first + 2], 'h')
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
    if version then
      redis.call('SET', KEYS[first + 1], 't ' .. version, 'PX', 3600000)  -- versions go on from here
      dropped = dropped + 1
      if waited == '1' then
        redis.call('PUBLISH', ARGV[3], version .. ' ' .. ARGV[at])
      end
    end
  end
end
return {dropped, removed}
