-- KEYS: the names. ARGV, four each: the tenant's number and its name, the number and the name of its target, or nothing twice.
local SAME, PUT_BACK, MOVED, TAKEN = 0, 1, 2, 3

-- What the server means by a number and a name, after it was put back where nobody has it.
local function keep(by_name, by_number, counter, number, name)
  local has = redis.call('HMGET', KEYS[1], by_name, by_number, counter)
  if has[2] and has[2] ~= name then return TAKEN end
  if tonumber(has[3] or '0') < tonumber(number) then redis.call('HSET', KEYS[1], counter, number) end
  if not has[2] then redis.call('HSET', KEYS[1], by_number, name) end
  if has[1] and tonumber(has[1]) ~= tonumber(number) then return MOVED end
  if not has[1] then redis.call('HSET', KEYS[1], by_name, number) end
  return has[1] and has[2] and SAME or PUT_BACK
end

local answers = {}
for at = 1, #ARGV, 4 do
  local tenant, name, target = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  local kept = keep('t' .. name, 'T' .. tenant, 'c', tenant, name)
  if target ~= '' and kept ~= TAKEN then
    local own = 'g' .. tenant .. ':' .. ARGV[at + 3]
    local of_target = keep(own, 'G' .. tenant .. ':' .. target, 'c' .. tenant, target, ARGV[at + 3])
    kept = math.max(kept, of_target)
  end
  answers[#answers + 1] = kept
end
return answers
