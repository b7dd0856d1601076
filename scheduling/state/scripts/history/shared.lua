-- What the scripts of a pool's history share. KEYS[1] is the pool's prefix, `qm:{<pool>}:`.
local P = KEYS[1]
local STREAM, ORDER, OWNERS = P .. 'history2', P .. 'history2:order', P .. 'history2:owners'
local call = redis.call
