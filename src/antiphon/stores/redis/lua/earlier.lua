-- The executions of an intent that others have followed. Nothing is written.
-- KEYS: history, history expiries
local time = redis.call('TIME')
local now = string.format('(%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
local found = {}
for _, field in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], now, '+inf')) do
  if string.sub(field, 1, 2) == 'e:' then
    found[#found + 1] = redis.call('HGET', KEYS[1], field)
  end
end
return found
