// Drives disqueue-node against a node: `node disqueue.js PORT tour|wait|push QUEUE [BODY]`. Prints one JSON object.
'use strict'

const { promisify } = require('util')
const Disqueue = require('disqueue-node')

const [port, scene, queue, body] = process.argv.slice(2)
const client = new Disqueue({ host: '127.0.0.1', port: Number(port) })
const names = ['addJob', 'getJob', 'ackJob', 'nack', 'working', 'show', 'qlen', 'dequeue', 'enqueue', 'fastAck',
  'delJob', 'hello', 'info', 'qscan']
const call = Object.fromEntries(names.map((name) => [name, promisify(client[name]).bind(client)]))

async function tour () {
  const seen = { hello: await call.hello({}) }
  seen.id = await call.addJob({ queue, job: 'héllo', retry: 66, ttl: 660 })
  seen.lengthAdded = await call.qlen(queue)
  seen.shown = await call.show(seen.id)
  seen.got = await call.getJob({ queue, count: 1 })
  seen.working = await call.working(seen.id)
  seen.nacked = await call.nack(seen.id)
  seen.gotAgain = await call.getJob({ queue: [queue], count: 5, withcounters: true })
  seen.enqueued = await call.enqueue([seen.id])
  seen.dequeued = await call.dequeue([seen.id])
  seen.acked = await call.ackJob([seen.id])
  seen.shownAcked = await call.show(seen.id)
  seen.gotNothing = await call.getJob({ queue, nohang: true })
  // Sent without waiting for one another: a pipeline.
  const more = await Promise.all([1, 2, 3].map((number) => call.addJob({ queue, job: String(number) })))
  seen.pipelined = (await call.getJob({ queue, count: 3 })).map((job) => more.indexOf(job.jobId))
  seen.fastAcked = await call.fastAck([more[0], more[1]])
  seen.deleted = await call.delJob([more[2]])
  seen.error = await call.working(seen.id).catch((error) => error.message)
  return seen
}

async function wait () {
  return { got: await call.getJob({ queue, count: 1 }) }
}

async function push () {
  return { id: await call.addJob({ queue, job: body }) }
}

client.on('error', (error) => { console.error(error); process.exit(1) })
client.on('ready', () => {
  const scenes = { tour, wait, push }
  scenes[scene]()
    .then((seen) => { console.log(JSON.stringify(seen)); process.exit(0) })
    .catch((error) => { console.error(error); process.exit(1) })
})
