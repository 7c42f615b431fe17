-- KEYS: the instances. ARGV: the instance, for how long.
local now, ttl = now_ms(), tonumber(ARGV[2])
redis.call('HSET', KEYS[1], ARGV[1], text(now + ttl) .. ':' .. text(ttl))
local all, living = redis.call('HGETALL', KEYS[1]), {}
for at = 1, #all, 2 do
  local stop, own = string.match(all[at + 1], '^(%d+):(%d+)$')
  stop, own = tonumber(stop), tonumber(own)
  if stop <= now then
    redis.call('HDEL', KEYS[1], all[at])
  else
    -- The clock may have gone back since.
    if stop > now + own then redis.call('HSET', KEYS[1], all[at], text(now + own) .. ':' .. text(own)) end
    living[#living + 1] = all[at]
  end
end
return living
