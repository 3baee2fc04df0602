-- Mark a worker STALE, without a load, if its state is still the one that was read.
-- KEYS: states.  ARGV: worker id, state as read, the number of STALE.
local stored = redis.call('HGET', KEYS[1], ARGV[1])
if stored ~= ARGV[2] then return 0 end
local rank, _, before = struct.unpack('<I4I4d', stored)
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local stamp = (now > before or before - now > 1000) and now or before + 1
redis.call('HSET', KEYS[1], ARGV[1], struct.pack('<I4I4d', rank, ARGV[3], stamp))
return 1
