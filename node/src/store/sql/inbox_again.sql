-- How many ids came again to the inbox: a sequence, so that counting makes nobody wait.
select case when is_called then last_value else 0 end as "again!" from ringmesh.inbox_again
