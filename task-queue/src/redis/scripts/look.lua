-- KEYS: the counter of jobs. ARGV: queues.
local now = now_ms()
local answer = {}
for _, q in ipairs(ARGV) do
  advance(q, now)
  for _, n in ipairs(redis.call('HMGET', P .. 'm:' .. q, 'n', 'd', 'k')) do
    answer[#answer + 1] = tonumber(n or '0')
  end
end
return answer
