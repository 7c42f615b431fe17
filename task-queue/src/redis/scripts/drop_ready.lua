-- KEYS: the counter of jobs. ARGV: queue. Returns 1 where there is more.
local q = ARGV[1]
local w = advance(q, now_ms())
redis.call('UNLINK', P .. 'r:' .. q)
for _, at in ipairs(redis.call('ZRANGEBYSCORE', P .. 'i:' .. q, '-inf', text(w), 'LIMIT', 0, 1000)) do
  redis.call('UNLINK', P .. 'b:' .. at .. ':' .. q)
  redis.call('ZREM', P .. 'i:' .. q, at)
end
for _, entry in ipairs(redis.call('LPOP', P .. 'q:' .. q, 1000) or {}) do
  local id = string.sub(entry, 7)
  local value = redis.call('HGET', P .. 'j:' .. q, id)
  if value and string.sub(value, 1, 1) == 'R' then redis.call('HDEL', P .. 'j:' .. q, id) end
end
local left = redis.call('LLEN', P .. 'q:' .. q)
if redis.call('ZCOUNT', P .. 'i:' .. q, '-inf', text(w)) + left > 0 then return 1 end
if redis.call('EXISTS', P .. 'm:' .. q) == 1 then redis.call('HSET', P .. 'm:' .. q, 'n', 0) end
return 0
