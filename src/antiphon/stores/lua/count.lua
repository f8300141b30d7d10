-- Count a batch of records of one shard by tool and state.
-- KEYS: records
-- Returns {tool, state, number, ...}; in flight past its lease is 'stale'.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local numbers, answer = {}, {}
for _, key in ipairs(KEYS) do
  local record = redis.call('HMGET', key, 'm', 'h')
  if record[1] then
    local state, lock = string.match(record[1], '^%d+ %d+ (%a+) %S+ %d+ %d+ %d+ %d+ %d %d+ (%d+) ')
    if state == 'inflight' and tonumber(lock) <= now then
      state = 'stale'
    end
    local group = string.match(record[2], '^[^\n]*\n') .. state
    numbers[group] = (numbers[group] or 0) + 1
  end
end
for group, number in pairs(numbers) do
  local tool, state = string.match(group, '^(.*)\n(.*)$')
  answer[#answer + 1] = tool
  answer[#answer + 1] = state
  answer[#answer + 1] = number
end
return answer
