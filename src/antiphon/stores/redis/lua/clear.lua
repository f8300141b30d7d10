-- Forget an intent.
-- KEYS: record, history, history expiries
-- ARGV: 1 index member  2 channel
-- Returns how many keys of any kind were dropped.
local version, waited = string.match(redis.call('GET', KEYS[1]) or '', '^%d+ (%d+) %a+ %S+ %d+ %d %d+ %d+ %d+ (%d)\n')
local dropped = redis.call('DEL', KEYS[2], KEYS[3])
if version then
  redis.call('SET', KEYS[1], 't ' .. version, 'PX', 3600000)  -- versions go on from here
  if waited == '1' then
    redis.call('PUBLISH', ARGV[2], version .. ' ' .. ARGV[1])
  end
  return dropped + 1
end
return dropped
