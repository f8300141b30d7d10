-- Note that the tool may have been touched.
-- KEYS: record
-- ARGV: 1 version
local record = redis.call('HMGET', KEYS[1], 'n', 's', 'u')
if record[1] ~= ARGV[1] or not record[2] then
  return 0
end
redis.call('HSET', KEYS[1], 'u', (string.gsub(record[3], '%d$', '1')))
return 1
