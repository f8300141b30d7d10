-- The current record, and for each identity its own one. Nothing is written.
-- KEYS: record, history
-- ARGV: identities
-- Returns {now, record, {own ...}}; own is 1 if it is the current record.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local record = redis.call('HMGET', KEYS[1], 'n', 's', 'y', 'i', 'x', 'l', 'a', 'u', 'h', 'b', 'r', 'w')
local current = record[2] and string.match(record[7], '^%d+ (%d+)')
local owns = {}
for at, identity in ipairs(ARGV) do
  local own = current and record[4] == identity and 1
  if not own then
    local place = redis.call('HGET', KEYS[2], 'i:' .. identity)
    if place then
      local fence, ends = string.match(place, '^(%d+) (%d+)$')
      if fence == current then
        own = 1
      elseif tonumber(ends) > now then
        own = redis.call('HGET', KEYS[2], 'e:' .. fence)
      end
    end
  end
  owns[at] = own or false
end
return {now, record[2] and record, owns}
