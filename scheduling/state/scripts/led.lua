-- Whether somebody leads the pool, for who only shows it. -> 1 or 0
return led(now_ms()) and 1 or 0
