-- Ask to be told when a record changes.
-- KEYS: record
-- ARGV: 1 version that is waited for
-- Returns 1 if it is still in flight, 0 if there is nothing to wait for.
local record = redis.call('HMGET', KEYS[1], 'm', 'w')
local version, state = string.match(record[1] or '', '^%d+ (%d+) (%a+) ')
if version ~= ARGV[1] or state ~= 'inflight' then
  return 0
end
if not record[2] then
  redis.call('HSET', KEYS[1], 'w', '1')
end
return 1
