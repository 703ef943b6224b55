-- Whether some task is open, due or not.
select exists (select from ringmesh.task) as "open!"
