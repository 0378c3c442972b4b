// Keuss: `node keuss.js redis-list|redis-oq|postgres alone|shared JOBS LATENCIES REDIS_PORT [POSTGRES_PORT USER DATABASE]`
// prints one line of JSON, as ../__init__.py describes it. `node keuss.js mongo|pl-mongo|... shared JOBS 0 URL` is the same on a
// MongoDB that runs, where "shared" are Keuss' defaults: signals and counts in databases beside that of the URL.
//
// "alone" is Keuss with what it comes with: it signals and counts within its process. "shared" signals and counts in Redis, which
// several processes on one queue need. Latencies are always measured between two processes, and so with signals in Redis; since Keuss
// drops a signal that follows another within 50 ms, pushes are further apart.
'use strict'

const { fork } = require('child_process')
const { promisify } = require('util')
const { version } = require('keuss/package.json')
const { latencies, now, once, rate, report, sleep } = require('./measure')

const IN_FLIGHT = 50
const SIGNALS_APART_MS = 60

const [role, backend, providers, jobs, count, redisPort, postgresPort, user, database] =
  process.argv[2] === 'pop' ? process.argv.slice(2) : ['measure', ...process.argv.slice(2)]
const redis = { host: '127.0.0.1', port: Number(redisPort) }

async function open (name, isShared) {
  const isMongo = redisPort.startsWith('mongodb:')
  const options = isMongo ? { url: redisPort } : { redis: { ...redis }, postgres: { host: '127.0.0.1', port: Number(postgresPort), user, database } }
  if (isShared && !isMongo) {
    options.signaller = { provider: require('keuss/signal/redis-pubsub'), opts: { ...redis } }
    options.stats = { provider: require('keuss/stats/redis'), opts: { ...redis } }
  }
  const factory = await promisify(require(`keuss/backends/${backend}`))(options)
  const queue = await promisify(factory.queue.bind(factory))(name)
  const calls = ['push', 'pop', 'ok', 'size'].map((call) => [call, promisify(queue[call].bind(queue))])
  return { ...Object.fromEntries(calls), canReserve: factory.capabilities().reserve }
}

async function measure () {
  const queue = await open('rates', providers === 'shared')
  const total = Number(jobs)
  const push = () => queue.push({ n: 1 }, {})
  const figures = { push_per_s: await rate(total, IN_FLIGHT, push) }
  figures.pop_per_s = await rate(total, IN_FLIGHT, () => queue.pop('c', {}))
  if (queue.canReserve) {
    await rate(total, IN_FLIGHT, push)
    figures.reserve_ok_per_s = await rate(total, IN_FLIGHT, async () => queue.ok(await queue.pop('c', { reserve: true })))
  }
  if (await queue.size() !== 0) throw new Error('jobs are left')
  const told = { peer: 'keuss', version, settings: `${backend}, ${providers}`, jobs: total, in_flight: IN_FLIGHT }
  report({ ...told, ...figures, ...await waits() })
  process.exit(0)
}

async function waits () {
  if (Number(count) === 0) return {}
  const queue = await open('latencies', true)
  const consumer = fork(__filename, ['pop', ...process.argv.slice(2)])
  await once(consumer, 'ready')
  const found = await latencies(Number(count), async () => {
    const arrived = once(consumer, 'timed')
    await sleep(SIGNALS_APART_MS + 25 * Math.random())
    await queue.push({ sent: now() }, {})
    return (await arrived).timed
  })
  consumer.kill('SIGKILL')
  return found
}

async function pop () {
  const queue = await open('latencies', true)
  const next = () => queue.pop('c', { reserve: queue.canReserve }).then((element) => {
    process.send({ timed: now() - element.payload.sent })
    next()
    if (queue.canReserve) return queue.ok(element)
  })
  next()
  process.send({ ready: true })
}

const roles = { measure, pop }
roles[role]().catch((error) => { console.error(error); process.exit(1) })
