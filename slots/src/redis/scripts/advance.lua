-- KEYS: m. ARGV: the epoch, how far ahead.
if is_lost(ARGV[1]) then return 'lost' end
local w = math.max(tonumber(redis.call('HGET', KEYS[1], 'w') or '0'), math.min(now_ms(), DUE_MAX))
redis.call('HSET', KEYS[1], 'w', text(w))
local stop = math.min(w + tonumber(ARGV[2]), DUE_MAX + 1)
local answer = { text(w) }
for _, slot in ipairs(redis.call('ZRANGEBYSCORE', P .. 'i', '-inf', '(' .. text(math.ceil(stop / 60000)))) do
  answer[#answer + 1] = slot
  answer[#answer + 1] = redis.call('LLEN', P .. 'l:' .. slot)
end
return answer
