-- The database's clock, by which all times of a measure are taken.
select clock_timestamp() as now
