package v1alpha1

import "tuluat.ai/harness/shared/harness"

// Channel is one way to reach the agent. Each type has fields of its own.
//
// +kubebuilder:validation:XValidation:rule="self.type == 'WEBHOOK' || !(has(self.name) || has(self.secretRef) || has(self.callbackURL) || has(self.fields))",message="name, secretRef, callbackURL and fields are of type WEBHOOK: remove them, or change type"
// +kubebuilder:validation:XValidation:rule="self.type == 'WHATSAPP' || !(has(self.phoneNumberId) || has(self.phoneNumber) || has(self.verifyTokenSecretRef) || has(self.appSecretSecretRef) || has(self.accessTokenSecretRef) || has(self.template))",message="phoneNumberId, phoneNumber, verifyTokenSecretRef, appSecretSecretRef, accessTokenSecretRef and template are of type WHATSAPP: remove them, or change type"
// +kubebuilder:validation:XValidation:rule="self.type == 'TELEGRAM' || !(has(self.bot) || has(self.botTokenSecretRef) || has(self.webhookSecretRef) || has(self.transport))",message="bot, botTokenSecretRef, webhookSecretRef and transport are of type TELEGRAM: remove them, or change type"
// +kubebuilder:validation:XValidation:rule="self.type != 'WEBHOOK' || !has(self.groups)",message="groups is of types WHATSAPP and TELEGRAM: remove it, or change type"
// +kubebuilder:validation:XValidation:rule="self.type != 'WEBHOOK' || (has(self.name) && has(self.secretRef))",message="a channel of type WEBHOOK needs name, the last part of its path, and secretRef, the key that signs"
// +kubebuilder:validation:XValidation:rule="self.type != 'TELEGRAM' || has(self.bot)",message="a channel of type TELEGRAM needs bot: the bot's username, as BotFather shows it"
// +kubebuilder:validation:XValidation:rule="self.type != 'WEBHOOK' || !has(self.senders.policy) || self.senders.policy != 'pairing'",message="senders.policy is pairing, which a webhook does not have, since its secret pairs the sender: use allowlist or open"
type Channel struct {
	// WHATSAPP, TELEGRAM or WEBHOOK.
	// +kubebuilder:validation:Enum=WHATSAPP;TELEGRAM;WEBHOOK
	Type harness.Channel `json:"type"`
	// Who may talk to the agent here.
	Senders Senders `json:"senders"`
	// A conversation idle longer ends, and the next message begins a new one.
	// +kubebuilder:default="24h"
	IdleTTL Duration `json:"idleTTL,omitempty"`
	// WHATSAPP and TELEGRAM: what the agent answers in groups. mention: only what is said to it; the default. all: everything. none: nothing.
	// +kubebuilder:validation:Enum=mention;all;none
	Groups harness.GroupPolicy `json:"groups,omitempty"`

	// WEBHOOK: the name of the hook, the last part of its path.
	Name Name `json:"name,omitempty"`
	// WEBHOOK: the key that signs messages and replies.
	SecretRef *SecretRef `json:"secretRef,omitempty"`
	// WEBHOOK: where replies are POSTed. Without it they are read back. It may not resolve to a private address, unless the platform allows it.
	CallbackURL URL `json:"callbackURL,omitempty"`
	// WEBHOOK: where the parts of a message are in what is POSTed. Without it: messageId, channelUserId, chat, text, metadata.
	Fields *Fields `json:"fields,omitempty"`

	// WHATSAPP: the Phone number ID of WhatsApp Manager, which is not the number itself. Without it, the platform's.
	// +kubebuilder:validation:Pattern=`^[0-9]{5,32}$`
	PhoneNumberID string `json:"phoneNumberId,omitempty"`
	// WHATSAPP: the number as people dial it.
	// +kubebuilder:validation:MaxLength=40
	PhoneNumber string `json:"phoneNumber,omitempty"`
	// WHATSAPP: the token of the webhook's handshake. Without it, the platform's.
	VerifyToken *SecretRef `json:"verifyTokenSecretRef,omitempty"`
	// WHATSAPP: the app's secret, which signs what comes in. Without it, the platform's.
	AppSecret *SecretRef `json:"appSecretSecretRef,omitempty"`
	// WHATSAPP: the token that sends. Without it, the platform's.
	AccessToken *SecretRef `json:"accessTokenSecretRef,omitempty"`
	// WHATSAPP: the approved template that opens a conversation again after 24 hours of silence.
	Template *Template `json:"template,omitempty"`

	// TELEGRAM: the bot's username, as BotFather shows it.
	// +kubebuilder:validation:Pattern=`^@?[A-Za-z][A-Za-z0-9_]{2,31}$`
	Bot string `json:"bot,omitempty"`
	// TELEGRAM: the bot's token, which sends. Without it, the platform's.
	BotToken *SecretRef `json:"botTokenSecretRef,omitempty"`
	// TELEGRAM: the secret that proves what comes in. Without it, the platform's.
	WebhookSecret *SecretRef `json:"webhookSecretRef,omitempty"`
	// TELEGRAM: how updates come. webhook: Telegram calls us; the default. poll: we ask, where there is no way in.
	// +kubebuilder:validation:Enum=webhook;poll
	Transport harness.Transport `json:"transport,omitempty"`
}

// Senders says who may talk to the agent on a channel. It must say something.
//
// +kubebuilder:validation:XValidation:rule="has(self.policy) || (has(self.allow) && size(self.allow) > 0)",message="says nothing, so nobody could talk to the agent: list channel user ids in allow, or set policy: open"
// +kubebuilder:validation:XValidation:rule="!has(self.policy) || self.policy != 'allowlist' || (has(self.allow) && size(self.allow) > 0)",message="allow is empty, so nobody could talk to the agent: list channel user ids, or set policy: open"
// +kubebuilder:validation:XValidation:rule="!has(self.policy) || self.policy != 'open' || !has(self.allow) || size(self.allow) == 0",message="allow lists senders although the policy is open: use policy allowlist, or remove the list"
// +kubebuilder:validation:XValidation:rule="(has(self.policy) && self.policy == 'pairing') == has(self.pairingCodeSecretRef)",message="pairingCodeSecretRef goes with policy pairing: set both, or neither"
type Senders struct {
	// allowlist: those listed in allow; the default. pairing: those, and whoever has sent the pairing code. open: anyone.
	// +kubebuilder:validation:Enum=allowlist;pairing;open
	Policy harness.SenderPolicy `json:"policy,omitempty"`
	// Ids as the channel gives them: phone numbers, Telegram's user ids, a hook's channelUserId.
	// +kubebuilder:validation:MaxItems=10000
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=256
	Allow []string `json:"allow,omitempty"`
	// Of policy pairing: the message that pairs its sender.
	PairingCode *SecretRef `json:"pairingCodeSecretRef,omitempty"`
}

// Fields maps a hook's JSON to a message by RFC 9535 JSONPath.
type Fields struct {
	// What the other side knows the message by, as in $.id.
	// +kubebuilder:validation:MaxLength=1000
	MessageID string `json:"messageId,omitempty"`
	// Who wrote it, as in $.user.id.
	// +kubebuilder:validation:MaxLength=1000
	ChannelUserID string `json:"channelUserId,omitempty"`
	// Which conversation it belongs to.
	// +kubebuilder:validation:MaxLength=1000
	Chat string `json:"chat,omitempty"`
	// What it says.
	// +kubebuilder:validation:MaxLength=1000
	Text string `json:"text,omitempty"`
	// What else comes with it.
	// +kubebuilder:validation:MaxLength=1000
	Metadata string `json:"metadata,omitempty"`
}

// Template names an approved WhatsApp template with one parameter in its body.
type Template struct {
	// The template's name: lower-case letters, digits and underscores.
	// +kubebuilder:validation:Pattern=`^[a-z0-9_]{1,512}$`
	Name string `json:"name"`
	// Its language, as in en or en_US.
	// +kubebuilder:validation:Pattern=`^[a-z]{2,3}(_[A-Z]{2})?$`
	Language string `json:"language"`
}
