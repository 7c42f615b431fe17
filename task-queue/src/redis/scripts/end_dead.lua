-- KEYS: the counter of jobs. ARGV: queue, limit, the ttl in seconds where they are made ready, or nothing. Returns how
-- many, and 1 where there may be more.
local q, limit, ttl = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3] or '')
local now = now_ms()
local done, looked, bytes, more = 0, 0, 0, 1
-- Entries of jobs that are gone are passed over, as far as a script may take.
while done < limit and looked < 10000 and bytes <= BYTES_MAX do
  local id = redis.call('LPOP', P .. 'd:' .. q)
  if not id then
    more = 0
    break
  end
  looked = looked + 1
  local value = redis.call('HGET', P .. 'j:' .. q, id)
  if value and string.sub(value, 1, 1) == 'D' then
    if ttl then
      local expires = ttl == 0 and 0 or now + ttl * 1000
      redis.call('HSET', P .. 'j:' .. q, id, held('R', expires, 1, string.sub(value, 10)))
      redis.call('RPUSH', P .. 'q:' .. q, struct.pack('>I6', now) .. id)
    else
      redis.call('HDEL', P .. 'j:' .. q, id)
    end
    done = done + 1
    bytes = bytes + #value
  end
end
count(q, 'k', -done)
if ttl then count(q, 'n', done) end
return { done, more }
