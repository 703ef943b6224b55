-- Says that somebody listens for bells: each 10 seconds, by each listener. After a minute without it ringmesh.enqueue rings no more.
select setval('ringmesh.listening', extract(epoch from clock_timestamp())::bigint) as "at!"
