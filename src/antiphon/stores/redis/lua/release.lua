-- Give back a claim that was never dispatched: its caller is gone, or too few replicas have it.
-- The record that it replaced is the current one again, with a new version, so that an approval can be spent again.
-- KEYS: record, history, history expiries
-- ARGV: 1 nonce of the claim  2 channel  3 index member
local call = redis.call
local version, nonce, waited =
  string.match(call('GET', KEYS[1]) or '', '^%d+ (%d+) inflight (%S+) %d+ %d %d+ %d+ %d+ (%d)\n')
if nonce ~= ARGV[1] then
  return 0
end
local left, life, over = 't ' .. version, 3600000, {}  -- versions go on from here
local replaced = string.match(call('HGET', KEYS[2], 'r') or '', '^' .. version .. ' (%d+)$')
local place = replaced and call('HGET', KEYS[2], 'v:' .. replaced)
if place then
  local time = call('TIME')
  local fence, ends = string.match(place, '^(%d+) (%d+)$')
  local form, rest, state, ttl, identity = string.match(
    call('HGET', KEYS[2], 'e:' .. fence) or '',
    '^(%d+) ' .. replaced .. '( (%a+) %S+ (%d+) [^\n]*\n%d+ %d+ ([^\n]*)\n.*)$')
  local lasts = ends - time[1] * 1000 - math.floor(time[2] / 1000)
  if form and lasts > 0 then
    left = form .. ' ' .. string.format('%.0f', version + 1) .. rest
    life = state == 'inflight' and lasts + ttl or lasts
    over = {'e:' .. fence, 'v:' .. replaced, 'i:' .. identity}
  end
end
call('DEL', KEYS[1])
call('SET', KEYS[1], left, 'PX', string.format('%.0f', life))
call('HDEL', KEYS[2], 'r', unpack(over))
if #over > 0 then
  call('ZREM', KEYS[3], unpack(over))
end
if waited == '1' then
  call('PUBLISH', ARGV[2], version .. ' ' .. ARGV[3])
end
return 1
