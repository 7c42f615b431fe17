-- KEYS: m, n, i, k, u, x. ARGV: 1 in a cluster; the shard's two bytes; for each change the tenant's two bytes, its number, the
-- key or nothing, slot, index, what to do (c: cancel, m: move), the due time or nothing, p and the payload or nothing.
local w = tonumber(redis.call('HGET', KEYS[1], 'w') or '0')
-- What is due may have fired under a watermark that the server has lost with the last second.
local fires = math.max(w, now_ms())

local function find(at)
  local tenant, field, slot, index = ARGV[at], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
  if field ~= '' then
    slot, index = by_key(field)
    if not slot then return nil end
  end
  return locate(tenant, slot, index)
end

local function first_of(slot, index, record)
  local _, _, first = parts(record)
  if first == '' then return nil, ARGV[2] .. place(slot, index) end
  local s, i = struct.unpack('>I4I4', first, 3)
  return { text(s), text(i) }, first
end

local function move(at, slot, index, record)
  local due, payload = ARGV[at + 6], ARGV[at + 7]
  local key, asked, _, old = parts(record)
  local known, first = first_of(slot, index, record)
  local into, ms = slot, struct.unpack('>I2', record, 2)
  if due ~= '' then
    local d = tonumber(due)
    into, ms = slot_of(math.min(math.max(d, w), DUE_MAX))
    asked = d < w and struct.pack('>I8', d) or ''
  end
  if payload ~= '' then old = string.sub(payload, 2) end
  local flags = 4 + (key ~= '' and 1 or 0) + (asked ~= '' and 2 or 0)
  local entry = struct.pack('>I1I2', flags, ms) .. string.sub(record, 4, 7) .. key .. asked .. first .. old
  local now_at = append(into, entry)
  local to = place(into, now_at)
  over(slot, index, to)
  if known and (known[1] ~= slot or known[2] ~= index) and redis.call('ZSCORE', KEYS[3], known[1]) then
    redis.call('HSET', P .. 'v:' .. known[1], known[2], to)
  end
  local field = key_of(record)
  local held = field and redis.call('HGET', KEYS[4], field)
  if held and string.sub(held, 1, 8) == place(slot, index) then
    redis.call('HSET', KEYS[4], field, to .. string.sub(held, 9))
  end
  return { 'd', into, now_at }
end

local function changes_nothing(at, slot, record)
  local due, payload = ARGV[at + 6], ARGV[at + 7]
  if due ~= '' and tonumber(due) ~= due_of(slot, record) then return false end
  if payload == '' then return true end
  local _, _, _, old = parts(record)
  return string.sub(payload, 2) == old
end

-- A slot of a cluster that is on its way to another node: whatever will be written is looked at first, so that a key that
-- has gone already refuses all of it.
if ARGV[1] == '1' then
  local function touch(slot)
    redis.call('EXISTS', P .. 'l:' .. slot, P .. 'c:' .. slot, P .. 'v:' .. slot)
  end
  for at = 3, #ARGV, 8 do
    local slot, index, record = find(at)
    if slot then
      touch(slot)
      local known = first_of(slot, index, record)
      if known then touch(known[1]) end
      if ARGV[at + 6] ~= '' then touch((slot_of(math.min(math.max(tonumber(ARGV[at + 6]), w), DUE_MAX)))) end
    end
  end
end

local answer = {}
for at = 3, #ARGV, 8 do
  local slot, index, record, is_over = find(at)
  local said
  if not slot then said = { 'u' }
  elseif is_over then said = { 'c' }
  elseif due_of(slot, record) <= fires then said = { 'f' }
  elseif ARGV[at + 5] == 'c' then
    over(slot, index)
    local field = key_of(record)
    if field then free_key(field, place(slot, index), '2') end
    count(ARGV[at + 1], -1)
    said = { 'd', slot, index }
  elseif changes_nothing(at, slot, record) then said = { 'd', slot, index }
  else said = move(at, slot, index, record)
  end
  answer[#answer + 1] = said
end
return answer
