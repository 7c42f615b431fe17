-- KEYS: the counter of jobs. ARGV: 0, or where they are far jobs that must not be published later, how many of these the shard
-- may remember; queue and id of each job. Returns for each whether it was there, or 2 where it has to be asked for again:
-- looking through long lists and reading long values takes time, so a script does some of them only. For far jobs that there is
-- no room to remember it changes nothing, and returns 3 alone.
local removals_max = tonumber(ARGV[1])
local is_far = removals_max > 0
local answer = {}

if is_far then
  local fresh = 0
  for at = 2, #ARGV, 2 do
    if not redis.call('ZSCORE', P .. 'v', ARGV[at + 1] .. ARGV[at]) then fresh = fresh + 1 end
  end
  if fresh > 0 and redis.call('ZCARD', P .. 'v') + fresh > removals_max then return { 3 } end
end
local finds, bytes = 0, 0

-- Jobs of one queue whose leases are over already. Their values are not read, which may be long.
local acked, acked_q = {}, nil
local function delete_acked()
  if #acked > 0 then redis.call('HDEL', P .. 'j:' .. acked_q, unpack(acked)) end
  acked = {}
end

local function end_held(q, id, value)
  redis.call('HDEL', P .. 'j:' .. q, id)
  local state = string.sub(value, 1, 1)
  if state == 'L' then
    redis.call('ZREM', P .. 'L', id .. q)
  else
    count(q, state == 'R' and 'n' or 'k', -1)
  end
end

local function end_waiting(q, id)
  local key, ready = list_of(q, id)
  if redis.call('LLEN', key) > 1000 then
    if finds == 16 then return 2 end
    finds = finds + 1
  end
  local place = find(key, id)
  if not place then return 0 end
  redis.call('LSET', key, place, TOMB .. id)
  local w = tonumber(redis.call('HGET', P .. 'm:' .. q, 'w') or '0')
  if not ready or ready <= w then
    count(q, 'n', -1)
    return 1
  end
  count(q, 'd', -1)
  local gone = redis.call('HINCRBY', P .. 'x:' .. q, text(ready), 1)
  if gone == redis.call('LLEN', key) then
    redis.call('DEL', key)
    redis.call('ZREM', P .. 'i:' .. q, text(ready))
    redis.call('HDEL', P .. 'x:' .. q, text(ready))
  end
  return 1
end

for at = 2, #ARGV, 2 do
  local q, id = ARGV[at], ARGV[at + 1]
  local done = 2
  -- A server that is full refuses a script no more once that has written anything, so that far jobs are looked at first.
  if not is_far and redis.call('ZREM', P .. 'L', id .. q) == 1 then
    if q ~= acked_q or #acked == 4000 then
      delete_acked()
      acked_q = q
    end
    acked[#acked + 1] = id
    done = 1
  elseif bytes <= BYTES_MAX then
    -- One may be named twice.
    delete_acked()
    local value = redis.call('HGET', P .. 'j:' .. q, id)
    if value then
      bytes = bytes + #value
      end_held(q, id, value)
      done = 1
    else
      done = end_waiting(q, id)
    end
  end
  if is_far and done ~= 2 then
    local hour = math.max(removal_hour(id), math.floor(now_ms() / HOUR))
    redis.call('ZADD', P .. 'v', 'NX', text(hour), id .. q)
    -- Processes of the release before look there.
    note_mark(hour, id .. q)
  end
  answer[#answer + 1] = done
end
delete_acked()
return answer
