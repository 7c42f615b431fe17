-- KEYS: the counter of jobs. ARGV: queue. Entries of jobs that are gone are taken off the head.
local q = ARGV[1]
for _ = 1, 20000 do
  local id = redis.call('LINDEX', P .. 'd:' .. q, 0)
  if not id then return false end
  local value = redis.call('HGET', P .. 'j:' .. q, id)
  if value and string.sub(value, 1, 1) == 'D' then return id end
  redis.call('LPOP', P .. 'd:' .. q)
end
return false
