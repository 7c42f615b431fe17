-- KEYS: m. ARGV: the epoch, the slot.
if is_lost(ARGV[1]) then return 'lost' end
return { redis.call('GET', P .. 'f:' .. ARGV[2]) or '', redis.call('HGETALL', P .. 'a:' .. ARGV[2]) }
