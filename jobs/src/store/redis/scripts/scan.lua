-- KEYS: the counters. ARGV: the ends of the range of keys, how many entries at most, and '1' where these are marks.
local limit = tonumber(ARGV[3])
local keys = redis.call('ZRANGEBYLEX', NAMES, ARGV[1], ARGV[2], 'LIMIT', 0, limit + 1)
if ARGV[4] ~= '1' then return entries(keys, limit) end
-- Of a mark the key is all there is; no version, never woken, no value.
local answer, mark = { #keys > limit and 1 or 0 }, string.rep('\0', 8) .. string.rep('\255', 8)
for place = 1, math.min(#keys, limit) do
  answer[2 * place], answer[2 * place + 1] = keys[place], mark
end
return answer
