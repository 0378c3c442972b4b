// What the programs beside this file measure with. Times are seconds of a clock that all processes of a machine share.
'use strict'

const now = () => Number(process.hrtime.bigint()) / 1e9
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms))

// The next message of a child that has this field.
function once (child, field) {
  return new Promise((resolve) => {
    const listen = (message) => {
      if (message[field] === undefined) return
      child.off('message', listen)
      resolve(message)
    }
    child.on('message', listen)
  })
}

// Calls a function that returns seconds `count` times, one after the other; returns percentiles in milliseconds.
async function latencies (count, one) {
  if (count === 0) return {}
  const waits = []
  for (let number = 0; number < count; number++) waits.push(await one())
  waits.sort((a, b) => a - b)
  return { latency_p50_ms: waits[count >> 1] * 1000, latency_p99_ms: waits[Math.floor(count * 0.99)] * 1000 }
}

// Makes `count` calls, `inFlight` of them under way at any time; returns the rate per second.
async function rate (count, inFlight, call) {
  let left = count
  const some = async () => { while (left-- > 0) await call() }
  const began = now()
  await Promise.all(Array.from({ length: inFlight }, some))
  return count / (now() - began)
}

function report (figures) {
  const rounded = Object.entries(figures).map(([name, value]) => [name, typeof value === 'number' ? Number(value.toFixed(4)) : value])
  console.log(JSON.stringify(Object.fromEntries(rounded)))
}

module.exports = { latencies, now, once, rate, report, sleep }
