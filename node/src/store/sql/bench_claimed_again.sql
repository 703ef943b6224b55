-- How many ended tasks were claimed more than once, and how many had a run that failed or took its node with it.
select count(*) filter (where attempt > 1) as "claimed_again!", count(*) filter (where failures + crashes > 0) as "failed!"
from ringmesh.finished_task
