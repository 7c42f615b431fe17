-- KEYS: m, n, i, k, u, x. ARGV: 1 in a cluster; for each key the tenant's two bytes, its number, the key, 1 where it may be
-- marked though nothing is known of it.
local w = tonumber(redis.call('HGET', KEYS[1], 'w') or '0')
-- What is due may have fired under a watermark that the server has lost with the last second.
local fires = math.max(w, now_ms())

-- A slot of a cluster that is on its way to another node refuses all of it here.
if ARGV[1] == '1' then
  for at = 2, #ARGV, 4 do
    local slot, index = by_key(ARGV[at + 2])
    if slot then
      slot = locate(ARGV[at], slot, index)
      if slot then redis.call('EXISTS', P .. 'l:' .. slot, P .. 'c:' .. slot, P .. 'v:' .. slot) end
    end
  end
end

local function cancel(tenant, number, field, may_mark)
  local slot, index, once = by_key(field)
  local record, is_over
  if slot then slot, index, record, is_over = locate(tenant, slot, index) end
  if slot then
    if is_over then return { 'c' } end
    if due_of(slot, record) <= fires then return { 'f' } end
    over(slot, index)
    redis.call('HDEL', KEYS[4], field)
    mark(field, '2', once ~= '' and once or '\0\0\0\0')
    count(number, -1)
    return { 'd', slot, index }
  end
  if once and once ~= '' then return { 'f' } end
  local used = redis.call('HGET', KEYS[5], field)
  if used then
    local how = string.sub(used, 1, 1)
    if how == '1' then return { 'f' } end
    -- The caller may rely on this cancel from now on: the mark lasts as long as a new one.
    mark(field, how, string.sub(used, 2))
    return { 'c' }
  end
  if not may_mark then return { 'u' } end
  mark(field, '3', '\0\0\0\0')
  redis.call('HINCRBY', KEYS[2], number, 1)
  return { 'm' }
end

local answer = {}
for at = 2, #ARGV, 4 do
  answer[#answer + 1] = cancel(ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3] == '1')
end
return answer
