// What the peers share: processes of Node's cluster, connections that are kept,
// one pool for all of them, and requests that come at the same time sharing one
// multi-row INSERT, as ours do: atOnce statements run, those that come meanwhile
// wait, and the next statement takes up to TOGETHER of them. With 1, and as many
// statements as there are connections, it is what the libraries' guides have: an
// INSERT for each message.
import cluster from 'node:cluster'
import { createServer } from 'node:http'
import process from 'node:process'
import pg from 'pg'

const processes = Number(process.env.PROCESSES)
const connections = Number(process.env.DATABASE_MAX_CONNS) / processes // of this process
const atOnce = Math.max(1, Number(process.env.AT_ONCE) / processes)
const together = Number(process.env.TOGETHER)

// One parameter whatever the number of rows, so that the statement is prepared
// once per connection and the rows are encoded by JSON.stringify, in C++.
const insert = {
  name: 'insert',
  text: `INSERT INTO peer (account, provider_id, chat, channel_user_id, text, metadata)
         SELECT account, provider_id, chat, channel_user_id, text, metadata
         FROM jsonb_to_recordset($1::jsonb) AS r (account text, provider_id text, chat text, channel_user_id text, text text, metadata jsonb)
         ON CONFLICT DO NOTHING`,
}

const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL, max: connections, idleTimeoutMillis: 30_000 })
let running = 0
let waiting = []

// store resolves when row is committed.
export function store(row) {
  return new Promise((resolve, reject) => {
    waiting.push({ row, resolve, reject })
    pump()
  })
}

async function pump() {
  if (running >= atOnce || waiting.length === 0) return
  running++
  const group = waiting.splice(0, together)
  try {
    await pool.query({ ...insert, values: [JSON.stringify(group.map((one) => one.row))] })
    for (const one of group) one.resolve()
  } catch (err) {
    for (const one of group) one.reject(err)
  } finally {
    running--
    pump()
  }
}

// body reads a request's bytes.
export function body(request) {
  return new Promise((resolve, reject) => {
    const chunks = []
    request.on('data', (chunk) => chunks.push(chunk))
    request.once('end', () => resolve(chunks.length === 1 ? chunks[0] : Buffer.concat(chunks)))
    request.once('error', reject)
  })
}

// serve answers POSTs by take, an async function (request, response) that ends
// the response itself. What it throws is answered 503: the provider tries again.
export function serve(take) {
  if (processes > 1 && cluster.isPrimary) {
    for (let n = 0; n < processes; n++) cluster.fork()
    process.on('SIGTERM', () => {
      for (const worker of Object.values(cluster.workers)) worker.kill('SIGTERM')
      cluster.disconnect(() => process.exit(0))
    })
    return
  }
  const server = createServer((request, response) => {
    if (request.method === 'GET') {
      response.end()
      return
    }
    take(request, response).catch((err) => {
      console.error(err)
      if (!response.headersSent) response.writeHead(503).end()
    })
  })
  server.keepAliveTimeout = 65_000
  server.requestTimeout = 0 // its timer costs each request a little; nobody is slow here
  server.listen(Number(process.env.PORT), '127.0.0.1')
  process.on('SIGTERM', () => process.exit(0))
}
