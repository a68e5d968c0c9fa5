-- A later sweep goes on settling the children of this ended parent.
INSERT INTO cascades (queue, family, parent, ended) VALUES (:queue, :family, :parent, :ended)
ON CONFLICT DO NOTHING
