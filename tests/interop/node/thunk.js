// Drives thunk-disque against a node: `node thunk.js PORT tour|wait|push QUEUE [BODY]`. Prints one JSON object.
'use strict'

const disque = require('thunk-disque')

const [port, scene, queue, body] = process.argv.slice(2)
const client = disque.createClient(Number(port), { usePromise: true })

async function tour () {
  const seen = { hello: await client.hello() }
  seen.id = await client.addjob(queue, 'héllo', 0, 'RETRY', 66, 'TTL', 660)
  seen.lengthAdded = await client.qlen(queue)
  seen.shown = await client.show(seen.id)
  seen.peeked = await client.qpeek(queue, 1)
  seen.got = await client.getjob('COUNT', 1, 'FROM', queue)
  seen.working = await client.working(seen.id)
  seen.nacked = await client.nack(seen.id)
  seen.gotAgain = await client.getjob('WITHCOUNTERS', 'FROM', queue)
  seen.enqueued = await client.enqueue(seen.id)
  seen.dequeued = await client.dequeue(seen.id)
  seen.acked = await client.ackjob(seen.id)
  seen.shownAcked = await client.show(seen.id)
  seen.gotNothing = await client.getjob('NOHANG', 'FROM', queue)
  // Sent without waiting for one another: a pipeline.
  const more = await Promise.all([1, 2, 3].map((number) => client.addjob(queue, String(number), 0)))
  seen.pipelined = (await client.getjob('COUNT', 3, 'FROM', queue)).map((job) => more.indexOf(job[1]))
  seen.fastAcked = await client.fastack(more[0], more[1])
  seen.deleted = await client.deljob(more[2])
  seen.error = await client.working(seen.id).catch((error) => `${error.code} ${error.message}`)
  return seen
}

async function wait () {
  return { got: await client.getjob('FROM', queue) }
}

async function push () {
  return { id: await client.addjob(queue, body, 0) }
}

client.on('error', (error) => { console.error(error); process.exit(1) })
const scenes = { tour, wait, push }
scenes[scene]()
  .then((seen) => { console.log(JSON.stringify(seen)); process.exit(0) })
  .catch((error) => { console.error(error); process.exit(1) })
