-- KEYS: m, n, i, k, u, x, and the lists. ARGV: how long keys are kept; the minute into which late tasks go; how much longer
-- marks are kept; then for each task: written, due, slot, tenant, key, digest, record, record where it is late.
local m = redis.call('HMGET', KEYS[1], 'w', 'qk', 'qf')
local w, now = tonumber(m[1] or '0'), now_ms()
local late_slot, late_ms = slot_of(w)
for one = 4, #ARGV, 8 do
  if tonumber(ARGV[one + 1]) < w and late_slot ~= ARGV[2] then return text(w) end
end

-- Marks that ended by an earlier, shorter time are gone: what was written before is not judged any more.
local kept, kept_before, from = tonumber(ARGV[1]), tonumber(m[2] or ARGV[1]), tonumber(m[3] or '0')
if kept > kept_before then from = math.max(from, now - kept_before) end
local oldest = math.max(from, now - kept)

-- All that is looked at is looked at before the first write: a slot of a cluster that is on its way refuses all of it here.
local of_batch, gone, awaited = {}, {}, {}
local function judge(field, written, due, digest, record)
  local before = of_batch[field]
  if before then return before == digest and 'k' or 'o' end
  local slot, index, once = by_key(field)
  if once and once ~= '' then
    if not slot then gone[field] = once end
    return once == digest and 'k' or 'o'
  end
  local is_held = slot and not gives_up_key(w, slot, index, due, record)
  if is_held and is_same(slot, redis.call('LINDEX', P .. 'l:' .. slot, index), due, record) then return 'k' end
  local used = redis.call('HGET', KEYS[5], field)
  if used then
    local how = string.sub(used, 1, 1)
    if how == '1' then return string.sub(used, 2) == digest and 'k' or 'o' end
    if how == '2' or awaited[field] then return 'c' end
    awaited[field] = digest
    return 'b'
  end
  if is_held then return 'o' end
  if written < oldest then return 't' end
  of_batch[field] = digest
  return 's'
end

local said = {}
for one = 4, #ARGV, 8 do
  said[one] = judge(ARGV[one + 4], tonumber(ARGV[one]), tonumber(ARGV[one + 1]), ARGV[one + 5], ARGV[one + 6])
end

-- A mark whose add has never come stops to count. Deleting comes before what a full server refuses: behind a write it refuses
-- nothing more.
local function delete_marks()
  local over_ms = text(now - kept - tonumber(ARGV[3]))
  for _, field in ipairs(redis.call('ZRANGEBYSCORE', KEYS[6], '-inf', over_ms, 'LIMIT', 0, 500)) do
    local used = redis.call('HGET', KEYS[5], field)
    redis.call('HDEL', KEYS[5], field)
    redis.call('ZREM', KEYS[6], field)
    if used and string.sub(used, 1, 1) == '3' then count(text((struct.unpack('>I2', field))), -1) end
  end
end

-- A batch is not stored beyond the server's memory: it has to be refused before it deletes anything.
if #ARGV == 3 then delete_marks() end
local answer = { string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') or '' }
if m[2] ~= ARGV[1] or text(from) ~= (m[3] or '0') then
  redis.call('HSET', KEYS[1], 'qk', ARGV[1], 'qf', text(from))
end
for field, digest in pairs(gone) do
  mark(field, '1', digest)
  redis.call('HDEL', KEYS[4], field)
end
for one = 4, #ARGV, 8 do
  local what, tenant, field, digest = said[one], ARGV[one + 3], ARGV[one + 4], ARGV[one + 5]
  if what == 's' then
    local slot, record = ARGV[one + 2], ARGV[one + 6]
    if tonumber(ARGV[one + 1]) < w then
      local late = ARGV[one + 7]
      slot, record = late_slot, string.sub(late, 1, 1) .. struct.pack('>I2', late_ms) .. string.sub(late, 4)
    end
    local index = append(slot, record)
    redis.call('HSET', KEYS[4], field, place(slot, index) .. digest)
    redis.call('HINCRBY', KEYS[2], tenant, 1)
    answer[#answer + 1] = { what, slot, index }
  else
    if what == 'b' then mark(field, '2', digest) end
    answer[#answer + 1] = { what }
  end
end
if #ARGV > 3 then delete_marks() end
return answer
