-- Take the claim on one intent, or return what is there (begin and take_over of the port).
-- KEYS: record, history, history expiries, index of the tenant; mark of the call, if its id is tied to its arguments
-- ARGV: 1 index member  2 channel  3 version to replace ('' = only if there is none)  4 identity  5 how long to keep it, ms
--       6 minus the longest time an index entry of such a claim can be needed, ms
--       7 the record's first line between version and time: ' inflight NONCE TTL 0 LIFE LEASE '
--       8 the record's second line from its identity on, and all after it  9 mark  10 how long to keep that, ms
-- Returns the version if the claim is new, 'SECONDS MICROSECONDS OWN RECORD' of what is there, or, where that does
-- not say it all, {1, version, now} and {0, now, record, own}; own is 1 if it is the current record. {2, mark} if the id
-- of the call stands for other arguments.
-- One string or number is answered much faster than a table.
local call = redis.call
if KEYS[5] then
  local kept = call('GET', KEYS[5])
  if not kept then
    call('SET', KEYS[5], ARGV[9], 'PX', ARGV[10])
  elseif kept ~= ARGV[9] then
    return {2, kept}
  end
end
local time = call('TIME')
local flat = call('GET', KEYS[1])
local version, state, nonce, identity
if flat then
  version, state, nonce, identity = string.match(flat, '^1 (%d+) (%a+) (%S+) [^\n]*\n%d+ %d+ ([^\n]*)')
  if not version then
    version = string.match(flat, '^t (%d+)$')  -- cleared: versions go on from there
    if not version then
      return time[1] .. ' ' .. time[2] .. ' 1 ' .. flat  -- of a newer release: neither reused nor replaced
    end
  elseif nonce == string.match(ARGV[7], '^ %a+ (%S+)') then
    -- this very operation was executed before its answer got lost
    return {1, version, time[1] * 1000 + math.floor(time[2] / 1000)}
  end
end

local seen = state and version == ARGV[3]
local own = state and identity == ARGV[4] and 1
local place = not own and call('HGET', KEYS[2], 'i:' .. ARGV[4])
if place then
  local fence, over = string.match(place, '^(%d+) (%d+)$')
  if state and fence == string.match(flat, '\n(%d+)') then
    own = 1
  elseif tonumber(over) > time[1] * 1000 + math.floor(time[2] / 1000) then
    own = call('HGET', KEYS[2], 'e:' .. fence)
    seen = seen or own and not state and string.match(own, '^%d+ (%d+) ') == ARGV[3]
  end
end
-- A takeover replaces the record that its caller has seen, unless its identity has a result by now.
if not seen or string.find(own == 1 and flat or own or '', '^%d+ %d+ done ') then
  if state and (not own or own == 1) then
    return time[1] .. ' ' .. time[2] .. (own and ' 1 ' or ' 0 ') .. flat
  elseif state or own then  -- or a later execution expired before the asking call's own one
    return {0, time[1] * 1000 + math.floor(time[2] / 1000), state and flat or false, own}
  end
end

local micros = #time[2] == 6 and time[1] .. time[2] or string.format('%s%06d', time[1], time[2])
local now = string.sub(micros, 1, -4)
local fresh = micros
if version and tonumber(version) >= tonumber(micros) then
  fresh = string.format('%.0f', version + 1)
end
if ARGV[3] ~= '' then
  call('HDEL', KEYS[2], 'i:' .. ARGV[4])
  if state and (identity ~= ARGV[4] or state ~= 'inflight') then
    -- The replaced execution stays findable for its identity, and for who shared it, until it would have expired.
    local life, updated, current, head =
      string.match(flat, '^%d+ %d+ %a+ %S+ %d+ %d (%d+) %d+ (%d+) %d\n(%d+) [^\n]*\n([^\n]*\n[^\n]*\n[^\n]*)')
    local ends = string.format('%.0f', math.floor(updated / 1000) + life)
    if tonumber(ends) > tonumber(now) then
      local execution, settled, place = 'e:' .. current, 'v:' .. version, current .. ' ' .. ends
      -- 'r': what release.lua puts back
      call('HSET', KEYS[2], execution, flat, settled, place, 'h', head, 'r', fresh .. ' ' .. version)
      call('ZADD', KEYS[3], ends, execution, ends, settled)
      if identity ~= ARGV[4] then
        call('HSET', KEYS[2], 'i:' .. identity, place)
        call('ZADD', KEYS[3], ends, 'i:' .. identity)
      end
    end
    local over = call('ZRANGEBYSCORE', KEYS[3], '-inf', now, 'LIMIT', 0, 16)
    if #over > 0 then
      call('HDEL', KEYS[2], unpack(over))
      call('ZREM', KEYS[3], unpack(over))
    end
    if call('PTTL', KEYS[2]) < ends - now then
      call('PEXPIREAT', KEYS[2], ends)
      call('PEXPIREAT', KEYS[3], ends)
    end
  end
end

call('SET', KEYS[1], '1 ' .. fresh .. ARGV[7] .. micros .. ' 0\n' .. fresh .. ' ' .. micros .. ' ' .. ARGV[8], 'PX', ARGV[5])

-- Times stand below zero: a new entry is the first of the set, where it is put fastest. One member keeps the longest
-- time an entry can be needed; its length keeps Redis from searching small sets from end to end. Every 16th claim drops
-- what is older; what lives on, as an unknown outcome does until somebody settles it, is looked at again as late.
local mark = 'the longest time that an entry of this index can be needed, in milliseconds'
call('ZADD', KEYS[4], 'LT', '-' .. now, ARGV[1], ARGV[6], mark)
if time[2] % 16 == 0 then
  local horizon = -call('ZSCORE', KEYS[4], mark)
  local over = call('ZRANGEBYSCORE', KEYS[4], horizon - now, -1e12, 'LIMIT', 0, 64)
  local record, history = string.sub(KEYS[1], 1, -1 - #ARGV[1]), string.sub(KEYS[2], 1, -1 - #ARGV[1])
  for _, member in ipairs(over) do
    if call('EXISTS', record .. member, history .. member) == 0 then
      call('ZREM', KEYS[4], member)
    else
      call('ZADD', KEYS[4], '-' .. now, member)
    end
  end
  call('PEXPIRE', KEYS[4], horizon)
end

if state and string.find(flat, '^[^\n]* 1\n') then  -- somebody waits for the replaced one
  redis.call('PUBLISH', ARGV[2], version .. ' ' .. ARGV[1])
end
if fresh == micros then
  return tonumber(fresh)
end
return {1, fresh, tonumber(now)}
