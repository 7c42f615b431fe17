-- KEYS: the counters. ARGV: the ends of the range of keys, how many entries at most.
local limit = tonumber(ARGV[3])
return entries(redis.call('ZRANGEBYLEX', NAMES, ARGV[1], ARGV[2], 'LIMIT', 0, limit + 1), limit)
