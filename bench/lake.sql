-- The tables of a fold as DuckDB makes them, for `bench.lake`: jobs, attempts, metric_parts and worker_parts by hour of
-- creation. The rules are those of `penstock.lake.tables`, without redriven jobs; sketches are DuckDB's own quantiles.

create temp table ordered as
with ranked as (
    select *, case kind when 'imported' then 0 when 'added' then 1 when 'queued' then 3 when 'reserved' then 4
                        when 'begun' then 5 when 'extended' then 6 when 'nacked' then 7 when 'requeued' then 8
                        when 'moved' then 9 when 'failed' then 10 when 'expired' then 11 when 'removed' then 12
                        when 'acked' then 13 else 14 end as rank
    from events where job is not null
    qualify row_number() over (partition by writer, epoch, seq) = 1
)
select *, min(created) over (partition by job) as born,
       last_value(case when kind in ('imported', 'added', 'queued', 'nacked', 'requeued', 'moved')
                       then greatest("at", coalesce(until, "at")) end ignore nulls) over before as ready,
       coalesce(last_value(case when kind in ('imported', 'added', 'queued', 'nacked', 'requeued', 'moved') then 1
                                when kind in ('reserved', 'acked', 'failed', 'expired', 'removed') then 0 end
                           ignore nulls) over before, 0) as waited,
       coalesce(last_value(case when kind in ('imported', 'added', 'queued', 'nacked', 'requeued', 'moved') then 1
                                when kind in ('reserved', 'acked', 'failed', 'expired', 'removed') then 0 end
                           ignore nulls) over so_far, 0) as waits,
       greatest(attempt, coalesce(max(attempt) over so_far, 0)) as delivery
from ranked
window so_far as (partition by job order by "at", rank, attempt, seq rows between unbounded preceding and current row),
       before as (partition by job order by "at", rank, attempt, seq rows between unbounded preceding and 1 preceding);

create temp table attempts as
select job, delivery as attempt, strftime(min(born), '%Y-%m-%dT%H') as hour,
       coalesce(arg_min(queue, "at") filter (kind = 'reserved'), min(queue)) as queue,
       arg_min(ready, "at") filter (kind = 'reserved') as ready, min("at") filter (kind = 'reserved') as started,
       min("at") filter (kind in ('acked', 'nacked', 'requeued', 'failed', 'expired', 'removed', 'moved')) as ended,
       arg_min(kind, "at") filter (kind in ('acked', 'nacked', 'requeued', 'failed', 'expired', 'removed', 'moved'))
           as outcome,
       arg_max(worker, "at") as worker, arg_min(node, "at") as node, arg_max(error, "at") filter (error is not null) as error,
       date_diff('millisecond', arg_min(ready, "at") filter (kind = 'reserved'), min("at") filter (kind = 'reserved'))
           as wait_ms,
       date_diff('millisecond', min("at") filter (kind = 'reserved'),
                 min("at") filter (kind in ('acked', 'nacked', 'requeued', 'failed', 'expired', 'removed', 'moved')))
           as run_ms
from ordered where delivery > 0 group by job, delivery;

create temp table jobs as
with facts as (
    select job, strftime(min(born), '%Y-%m-%dT%H') as hour, arg_min(queue, "at") as queue, min(created) as created,
           min("at") filter (kind in ('added', 'imported')) as added, min("at") filter (kind = 'acked') as acked,
           arg_max(kind, ("at", rank)) as last_kind, max("at") as last_event, max(size) as size, count(*) as events,
           arg_max(error, "at") filter (error is not null) as last_error
    from ordered group by job
), work as (
    select job, min(started) as first_start, count(*) as attempts, sum(run_ms) as run_ms, sum(pause) as retry_ms,
           arg_max(worker, attempt) as last_worker
    from (select *, date_diff('millisecond', lag(ended) over (partition by job order by attempt), started) as pause
          from attempts) group by job
)
select facts.*, first_start, attempts, date_diff('millisecond', added, first_start) as wait_ms, run_ms, retry_ms,
       last_worker
from facts left join work using (job);

create temp table metric_parts as
with parts as (
    select queue, strftime(born, '%Y-%m-%dT%H') as hour, date_trunc('minute', "at") as minute,
           (kind in ('added', 'imported'))::int as added, (kind = 'acked')::int as acked,
           (kind in ('nacked', 'requeued'))::int as retried, (kind = 'failed')::int as failed,
           (kind = 'expired')::int as expired, 0 as started,
           case when waits = 0 or coalesce(until, "at") <= "at" then waits - waited else 0 end as depth_change,
           null::bigint as wait_ms, null::bigint as run_ms
    from ordered
    union all
    select queue, strftime(born, '%Y-%m-%dT%H'), date_trunc('minute', until), 0, 0, 0, 0, 0, 0, waits - waited, null, null
    from ordered where waits = 1 and waited = 0 and until > "at"
    union all
    select queue, hour, date_trunc('minute', started), 0, 0, 0, 0, 0, 1, 0, wait_ms, null
    from attempts where started is not null
    union all
    select queue, hour, date_trunc('minute', ended), 0, 0, 0, 0, 0, 0, 0, null, run_ms
    from attempts where run_ms is not null
)
select queue, minute, hour, sum(added) as added, sum(started) as started, sum(acked) as acked, sum(retried) as retried,
       sum(failed) as failed, sum(expired) as expired, sum(depth_change) as depth_change, max(wait_ms) as wait_ms_max,
       approx_quantile(wait_ms, [0.5, 0.95, 0.99]) as waits, approx_quantile(run_ms, [0.5, 0.95, 0.99]) as runs
from parts where queue is not null group by queue, minute, hour;

create temp table worker_parts as
select worker, date_trunc('hour', started) as worked, hour, sum(run_ms) as busy_ms, count(*) as jobs,
       count(*) filter (outcome = 'acked') as acked
from attempts where worker is not null and started is not null group by all;

copy (select * from jobs order by hour, job) to 'DIRECTORY/jobs' (format parquet, compression zstd, partition_by (hour));
copy (select * from attempts order by hour, job) to 'DIRECTORY/attempts'
    (format parquet, compression zstd, partition_by (hour));
copy (select * from metric_parts order by hour, minute) to 'DIRECTORY/metric_parts'
    (format parquet, compression zstd, partition_by (hour));
copy (select * from worker_parts order by hour, worker) to 'DIRECTORY/worker_parts'
    (format parquet, compression zstd, partition_by (hour))
