-- KEYS: the counter of calls. ARGV: the interval in milliseconds.
local n = redis.call('INCR', KEYS[1])
if n == 1 then redis.call('PEXPIRE', KEYS[1], ARGV[1]) end
return n
