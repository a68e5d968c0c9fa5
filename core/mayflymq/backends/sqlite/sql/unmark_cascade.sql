-- All children of this ended parent are settled.
DELETE FROM cascades WHERE queue = :queue AND family = :family
