-- The next task's number is above this one.
select last_value as "id!" from ringmesh.task_id
