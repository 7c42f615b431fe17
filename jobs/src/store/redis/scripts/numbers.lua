-- KEYS: the counters. ARGV: how many numbers, and how many are skipped where another run of a server gave the last ones: it
-- may have given more than this one knows of.
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
if not run then return redis.error_reply('ERR unusable: the server does not say its run_id') end
local counters = redis.call('HMGET', KEYS[1], 'n', 'r')
local last = tonumber(counters[1] or '0')
if last > 0 and counters[2] ~= run then last = last + tonumber(ARGV[2]) end
local after = last + tonumber(ARGV[1])
if after >= 1125899906842624 then return redis.error_reply('ERR unusable: all numbers of the shard are given') end
redis.call('HSET', KEYS[1], 'n', text(after), 'r', run)
return text(last + 1)
