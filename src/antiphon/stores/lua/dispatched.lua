-- Note that the tool may have been touched.
-- KEYS: record
-- ARGV: 1 version
local version, place = string.match(redis.call('GET', KEYS[1]) or '', '^%d+ (%d+) %a+ %S+ %d+ ()%d ')
if version ~= ARGV[1] then
  return 0
end
redis.call('SETRANGE', KEYS[1], place - 1, '1')
return 1
