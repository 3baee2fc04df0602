-- Set status and load of a worker that is there under this rank; the answer is {verdict, rank}:
-- 1 applied, 0 no such worker, -1 another rank (and which).
-- KEYS: states.  ARGV: worker id, rank, status, load (four bytes of a float32, or empty for none).
local stored = redis.call('HGET', KEYS[1], ARGV[1])
-- A state that cannot be read is none either: the worker is told to publish again, which mends it.
if not stored or #stored < 16 then return {0, 0} end
local rank, _, before = struct.unpack('<I4I4d', stored)
if rank ~= tonumber(ARGV[2]) then return {-1, rank} end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local stamp = (now > before or before - now > 1000) and now or before + 1
redis.call('HSET', KEYS[1], ARGV[1], struct.pack('<I4I4d', rank, ARGV[3], stamp) .. ARGV[4])
return {1, rank}
