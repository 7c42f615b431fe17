-- KEYS: m, n, i. ARGV: 1 in a cluster; the field of the far log; the number of the batch; that of the batch which it
-- follows or nothing; for each task: due, its slot, the tenant's number, slot and index of the id that its caller knows,
-- record.
local w = tonumber(redis.call('HGET', KEYS[1], 'w') or '0')
local last = redis.call('HGET', KEYS[1], ARGV[2])
if last == ARGV[3] then return 'before' end
if last and tonumber(last) > tonumber(ARGV[3]) then return last end
if ARGV[4] ~= '' and (last or '0') ~= ARGV[4] then return last or '0' end
if #ARGV < 5 then return 'stored' end
local late_slot, late_ms = slot_of(w)
local this_minute = math.floor(w / 60000)

-- A slot of a cluster that is on its way to another node refuses all of it here.
if ARGV[1] == '1' then
  redis.call('EXISTS', KEYS[2], KEYS[3], P .. 'l:' .. late_slot)
  for at = 5, #ARGV, 6 do
    redis.call('EXISTS', P .. 'l:' .. ARGV[at + 1], P .. 'v:' .. ARGV[at + 3])
  end
end

for at = 5, #ARGV, 6 do
  local slot, known, record = ARGV[at + 1], ARGV[at + 3], ARGV[at + 5]
  if tonumber(ARGV[at]) < w then
    -- The time that was asked for stands behind the route: the record has no key.
    local head = struct.pack('>I1I2', string.byte(record) + 2, late_ms) .. string.sub(record, 4, 7)
    slot, record = late_slot, head .. struct.pack('>I8', tonumber(ARGV[at])) .. string.sub(record, 8)
  end
  local index = append(slot, record)
  -- What an earlier minute had may be dropped already, and nobody would ever drop it again.
  if tonumber(known) >= this_minute then
    if known ~= slot then redis.call('ZADD', KEYS[3], known, known) end
    redis.call('HSET', P .. 'v:' .. known, ARGV[at + 4], place(slot, index))
  end
  redis.call('HINCRBY', KEYS[2], ARGV[at + 2], 1)
end
redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])
return 'stored'
