-- KEYS: m, n, i, k, d, u. ARGV: the tenant's number; 1 to send again; then the ids.
local w = tonumber(redis.call('HGET', KEYS[1], 'w') or '0')
local slot, ms = slot_of(w)
redis.call('EXISTS', P .. 'l:' .. slot)

-- Behind the id: due, died, attempts, the length of the reason, the reason, the record.
local function record_of(stored)
  return string.sub(stored, 33 + struct.unpack('>I2', stored, 31))
end

-- A slot of a cluster that is on its way to another node: whatever will be looked at is looked at before the first write,
-- so that a key that has gone already refuses all of it.
local letters = {}
for at = 3, #ARGV do
  local id = ARGV[at]
  if letters[id] == nil then
    letters[id] = redis.call('ZRANGEBYLEX', KEYS[5], '[' .. id, '(' .. id .. '\1', 'LIMIT', 0, 1)[1] or false
    local field = letters[id] and ARGV[2] == '1' and key_of(record_of(letters[id]))
    if field then by_key(field) end
  end
end
local answer = {}
for at = 3, #ARGV do
  local id = ARGV[at]
  local stored = letters[id]
  answer[#answer + 1] = stored and 1 or 0
  letters[id] = false
  if stored then
    redis.call('ZREM', KEYS[5], stored)
    if ARGV[2] == '1' then
      local record = record_of(stored)
      local key, asked, _, payload = parts(record)
      local due = asked ~= '' and asked or string.sub(stored, 11, 18)
      asked = struct.unpack('>I8', due) < w and due or ''
      local flags = 4 + (key ~= '' and 1 or 0) + (asked ~= '' and 2 or 0)
      local first = struct.pack('>I2', tonumber(string.match(KEYS[1], ':(%x+)}:m$'), 16)) .. string.sub(id, 3, 10)
      local entry = struct.pack('>I1I2', flags, ms) .. string.sub(record, 4, 7) .. key .. asked .. first
        .. payload
      local index = append(slot, entry)
      local field = key_of(record)
      local held, _, digest
      if field then held, _, digest = by_key(field) end
      -- Where another task has taken the key meanwhile, that one keeps it.
      if field and not held then
        if not digest or digest == '' then
          local used = redis.call('HGET', KEYS[6], field)
          digest = used and string.sub(used, 1, 1) == '1' and string.sub(used, 2) or ''
        end
        redis.call('HSET', KEYS[4], field, place(slot, index) .. digest)
      end
      redis.call('HINCRBY', KEYS[2], ARGV[1], 1)
    end
  end
end
return answer
