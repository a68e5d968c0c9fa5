-- Ended parents with children left to settle.
SELECT family, parent, ended FROM cascades WHERE queue = :queue ORDER BY family LIMIT :limit
