-- How many records were written by a newer version.
SELECT (SELECT count(*) FROM jobs WHERE format > 1 AND format > :format)
    + (SELECT count(*) FROM schedules WHERE format > :format) AS records
