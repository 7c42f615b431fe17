-- KEYS: the counter of jobs. ARGV: queue, id and end of the lease of each job. Returns how many of them were seen to.
local bytes = 0
for at = 1, #ARGV, 3 do
  if bytes > BYTES_MAX then return (at - 1) / 3 end
  local q, id, ends = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  -- Another end is that of somebody else's lease.
  local score = redis.call('ZSCORE', P .. 'L', id .. q)
  local value = score and tonumber(score) == tonumber(ends) and redis.call('HGET', P .. 'j:' .. q, id)
  if value and string.sub(value, 1, 1) == 'L' then
    local expires, tries = struct.unpack('>I6I2', value, 2)
    redis.call('HSET', P .. 'j:' .. q, id, held('R', expires, math.min(tries + 1, 65535), string.sub(value, 10)))
    redis.call('ZREM', P .. 'L', id .. q)
    local published, delay = times(id, 1)
    local since = delay == 0 and published or ready_ms(published, delay)
    redis.call('LPUSH', P .. 'q:' .. q, struct.pack('>I6', since) .. id)
    count(q, 'n', 1)
    bytes = bytes + #value
  end
end
return #ARGV / 3
