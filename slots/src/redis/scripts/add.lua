-- KEYS: m, n, i, k, u, x, and the lists. ARGV: the earliest time of the groups; the minute into which late tasks go; the
-- number of tenants, and each with its count; for each group its place in KEYS, its slot, the number of its records and
-- the records; then tasks one by one: due, place in KEYS, slot, tenant, key, record, record where it is late.
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

local found, stored, used = {}, {}, {}
for one = first_single, #ARGV, 7 do
  if tonumber(ARGV[one]) < w and late_slot ~= ARGV[2] then return text(w) end
  if ARGV[one + 4] ~= '' then
    local s, i, once = by_key(ARGV[one + 4])
    if s and not gives_up_key(w, s, i, tonumber(ARGV[one]), ARGV[one + 5]) then
      found[one] = { 1, s, i }
    elseif once and once ~= '' then
      used[ARGV[one + 4]] = once
    end
  end
end
-- From here on nothing may fail: each key is one of KEYS, or was looked at.
local answer = {}
at = first_group
for g = 1, groups do
  local key, slot, n = KEYS[tonumber(ARGV[at])], ARGV[at + 1], tonumber(ARGV[at + 2])
  local last = at + 2 + n
  local len
  for from = at + 3, last, 7000 do
    len = redis.call('RPUSH', key, unpack(ARGV, from, math.min(from + 6999, last)))
  end
  if len == n then redis.call('ZADD', KEYS[3], slot, slot) end
  answer[g] = len - n
  at = last + 1
end
for t = first_tenant, first_tenant + 2 * tenants - 1, 2 do
  redis.call('HINCRBY', KEYS[2], ARGV[t], ARGV[t + 1])
end
for one = first_single, #ARGV, 7 do
  local field = ARGV[one + 4]
  -- Of equal keys in one call the first one is stored.
  local exists = stored[field] or found[one]
  if exists then
    answer[#answer + 1] = exists
  else
    local slot, record = ARGV[one + 2], ARGV[one + 5]
    if tonumber(ARGV[one]) < w then
      local late = ARGV[one + 6]
      slot, record = late_slot, string.sub(late, 1, 1) .. struct.pack('>I2', late_ms) .. string.sub(late, 4)
    end
    local index = append(slot, record)
    if field ~= '' then
      -- A task that came by a queue loses its key: the key stays marked as used.
      if used[field] then mark(field, '1', used[field]) end
      redis.call('HSET', KEYS[4], field, place(slot, index))
      stored[field] = { 1, slot, index }
    end
    redis.call('HINCRBY', KEYS[2], ARGV[one + 3], 1)
    answer[#answer + 1] = { 0, slot, index }
  end
end
return answer
