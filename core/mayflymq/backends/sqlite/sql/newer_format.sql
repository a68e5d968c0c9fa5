-- How many records were written by a newer version.
SELECT count(*) AS records FROM jobs WHERE format > 1 AND format > :format
