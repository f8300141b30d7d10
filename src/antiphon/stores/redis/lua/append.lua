-- Write events at the end of a run, with gap-free numbers.
-- KEYS: events of the run
-- ARGV: 1 how many of the last events may be ours already (0 = this is the first try)  2... events
-- Returns the number of the first one.
local length = redis.call('LLEN', KEYS[1])
if tonumber(ARGV[1]) > 0 then
  local last = redis.call('LRANGE', KEYS[1], -ARGV[1], -1)
  for at, event in ipairs(last) do
    if event == ARGV[2] then
      return length - #last + at - 1
    end
  end
end
for at = 2, #ARGV do
  redis.call('RPUSH', KEYS[1], ARGV[at])
end
return length
