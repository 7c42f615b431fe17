-- KEYS: the counters. ARGV: how many entries at most.
local now, limit = clock(), tonumber(ARGV[1])
local keys = redis.call('ZRANGEBYSCORE', WAKES, '-inf', text(now), 'LIMIT', 0, limit + 1)
local found = entries(keys, limit)
if found.err then return found end
return { text(now), found }
