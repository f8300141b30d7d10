-- Ask to be told when a record changes.
-- KEYS: record
-- ARGV: 1 version that is waited for
-- Returns 1 if it is still in flight, 0 if there is nothing to wait for.
local version, place, waited =
  string.match(redis.call('GET', KEYS[1]) or '', '^%d+ (%d+) inflight %S+ %d+ %d %d+ %d+ %d+ ()(%d)\n')
if version ~= ARGV[1] then
  return 0
end
if waited == '0' then
  redis.call('SETRANGE', KEYS[1], place - 1, '1')
end
return 1
