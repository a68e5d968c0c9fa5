-- Moves a schedule on from the slot that was seen. Returns its id; no row: somebody else did, or it was changed.
UPDATE schedules SET next_slot = :next_slot, last_slot = coalesce(:last_slot, last_slot)
WHERE queue = :queue AND id = :id AND revision = :revision AND next_slot IS :slot
RETURNING id
