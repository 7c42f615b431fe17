-- KEYS: the names. ARGV: the field of the name, the field of the counter, what stands before a number, the name, the most.
local number = redis.call('HGET', KEYS[1], ARGV[1])
if number then return tonumber(number) end
if tonumber(redis.call('HGET', KEYS[1], ARGV[2]) or '0') >= tonumber(ARGV[5]) then return 0 end
number = redis.call('HINCRBY', KEYS[1], ARGV[2], 1)
redis.call('HSET', KEYS[1], ARGV[1], number, ARGV[3] .. number, ARGV[4])
return number
