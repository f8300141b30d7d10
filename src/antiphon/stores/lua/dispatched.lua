-- Note that the tool may have been touched.
-- KEYS: record
-- ARGV: 1 version
local meta = redis.call('HGET', KEYS[1], 'm')
local before, version, after = string.match(meta or '', '^(%d+ (%d+) %a+ %S+ %d+ %d+ %d+ %d+) %d (.*)$')
if version ~= ARGV[1] then
  return 0
end
redis.call('HSET', KEYS[1], 'm', before .. ' 1 ' .. after)
return 1
