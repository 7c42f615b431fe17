-- KEYS: the counter of jobs. ARGV: queue. Returns 1 where there is more.
local q = ARGV[1]
local now = now_ms()
advance(q, now)
redis.call('UNLINK', P .. 'r:' .. q)
for _, at in ipairs(redis.call('ZRANGEBYSCORE', P .. 'i:' .. q, '-inf', text(now), 'LIMIT', 0, 1000)) do
  redis.call('UNLINK', P .. 'b:' .. at .. ':' .. q)
  redis.call('ZREM', P .. 'i:' .. q, at)
end
local bytes = 0
for _ = 1, 1000 do
  if bytes > BYTES_MAX then break end
  local entry = redis.call('LPOP', P .. 'q:' .. q)
  if not entry then break end
  local id = string.sub(entry, 7)
  local value = redis.call('HGET', P .. 'j:' .. q, id)
  if value and string.sub(value, 1, 1) == 'R' then
    redis.call('HDEL', P .. 'j:' .. q, id)
    bytes = bytes + #value
  end
end
-- What the lists still hold that are counted as ready: as many are left at most.
local m = P .. 'm:' .. q
local again = redis.call('LLEN', P .. 'q:' .. q)
local lists = redis.call('ZRANGEBYSCORE', P .. 'i:' .. q, '-inf', redis.call('HGET', m, 'w') or '0', 'LIMIT', 0, 1000)
local n = tonumber(redis.call('HGET', m, 'n') or '0')
if #lists < 1000 then
  local left = again
  for _, at in ipairs(lists) do left = left + redis.call('LLEN', P .. 'b:' .. at .. ':' .. q) end
  count(q, 'n', math.min(left - n, 0))
end
if again > 0 or (lists[1] and tonumber(lists[1]) <= now) then return 1 end
return 0
