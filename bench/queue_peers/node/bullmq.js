// BullMQ: `node bullmq.js REDIS_PORT JOBS LATENCIES` prints one line of JSON, as ../__init__.py describes it.
//
// `addBulk` is its call for many jobs. The worker is a process of its own with a concurrency of 100, which its documentation gives
// as a start for jobs that wait for others; jobs that are done are removed.
'use strict'

const { fork } = require('child_process')
const { Queue, Worker } = require('bullmq')
const { version } = require('bullmq/package.json')
const { latencies, now, once, report, sleep } = require('./measure')

const NAME = 'bench'
const BATCH = 1000
const CONCURRENCY = 100
const OPTIONS = { removeOnComplete: true, removeOnFail: true }

// Runs what comes, and tells of the first job of a series, of the last, and of each that carries a time.
function work (connection, jobs) {
  let done = 0
  const handler = async (job) => {
    if (job.name === 'timed') return process.send({ timed: now() - job.data.sent })
    done += 1
    if (done % jobs === 1) process.send({ first: now() })
    if (done % jobs === 0) process.send({ last: now() })
  }
  new Worker(NAME, handler, { connection, concurrency: CONCURRENCY })
}

async function enqueue (queue, jobs) {
  for (let at = 0; at < jobs; at += BATCH) {
    const size = Math.min(BATCH, jobs - at)
    await queue.addBulk(Array.from({ length: size }, () => ({ name: 'done', data: {}, opts: OPTIONS })))
  }
}

async function main (port, connection, jobs, count) {
  const queue = new Queue(NAME, { connection })
  let began = now()
  await enqueue(queue, jobs)
  const enqueued = now() - began
  const worker = fork(__filename, ['work', port, jobs])
  const first = (await once(worker, 'first')).first
  const run = (await once(worker, 'last')).last - first
  const waits = await latencies(count, async () => {
    const arrived = once(worker, 'timed')
    await sleep(5 + 25 * Math.random())
    await queue.add('timed', { sent: now() }, OPTIONS)
    return (await arrived).timed
  })
  const last = once(worker, 'last')
  began = now()
  await enqueue(queue, jobs)
  const whole = (await last).last - began
  worker.kill('SIGKILL')
  report({ peer: 'bullmq', version, settings: `concurrency ${CONCURRENCY}`, jobs, enqueue_s: enqueued, run_s: run, end_to_end_s: whole, ...waits })
  process.exit(0)
}

const words = process.argv.slice(2)
const isWorker = words[0] === 'work'
const [port, jobs, count] = isWorker ? words.slice(1) : words
const connection = { host: '127.0.0.1', port: Number(port) }
isWorker ? work(connection, Number(jobs)) : main(port, connection, Number(jobs), Number(count))
