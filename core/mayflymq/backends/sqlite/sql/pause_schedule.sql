-- Pauses a schedule, or resumes it to be planned anew from now. Returns its id.
UPDATE schedules SET
    changed_at = CASE WHEN paused AND NOT :paused THEN :now ELSE changed_at END,
    next_slot = CASE WHEN paused AND NOT :paused THEN NULL ELSE next_slot END,
    paused = :paused
WHERE queue = :queue AND id = :id
RETURNING id
