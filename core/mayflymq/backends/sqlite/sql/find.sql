-- What a transition needs to know of one job before it writes.
SELECT number, id, state, family, run_at, dedup_key, dedup_mode, depends_on, settled_token, settled_as
FROM jobs WHERE queue = :queue AND id = :id
