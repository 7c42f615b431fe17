-- KEYS: the counter of calls. ARGV: the interval in milliseconds. An interval that was longer ends now.
local n = redis.call('INCR', KEYS[1])
local left = redis.call('PTTL', KEYS[1])
if left < 0 or left > tonumber(ARGV[1]) then
  redis.call('SET', KEYS[1], 1, 'PX', ARGV[1])
  n = 1
end
return n
