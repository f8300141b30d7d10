-- Count a batch of records of one shard by tool and state.
-- KEYS: records
-- Returns {tool, state, number, ...}; in flight past its lease is 'stale', an unknown outcome 'unknown' by its age.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local numbers, answer = {}, {}
for _, key in ipairs(KEYS) do
  local front = redis.call('GETRANGE', key, 0, 1023)
  if not string.match(front, '^[^\n]*\n[^\n]*\n[^\n]*\n') then
    front = redis.call('GET', key) or ''
  end
  local state, lease, updated, tool =
    string.match(front, '^%d+ %d+ (%a+) %S+ %d+ %d %d+ (%d+) (%d+) %d\n[^\n]*\n([^\n]*\n)')
  if state then
    if state == 'inflight' and math.floor(updated / 1000) + lease <= now then
      state = 'stale'
    elseif state == 'failed' then
      local record = redis.call('GET', key) or ''
      local outcome = string.match(record, '^[^\n]*\n[^\n]*\n[^\n]*\n[^\n]*\n[^\n]*\n([^\n]*)') or ''
      if string.find(outcome, '"error":{"code":"outcome_unknown"', 1, true) then
        local age = now - math.floor(updated / 1000)
        state = age >= 86400000 and 'unknown_1d' or age >= 3600000 and 'unknown_1h' or 'unknown'
      end
    end
    local group = tool .. state
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
