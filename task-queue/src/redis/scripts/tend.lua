-- KEYS: the counter of jobs. ARGV: how many leases at most.
local now = now_ms()
local most = tonumber(ARGV[1])
local ended = redis.call('ZRANGEBYSCORE', P .. 'L', '-inf', text(now), 'LIMIT', 0, most)
local again, dead, expired, bytes = 0, 0, 0, 0
local cut = #ended == most and 1 or 0
for _, member in ipairs(ended) do
  if bytes > BYTES_MAX then
    cut = 1
    break
  end
  local id, q = string.sub(member, 1, 16), string.sub(member, 17)
  local value = redis.call('HGET', P .. 'j:' .. q, id)
  if value and string.sub(value, 1, 1) == 'L' then
    bytes = bytes + #value
    local expires, tries = struct.unpack('>I6I2', value, 2)
    if tries == 0 then
      redis.call('HSET', P .. 'j:' .. q, id, 'D' .. string.sub(value, 2))
      redis.call('RPUSH', P .. 'd:' .. q, id)
      count(q, 'k', 1)
      dead = dead + 1
    elseif expires ~= 0 and expires <= now then
      redis.call('HDEL', P .. 'j:' .. q, id)
      expired = expired + 1
    else
      redis.call('HSET', P .. 'j:' .. q, id, 'R' .. string.sub(value, 2))
      redis.call('RPUSH', P .. 'q:' .. q, struct.pack('>I6', now) .. id)
      count(q, 'n', 1)
      again = again + 1
    end
  end
  redis.call('ZREM', P .. 'L', member)
end
return { again, dead, expired, cut }
