-- The current record, and for each identity its own one. Nothing is written.
-- KEYS: record, history
-- ARGV: identities
-- Returns {now, record, {own ...}}; own is 1 if it is the current record.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local flat = redis.call('GET', KEYS[1]) or ''
local there, current, holder = string.match(flat, '^(%d+) [^\n]*\n(%d+) %d+ ([^\n]*)')
local owns = {}
for at, identity in ipairs(ARGV) do
  local own = holder == identity and 1
  if not own then
    local place = redis.call('HGET', KEYS[2], 'i:' .. identity)
    if place then
      local fence, over = string.match(place, '^(%d+) (%d+)$')
      if fence == current then
        own = 1
      elseif tonumber(over) > now then
        own = redis.call('HGET', KEYS[2], 'e:' .. fence)
      end
    end
  end
  owns[at] = own or false
end
return {now, there and flat or false, owns}
