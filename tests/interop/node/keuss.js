// Drives Keuss, one or several versions of it in one process: one JSON request a line on standard input, one JSON answer a
// line on standard output, `{"n": N, "result": ...}` or `{"n": N, "error": {"message": ...}}`. Several requests may be under
// way: an answer repeats its request's `n`. The program ends when its input does, or where Keuss ends it.
//
// Bytes are `payload_base64` in place of `payload`, and times are numbers of milliseconds, in both directions. `factory` and
// `queue` are the numbers that `open` and `queue` answered. What Keuss does in the dark is kept, and asked for by `signals`
// (texts that came in on the channels of all queues) and `strays` (elements that a pop delivered after its time was over).
'use strict'

const { createInterface } = require('readline')

const PACKAGES = { '2.0.6': 'keuss', '1.6.1': 'keuss-1.6' }
const factories = []
const queues = []
const links = []
let signals = []
let strays = []
// Ids that are objects (MongoDB's), by their text: Keuss moves an element by the object only.
const ids = new Map()
// What intraorder hands out with an element, and wants back: it contains the element.
const envs = new Map()

// A call that takes a callback last; a second callback goes to `again`.
function promised (call, again = () => {}) {
  let isOver = false
  return new Promise((resolve, reject) => {
    call((error, result) => {
      if (isOver) return again(error, result)
      isOver = true
      error ? reject(error) : resolve(result)
    })
  })
}

function encoded (value) {
  if (value instanceof Date) return value.getTime()
  if (Buffer.isBuffer(value)) return { base64: value.toString('base64') }
  if (Array.isArray(value)) return value.map(encoded)
  if (value !== null && typeof value === 'object' && typeof value.toHexString === 'function') {
    ids.set(value.toHexString(), value)
    return value.toHexString()
  }
  if (value === null || typeof value !== 'object') return value === undefined ? null : value
  if (value._env) envs.set(String(value._id), value._env)
  const pairs = Object.entries(value).filter(([name]) => name !== '_env').map(([name, inner]) => {
    return name === 'payload' && Buffer.isBuffer(inner) ? ['payload_base64', inner.toString('base64')] : [name, encoded(inner)]
  })
  return Object.fromEntries(pairs)
}

const payloadOf = (given) => given.payload_base64 === undefined ? given.payload : Buffer.from(given.payload_base64, 'base64')

// An element as Keuss had handed it out, or an id.
function elementOf (given) {
  if (given === null || typeof given !== 'object') return given
  const { payload_base64: _, ...rest } = given
  const element = { ...rest, _id: ids.get(rest._id) || rest._id, payload: payloadOf(given), mature: new Date(given.mature) }
  const env = envs.get(String(rest._id))
  return env ? { ...element, _env: env } : element
}

async function open ({ version, backend, options }) {
  const folder = PACKAGES[version]
  const provided = (part, kind) => part && { ...part, provider: require(`${folder}/${kind}/${part.provider}`) }
  const factory = await promised((done) => require(`${folder}/backends/${backend}`)({
    ...options,
    signaller: provided(options.signaller, 'signal'),
    stats: provided(options.stats, 'stats')
  }, done))
  const at = factories.push({ factory, isOld: version.startsWith('1.') }) - 1
  const log = (channel, message) => { signals.push({ factory: at, channel, message: String(message), at: Date.now() }) }
  const emitter = factory.signaller_factory()._emitter
  if (emitter) emitter.on('*', log)
  return at
}

async function queue ({ factory: at, name, options }) {
  const { factory, isOld } = factories[at]
  const made = isOld ? factory.queue(name, options) : await promised((done) => factory.queue(name, options, done))
  // Keuss doesn't wait for the answer to its own subscription, so a signal could pass unheard.
  const subscriber = factory.signaller_factory()._rediscl_sub
  if (subscriber) await subscriber.subscribe(`keuss:signal:${factory.name()}:${name}`)
  return queues.push(made) - 1
}

async function pop ({ queue: at, options }) {
  const stray = (error, element) => { strays.push({ queue: at, error: error && failure(error), element: encoded(element) }) }
  try {
    return await promised((done) => queues[at].pop('peer', options, done), stray)
  } catch (error) {
    if (error.timeout) return null
    throw error
  }
}

// Starts a link of a pipeline. Its function adds the link's name to `passed` in the payload; a choice goes by `n` there.
function link ({ source, targets, name }) {
  const kind = ['Sink', 'DirectLink'][targets.length] || 'ChoiceLink'
  const Link = require(`keuss/Pipeline/${kind}`)
  const into = targets.map((at) => queues[at])
  const made = new Link(queues[source], kind === 'ChoiceLink' ? into : into[0])
  made.on('error', (problem) => { strays.push({ link: name, on: problem.on, error: String(problem.err) }) })
  made.start((element, done) => {
    const payload = { ...element.payload, passed: [...element.payload.passed, name] }
    done(null, { payload, dst: targets.length > 1 ? payload.n % targets.length : undefined })
  })
  links.push(made)
}

const calls = {
  open,
  queue,
  pop,
  link,
  // Of a link that waits for an element; one that has an element goes on.
  unlink: () => { links.splice(0).forEach((made) => made.stop()) },
  push: ({ queue: at, options, ...given }) => promised((done) => queues[at].push(payloadOf(given), options, done)),
  ok: ({ queue: at, element }) => promised((done) => queues[at].ok(elementOf(element), done)),
  ko: ({ queue: at, element, next_t: next }) => promised((done) => queues[at].ko(elementOf(element), next, done)),
  remove: ({ queue: at, id }) => promised((done) => queues[at].remove(id, done)),
  pause: ({ queue: at, value }) => {
    queues[at].pause(value)
    // It has no callback; this answer comes behind it.
    return promised((done) => queues[at].paused(done))
  },
  // Asks for one value: paused, size, totalSize, schedSize, resvSize, next_t, stats, status.
  ask: ({ queue: at, what }) => promised((done) => queues[at][what](done)),
  consumers: ({ queue: at }) => queues[at].nConsumers(),
  cancel: ({ queue: at, tid }) => queues[at].cancel(tid),
  drain: ({ queue: at }) => promised((done) => queues[at].drain(done)),
  list: ({ factory: at, options }) => promised((done) => factories[at].factory.list(options, done)),
  close: ({ factory: at }) => promised((done) => factories[at].factory.close(done)),
  signals: () => signals.splice(0),
  strays: () => strays.splice(0)
}

// Keuss' errors are texts, objects or Errors.
function failure (error) {
  if (error instanceof Error) return { message: error.message, code: error.code || null }
  return typeof error === 'object' ? { message: JSON.stringify(error), ...encoded(error) } : { message: String(error) }
}

async function answer (request) {
  let said
  try {
    said = { result: encoded(await calls[request.do](request)) }
  } catch (error) {
    said = { error: failure(error) }
  }
  process.stdout.write(JSON.stringify({ n: request.n, ...said }) + '\n')
}

const input = createInterface({ input: process.stdin })
input.on('line', (line) => { answer(JSON.parse(line)) })
input.on('close', () => process.exit(0))
