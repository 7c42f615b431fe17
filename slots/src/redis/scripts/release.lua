-- KEYS: m. ARGV: the epoch. Where nobody has it, it was given back before, and the answer got lost.
if redis.call('HGET', KEYS[1], 'e') ~= ARGV[1] then return 'lost' end
redis.call('HDEL', KEYS[1], 'o', 'u')
return 'released'
