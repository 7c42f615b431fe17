-- KEYS: the counter of jobs. ARGV: queue, id.
local q, id = ARGV[1], ARGV[2]
local value = redis.call('HGET', P .. 'j:' .. q, id)
if not value then
  local _, record = find((list_of(q, id)), id)
  if record then
    local expires, tries = terms(record)
    value = held('R', expires, tries, record)
  end
end
return { text(now_ms()), value }
