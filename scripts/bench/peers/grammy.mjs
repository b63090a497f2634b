// Telegram by grammY, with its own adapter for node:http. botInfo is given, so
// that no request to the Bot API comes before the first update.
import { Bot, webhookCallback } from 'grammy'
import { serve, store } from './server.mjs'

const username = process.env.BOT
const bot = new Bot('7000000001:bench', {
  botInfo: {
    id: 7000000001, is_bot: true, first_name: 'Bench', username, can_join_groups: true, can_read_all_group_messages: false,
    supports_inline_queries: false, can_connect_to_business: false, has_main_web_app: false,
  },
})

bot.on('message:text', (ctx) => store({
  account: username,
  provider_id: String(ctx.update.update_id),
  chat: String(ctx.chat.id),
  channel_user_id: String(ctx.from.id),
  text: ctx.message.text,
  metadata: {
    messageId: String(ctx.message.message_id),
    updateId: String(ctx.update.update_id),
    type: 'text',
    profileName: ctx.from.first_name,
    timestamp: String(ctx.message.date),
  },
}))

serve(webhookCallback(bot, 'http', { secretToken: process.env.TELEGRAM_WEBHOOK_SECRET }))
