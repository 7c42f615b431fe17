-- KEYS: the counter of jobs. ARGV: 1 where they are far jobs that must not be published later; queue and id of each job.
-- Returns for each whether it was there, or 2 where it has to be asked for again: looking through long lists and reading long
-- values takes time, so a script does some of them only.
local is_far = ARGV[1] == '1'
local answer = {}
local finds, bytes = 0, 0

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
  if bytes <= BYTES_MAX then
    local value = redis.call('HGET', P .. 'j:' .. q, id)
    if value then
      bytes = bytes + #value
      end_held(q, id, value)
      done = 1
    else
      done = end_waiting(q, id)
    end
    if is_far and done ~= 2 then
      note_mark(math.max(removal_hour(id), math.floor(now_ms() / HOUR)), id .. q)
    end
  end
  answer[#answer + 1] = done
end
return answer
