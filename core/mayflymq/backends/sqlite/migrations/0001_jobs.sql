-- The first schema. The constraints make a record that no transition could have written impossible to store.

CREATE TABLE counter (
    last INTEGER NOT NULL  -- the last place or family given out
) STRICT;

INSERT INTO counter (last) VALUES (0);

CREATE TABLE queues (
    name TEXT PRIMARY KEY,
    paused INTEGER NOT NULL DEFAULT 0 CHECK (paused IN (0, 1))
) STRICT, WITHOUT ROWID;

CREATE TABLE jobs (
    number INTEGER PRIMARY KEY,
    queue TEXT NOT NULL,
    id TEXT NOT NULL,
    format INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (state IN (
        'waiting', 'delayed', 'blocked', 'active', 'completed', 'failed', 'expired', 'cancelled')),
    place INTEGER NOT NULL,   -- orders jobs of one rank; a new one on every entry into waiting, except by release
    family INTEGER NOT NULL,  -- names this life of the job as a parent
    task TEXT NOT NULL,
    priority INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    run_at INTEGER,
    ttl_ms INTEGER,
    timeout_ms INTEGER,
    max_retries INTEGER NOT NULL,
    backoff TEXT NOT NULL,
    depends_on TEXT NOT NULL,
    on_parent_failure TEXT NOT NULL CHECK (on_parent_failure IN ('fail', 'run')),
    dedup_key TEXT,
    dedup_mode TEXT CHECK (dedup_mode IN ('simple', 'throttle', 'debounce')),
    dedup_window_ms INTEGER,
    dedup_extend INTEGER,
    deliveries INTEGER NOT NULL DEFAULT 0,
    failures INTEGER NOT NULL DEFAULT 0,
    stalls INTEGER NOT NULL DEFAULT 0,
    replays INTEGER NOT NULL DEFAULT 0,
    retried_at INTEGER,
    claim_token TEXT,
    claimed_at INTEGER,
    heartbeat_at INTEGER,
    stale_at INTEGER,
    worker TEXT,
    cancel_requested INTEGER NOT NULL DEFAULT 0 CHECK (cancel_requested IN (0, 1)),
    progress REAL,
    result BLOB,
    error TEXT,
    first_error TEXT,
    finished_at INTEGER,
    settled_token TEXT,  -- the last claim's token and how it ended, until the next claim
    settled_as TEXT,
    UNIQUE (queue, id),
    CHECK ((state = 'active') = (claim_token IS NOT NULL)),
    CHECK ((state = 'active') = (stale_at IS NOT NULL)),
    CHECK ((state = 'active') = (heartbeat_at IS NOT NULL)),
    CHECK (state <> 'active' OR worker IS NOT NULL),
    CHECK (state <> 'delayed' OR run_at IS NOT NULL),
    CHECK (state = 'active' OR NOT cancel_requested),
    CHECK ((state IN ('completed', 'failed', 'expired', 'cancelled')) = (finished_at IS NOT NULL))
) STRICT;

-- One index per state, in the order in which that state is worked through: a job stands in one of them at a time.
CREATE INDEX jobs_waiting ON jobs (queue, priority, place) WHERE state = 'waiting';
CREATE INDEX jobs_delayed ON jobs (queue, run_at, place) WHERE state = 'delayed';
CREATE INDEX jobs_blocked ON jobs (queue, place) WHERE state = 'blocked';
CREATE INDEX jobs_active ON jobs (queue, stale_at, place) WHERE state = 'active';
CREATE INDEX jobs_ended ON jobs (queue, state, finished_at, place) WHERE finished_at IS NOT NULL;
CREATE INDEX jobs_claimed ON jobs (claim_token) WHERE claim_token IS NOT NULL;
CREATE INDEX jobs_newer ON jobs (format) WHERE format > 1;

-- Apart from the job, as SQLite writes a row whole: a state change does not write the payload again.
CREATE TABLE payloads (
    job INTEGER PRIMARY KEY REFERENCES jobs (number) ON DELETE CASCADE,
    payload BLOB NOT NULL
) STRICT;

-- One row for each parent that a job still waits for.
CREATE TABLE children (
    number INTEGER PRIMARY KEY,
    family INTEGER NOT NULL,
    job INTEGER NOT NULL REFERENCES jobs (number) ON DELETE CASCADE
) STRICT;

CREATE INDEX children_of ON children (family, number);
CREATE INDEX children_job ON children (job, family);

-- Endings that have more children to settle than one step does.
CREATE TABLE cascades (
    queue TEXT NOT NULL,
    family INTEGER NOT NULL,
    parent TEXT NOT NULL,
    ended TEXT NOT NULL,
    PRIMARY KEY (queue, family)
) STRICT, WITHOUT ROWID;

CREATE TABLE dedup_keys (
    queue TEXT NOT NULL,
    key TEXT NOT NULL,
    holder TEXT NOT NULL,
    until INTEGER,  -- when a throttle window is over; NULL for a key that is held until its job ends
    PRIMARY KEY (queue, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX dedup_windows ON dedup_keys (queue, until) WHERE until IS NOT NULL;

CREATE TABLE schedules (
    queue TEXT NOT NULL,
    id TEXT NOT NULL,
    format INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    changed_at INTEGER NOT NULL,
    paused INTEGER NOT NULL DEFAULT 0 CHECK (paused IN (0, 1)),
    next_slot INTEGER,
    last_slot INTEGER,
    task TEXT NOT NULL,
    payload BLOB NOT NULL,
    every_ms INTEGER,
    cron TEXT,
    timezone TEXT NOT NULL,
    catch_up TEXT NOT NULL CHECK (catch_up IN ('skip', 'one', 'all')),
    priority INTEGER NOT NULL,
    ttl_ms INTEGER,
    timeout_ms INTEGER,
    max_retries INTEGER NOT NULL,
    backoff TEXT NOT NULL,
    PRIMARY KEY (queue, id)
) STRICT, WITHOUT ROWID;

CREATE INDEX schedules_due ON schedules (queue, next_slot, id) WHERE NOT paused;

-- 'broker' stands here once the store keeps the state for a message broker.
CREATE TABLE options (name TEXT PRIMARY KEY) STRICT, WITHOUT ROWID;

-- What a broker delivers: one row for each job that is waiting, failed or expired.
CREATE TABLE deliveries (
    number INTEGER PRIMARY KEY,
    job INTEGER NOT NULL UNIQUE REFERENCES jobs (number) ON DELETE CASCADE,
    queue TEXT NOT NULL,
    token TEXT NOT NULL,
    taken_at INTEGER,
    published_at INTEGER
) STRICT;

CREATE INDEX deliveries_unpublished ON deliveries (queue, taken_at, job) WHERE published_at IS NULL;
CREATE INDEX deliveries_published ON deliveries (queue, published_at) WHERE published_at IS NOT NULL;

-- Triggers, so that no transition can forget it.
CREATE TRIGGER deliver_all AFTER INSERT ON options WHEN new.name = 'broker'
BEGIN
    INSERT INTO deliveries (job, queue, token)
    SELECT number, queue, lower(hex(randomblob(16))) FROM jobs WHERE state IN ('waiting', 'failed', 'expired');
END;

CREATE TRIGGER deliver_new AFTER INSERT ON jobs
WHEN new.state IN ('waiting', 'failed', 'expired') AND EXISTS (SELECT 1 FROM options WHERE name = 'broker')
BEGIN
    INSERT INTO deliveries (job, queue, token) VALUES (new.number, new.queue, lower(hex(randomblob(16))));
END;

CREATE TRIGGER deliver_moved AFTER UPDATE OF state ON jobs
WHEN new.state <> old.state AND EXISTS (SELECT 1 FROM options WHERE name = 'broker')
BEGIN
    DELETE FROM deliveries WHERE job = new.number;
    INSERT INTO deliveries (job, queue, token)
    SELECT new.number, new.queue, lower(hex(randomblob(16))) WHERE new.state IN ('waiting', 'failed', 'expired');
END;
