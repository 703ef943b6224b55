-- The slots that do not belong to $1, with their epochs.
select slot, epoch from ringmesh.slot where owner is distinct from $1
