-- A delivery is handed out.
UPDATE deliveries SET taken_at = :now WHERE number = :number
