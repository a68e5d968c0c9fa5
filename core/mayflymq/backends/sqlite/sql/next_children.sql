-- The children of an ended parent that are not settled yet, in the order in which they came.
SELECT children.number AS edge, jobs.number, id, on_parent_failure
FROM (SELECT number, job FROM children WHERE family = :family ORDER BY number LIMIT :limit) AS children
JOIN jobs ON jobs.number = children.job
ORDER BY edge
