-- KEYS: m. ARGV: the instance, for how long.
local now, stop = now_ms(), now_ms() + tonumber(ARGV[2])
local m = redis.call('HMGET', KEYS[1], 'o', 'u')
if m[1] and m[1] ~= ARGV[1] then
  local held = tonumber(m[2] or '0')
  -- The clock may have gone back since.
  if held > stop then
    held = stop
    redis.call('HSET', KEYS[1], 'u', text(held))
  end
  if held > now then return { m[1], held - now } end
end
-- At least the time, in microseconds: an epoch that was given and lost is not given again.
local t = redis.call('TIME')
local epoch = math.max(tonumber(redis.call('HGET', KEYS[1], 'e') or '0') + 1, t[1] * 1000000 + t[2])
redis.call('HSET', KEYS[1], 'o', ARGV[1], 'u', text(stop), 'e', text(epoch))
return text(epoch)
