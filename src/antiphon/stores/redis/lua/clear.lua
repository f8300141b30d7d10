-- Forget an intent.
-- KEYS: record, history, history expiries
-- ARGV: 1 index member  2 channel  3 version it must have ('' = any)
-- Returns how many keys of any kind were dropped.
local version, waited = string.match(redis.call('GET', KEYS[1]) or '', '^%d+ (%d+) %a+ %S+ %d+ %d %d+ %d+ %d+ (%d)\n')
if ARGV[3] ~= '' and version ~= ARGV[3] then
  return 0
end
local dropped = redis.call('DEL', KEYS[2], KEYS[3])
if version then
  redis.call('SET', KEYS[1], 't ' .. version, 'PX', 3600000)  -- versions go on from here
  if waited == '1' then
    redis.call('PUBLISH', ARGV[2], version .. ' ' .. ARGV[1])
  end
  return dropped + 1
end
return dropped
