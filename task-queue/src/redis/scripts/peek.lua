-- KEYS: the counter of jobs. ARGV: queue. Entries of jobs that are gone are taken off the heads of its lists. Returns the
-- clock, and the job, or nothing, or 1 where it has to be asked again.
local q = ARGV[1]
local now = now_ms()
advance(q, now)
for _ = 1, 2000 do
  local kind, key, since = oldest(q, now)
  if not kind then return { text(now), false } end
  local entry = redis.call('LINDEX', key, 0)
  if kind == 'q' then
    local value = redis.call('HGET', P .. 'j:' .. q, string.sub(entry, 7))
    if value and string.sub(value, 1, 1) == 'R' then return { text(now), value } end
  elseif string.sub(entry, 1, 1) ~= TOMB then
    local expires, tries = terms(entry)
    return { text(now), held('R', expires, tries, entry) }
  end
  pop(kind, key, since, q, 1)
end
return { text(now), 1 }
