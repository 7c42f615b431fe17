-- KEYS: m. ARGV: the epoch, how far ahead, the last turn that the owner knows of, the slots that it reads.
if is_lost(ARGV[1], ARGV[3]) then return 'lost' end
local m = redis.call('HMGET', KEYS[1], 'w', 't')
local w = math.max(tonumber(m[1] or '0'), math.min(now_ms(), DUE_MAX))
local turn = text(tonumber(m[2] or '0') + 1)
local stop = math.min(w + tonumber(ARGV[2]), DUE_MAX + 1)
local slots, reads = {}, {}
for _, slot in ipairs(redis.call('ZRANGEBYSCORE', P .. 'i', '-inf', '(' .. text(math.ceil(stop / 60000)))) do
  slots[#slots + 1] = slot
  slots[#slots + 1] = redis.call('LLEN', P .. 'l:' .. slot)
end
for at = 4, #ARGV do reads[#reads + 1] = redis.call('LLEN', P .. 'l:' .. ARGV[at]) end
redis.call('HSET', KEYS[1], 'w', text(w), 't', turn)
return { text(w), turn, slots, reads }
