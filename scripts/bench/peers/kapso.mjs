// WhatsApp by @kapso/whatsapp-cloud-api, as its webhook guide has it: verify the
// signature over the raw bytes, normalize, store.
import { normalizeWebhook, verifySignature } from '@kapso/whatsapp-cloud-api/server'
import { body, serve, store } from './server.mjs'

const appSecret = process.env.WHATSAPP_APP_SECRET

serve(async (request, response) => {
  const rawBody = await body(request)
  if (!verifySignature({ appSecret, rawBody, signatureHeader: request.headers['x-hub-signature-256'] })) {
    response.writeHead(401).end()
    return
  }
  const { phoneNumberId, contacts, messages } = normalizeWebhook(JSON.parse(rawBody.toString('utf8')))
  await Promise.all(messages.map((message) => store({
    account: phoneNumberId,
    provider_id: message.id,
    chat: message.from,
    channel_user_id: message.from,
    text: message.text?.body ?? '',
    metadata: {
      messageId: message.id,
      type: message.type,
      phoneNumberId,
      userId: contacts[0]?.userId,
      profileName: contacts[0]?.profile?.name,
      timestamp: message.timestamp,
    },
  })))
  response.writeHead(200).end()
})
