-- KEYS: the counter of jobs. ARGV: queue, limit, the ttl in seconds where they are made ready, or nothing.
local q, limit, ttl = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3] or '')
local now = now_ms()
local done, looked = 0, 0
-- Entries of jobs that are gone are passed over, as far as a script may take.
while done < limit and looked < 100000 do
  local ids = redis.call('LPOP', P .. 'd:' .. q, math.min(limit - done, 500))
  if not ids then break end
  looked = looked + #ids
  for at, value in ipairs(redis.call('HMGET', P .. 'j:' .. q, unpack(ids))) do
    local id = ids[at]
    if value and string.sub(value, 1, 1) == 'D' then
      if ttl then
        local expires = ttl == 0 and 0 or now + ttl * 1000
        redis.call('HSET', P .. 'j:' .. q, id, held('R', expires, 1, string.sub(value, 10)))
        redis.call('RPUSH', P .. 'q:' .. q, struct.pack('>I6', now) .. id)
      else
        redis.call('HDEL', P .. 'j:' .. q, id)
      end
      done = done + 1
    end
  end
end
count(q, 'k', -done)
if ttl then count(q, 'n', done) end
return done
