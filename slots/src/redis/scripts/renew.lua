-- KEYS: m. ARGV: the epoch, for how long.
if is_lost(ARGV[1]) then return 'lost' end
redis.call('HSET', KEYS[1], 'u', text(now_ms() + tonumber(ARGV[2])))
return 'kept'
