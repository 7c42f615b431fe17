-- KEYS: the counter of jobs. ARGV: queue and id of each job.
local answer = {}
for at = 1, #ARGV, 2 do
  local q, id = ARGV[at], ARGV[at + 1]
  local value = redis.call('HGET', P .. 'j:' .. q, id)
  if value then
    redis.call('HDEL', P .. 'j:' .. q, id)
    local state = string.sub(value, 1, 1)
    if state == 'L' then
      redis.call('ZREM', P .. 'L', id .. q)
    else
      count(q, state == 'R' and 'n' or 'k', -1)
    end
    answer[#answer + 1] = 1
  else
    local key, ready = list_of(q, id)
    local place = find(key, id)
    if place then
      redis.call('LSET', key, place, TOMB .. id)
      local w = tonumber(redis.call('HGET', P .. 'm:' .. q, 'w') or '0')
      if not ready or ready <= w then
        count(q, 'n', -1)
      else
        count(q, 'd', -1)
        local gone = redis.call('HINCRBY', P .. 'x:' .. q, text(ready), 1)
        if gone == redis.call('LLEN', key) then
          redis.call('DEL', key)
          redis.call('ZREM', P .. 'i:' .. q, text(ready))
          redis.call('HDEL', P .. 'x:' .. q, text(ready))
        end
      end
    end
    answer[#answer + 1] = place and 1 or 0
  end
end
return answer
