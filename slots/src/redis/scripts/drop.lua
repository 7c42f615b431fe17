-- KEYS: m, i, and l, c, f, v, a of the slot. ARGV: the epoch, the slot, the entries, the last turn that the owner
-- knows of.
if is_lost(ARGV[1], ARGV[4]) then return 'lost' end
-- A slot without entries may be there for the ids of the far tier alone.
if not redis.call('ZSCORE', KEYS[2], ARGV[2]) then return 'gone' end
local entries = redis.call('LLEN', KEYS[3])
local w = tonumber(redis.call('HGET', KEYS[1], 'w') or '0')
if tonumber(ARGV[2]) >= math.floor(w / 60000) or entries > tonumber(ARGV[3]) then return 'stays' end
redis.call('UNLINK', KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7])
redis.call('ZREM', KEYS[2], ARGV[2])
return 'gone'
