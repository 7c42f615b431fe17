-- KEYS: m, n, i, k, u, x, and the lists. ARGV: the earliest time of the groups; the minute into which late tasks go; the
-- number of tenants, and each with its count; for each group its place in KEYS, its slot, the number of its records and
-- the records; then tasks one by one: due, slot, tenant, key, record.
-- Answers the watermark where the tasks have to be sorted anew, else of each group the index of its first task, then of each
-- task one by one three: 1 where another one has its key, its slot, its index.
local w = tonumber(redis.call('HGET', KEYS[1], 'w') or '0')
if tonumber(ARGV[1]) < w then return text(w) end
local at = 3
local tenants = tonumber(ARGV[at])
local first_tenant = at + 1
at = at + 1 + 2 * tenants
local groups = tonumber(ARGV[at])
local first_group = at + 1
at = at + 1
for _ = 1, groups do at = at + 3 + tonumber(ARGV[at + 2]) end
local first_single = at
local late_slot, late_ms = slot_of(w)

local call, argv = redis.call, ARGV
-- The tasks one by one: the keys of those that have one, and where they stand.
local fields, with_key = {}, {}
for one = first_single, #argv, 5 do
  if tonumber(argv[one]) < w and late_slot ~= argv[2] then return text(w) end
  local field = argv[one + 3]
  if field ~= '' then
    local n = #fields + 1
    fields[n], with_key[n] = field, one
  end
end
local found, stored, used = {}, {}, {}
for first = 1, #fields, 4000 do
  local last = math.min(first + 3999, #fields)
  local leads = call('HMGET', KEYS[4], unpack(fields, first, last))
  for at = first, last do
    local to = leads[at - first + 1]
    if to then
      local one, s, i, once = with_key[at], led_by(to)
      if s and not gives_up_key(w, s, i, tonumber(argv[one]), argv[one + 4]) then
        found[one] = { s, i }
      elseif once and once ~= '' then
        used[fields[at]] = once
      end
    end
  end
end
-- From here on nothing may fail: each key is one of KEYS, or was looked at.
local answer = {}
at = first_group
for g = 1, groups do
  local key, slot, n = KEYS[tonumber(argv[at])], argv[at + 1], tonumber(argv[at + 2])
  local last = at + 2 + n
  local len
  for from = at + 3, last, 7000 do
    len = call('RPUSH', key, unpack(argv, from, math.min(from + 6999, last)))
  end
  if len == n then call('ZADD', KEYS[3], slot, slot) end
  answer[g] = len - n
  at = last + 1
end
for t = first_tenant, first_tenant + 2 * tenants - 1, 2 do
  call('HINCRBY', KEYS[2], argv[t], argv[t + 1])
end

-- Of the tasks one by one, by slot: their records, and for each the place of its index in the answer and its key.
local slots, records, answer_at, key_of_record = {}, {}, {}, {}
local counts, keys, twice = {}, {}, {}
local n = groups
for one = first_single, #argv, 5 do
  local field, exists = argv[one + 3], found[one]
  if stored[field] then
    -- Of equal keys in one call the first one is stored.
    answer[n + 1] = 1
    twice[n] = stored[field]
  elseif exists then
    answer[n + 1], answer[n + 2], answer[n + 3] = 1, exists[1], exists[2]
  else
    local slot, tenant, record = argv[one + 1], argv[one + 2], argv[one + 4]
    if tonumber(argv[one]) < w then
      -- The time that was asked for stands behind the key.
      local key, _, _, payload = parts(record)
      slot, record = late_slot, struct.pack('>I1I2', string.byte(record) + 2, late_ms) .. string.sub(record, 4, 7) .. key
        .. struct.pack('>I8', tonumber(argv[one])) .. payload
    end
    local of_slot = records[slot]
    if not of_slot then
      of_slot = {}
      slots[#slots + 1] = slot
      records[slot], answer_at[slot], key_of_record[slot] = of_slot, {}, {}
    end
    local place = #of_slot + 1
    of_slot[place] = record
    answer_at[slot][place], key_of_record[slot][place] = n, field
    answer[n + 1], answer[n + 2], answer[n + 3] = 0, slot, 0
    if field ~= '' then stored[field] = n end
    counts[tenant] = (counts[tenant] or 0) + 1
  end
  n = n + 3
end
for _, slot in ipairs(slots) do
  local of_slot, ats, fields_of = records[slot], answer_at[slot], key_of_record[slot]
  local len
  for first = 1, #of_slot, 4000 do
    len = call('RPUSH', P .. 'l:' .. slot, unpack(of_slot, first, math.min(first + 3999, #of_slot)))
  end
  local index = len - #of_slot
  if index == 0 then call('ZADD', KEYS[3], slot, slot) end
  local minute = tonumber(slot)
  for place = 1, #of_slot do
    local field = fields_of[place]
    answer[ats[place] + 3] = index
    if field ~= '' then
      -- A task that came by a queue loses its key: the key stays marked as used.
      if used[field] then mark(field, '1', used[field]) end
      local k = #keys
      keys[k + 1], keys[k + 2] = field, struct.pack('>I4I4', minute, index)
    end
    index = index + 1
  end
end
for first = 1, #keys, 4000 do
  call('HSET', KEYS[4], unpack(keys, first, math.min(first + 3999, #keys)))
end
for tenant, more in pairs(counts) do call('HINCRBY', KEYS[2], tenant, text(more)) end
for place, before in pairs(twice) do
  answer[place + 2], answer[place + 3] = answer[before + 2], answer[before + 3]
end
return answer
