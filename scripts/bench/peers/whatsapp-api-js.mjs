// WhatsApp by whatsapp-api-js, with its own middleware for node:http. It reads
// the first message of a request only.
import { WhatsAppAPI } from 'whatsapp-api-js/middleware/node-http'
import { Node18 } from 'whatsapp-api-js/setup/node'
import { serve, store } from './server.mjs'

const whatsapp = new WhatsAppAPI(Node18({ token: 'unused', appSecret: process.env.WHATSAPP_APP_SECRET, v: 'v25.0' }))

whatsapp.on.message = ({ phoneID, from, contact, message }) => store({
  account: phoneID,
  provider_id: message.id,
  chat: from,
  channel_user_id: from,
  text: message.text?.body ?? '',
  metadata: {
    messageId: message.id,
    type: message.type,
    phoneNumberId: phoneID,
    userId: contact.user_id,
    profileName: contact.profile?.name,
    timestamp: message.timestamp,
  },
})

serve(async (request, response) => {
  response.writeHead(await whatsapp.handle_post(request)).end()
})
