-- Ask to be told when a record changes.
-- KEYS: record
-- ARGV: 1 version that is waited for
-- Returns 1 if it is still in flight, 0 if there is nothing to wait for.
local record = redis.call('HMGET', KEYS[1], 'n', 's', 'w')
if record[1] ~= ARGV[1] or record[2] ~= 'inflight' then
  return 0
end
if not record[3] then
  redis.call('HSET', KEYS[1], 'w', '1')
end
return 1
