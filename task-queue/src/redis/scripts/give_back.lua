-- KEYS: the counter of jobs. ARGV: queue and id of each job.
for at = 1, #ARGV, 2 do
  local q, id = ARGV[at], ARGV[at + 1]
  local value = redis.call('HGET', P .. 'j:' .. q, id)
  if value and string.sub(value, 1, 1) == 'L' then
    local expires, tries = struct.unpack('>I6I2', value, 2)
    redis.call('HSET', P .. 'j:' .. q, id, held('R', expires, math.min(tries + 1, 65535), string.sub(value, 10)))
    redis.call('ZREM', P .. 'L', id .. q)
    local published, delay = times(id, 1)
    local since = delay == 0 and published or ready_ms(published, delay)
    redis.call('LPUSH', P .. 'q:' .. q, struct.pack('>I6', since) .. id)
    count(q, 'n', 1)
  end
end
return 1
