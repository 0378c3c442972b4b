-- Returns the score of the first job, or nothing.
return call('ZRANGE', queue.index, 0, 0, 'WITHSCORES')[2] or ''
