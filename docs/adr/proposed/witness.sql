-- For tasks that wait for others, a member of each that is still open, if any. Per task: $1 slot, $2 task, $3, $4 the witness so far
-- (0, 0: from the first). It locks nothing; a look that is older than the truth only shows a member that has ended as open.
-- Indexes: primary keys. Not EXISTS, which may become a join: see finish.sql.
select w.slot as "slot!", w.task as "task!", o.member_slot, o.member
from unnest($1::integer[], $2::bigint[], $3::integer[], $4::bigint[]) as w (slot, task, member_slot, member)
left join lateral (
    select a.member_slot, a.member
    from ringmesh.member a
    cross join lateral (select from ringmesh.task t where t.slot = a.member_slot and t.id = a.member limit 1) open
    where a.slot = w.slot and a.task = w.task and (a.member_slot, a.member) >= (w.member_slot, w.member)
    order by a.member_slot, a.member
    limit 1
) o on true
