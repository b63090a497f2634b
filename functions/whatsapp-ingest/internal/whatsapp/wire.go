package whatsapp

// outgoing is the body of POST /PHONE-NUMBER-ID/messages.
type outgoing struct {
	Product       string        `json:"messaging_product"` // always "whatsapp"
	RecipientType string        `json:"recipient_type,omitempty"`
	To            string        `json:"to,omitempty"`        // a phone number or a group
	Recipient     string        `json:"recipient,omitempty"` // a BSUID; where both are given, to wins
	Context       *quoted       `json:"context,omitempty"`
	Type          string        `json:"type,omitempty"`
	Text          *outText      `json:"text,omitempty"`
	Interactive   *interactive  `json:"interactive,omitempty"`
	Image         *outMedia     `json:"image,omitempty"`
	Document      *outMedia     `json:"document,omitempty"`
	Template      *outTemplate  `json:"template,omitempty"`
	Opaque        string        `json:"biz_opaque_callback_data,omitempty"` // comes back in every status
	Status        string        `json:"status,omitempty"`                   // "read": a receipt, no message
	MessageID     string        `json:"message_id,omitempty"`               // of the receipt
	Typing        *outIndicator `json:"typing_indicator,omitempty"`
}

type quoted struct {
	MessageID string `json:"message_id"`
}

type outText struct {
	Body       string `json:"body"`
	PreviewURL bool   `json:"preview_url"`
}

type outMedia struct {
	ID       string `json:"id"`
	Caption  string `json:"caption,omitempty"`
	FileName string `json:"filename,omitempty"` // of a document
}

type outIndicator struct {
	Type string `json:"type"`
}

type interactive struct {
	Type   string  `json:"type"` // button or list
	Body   outBody `json:"body"`
	Action action  `json:"action"`
}

type outBody struct {
	Text string `json:"text"`
}

type action struct {
	Buttons  []button  `json:"buttons,omitempty"`
	Button   string    `json:"button,omitempty"` // what opens the list
	Sections []section `json:"sections,omitempty"`
}

type button struct {
	Type  string `json:"type"` // reply
	Reply row    `json:"reply"`
}

type section struct {
	Rows []row `json:"rows"`
}

type row struct {
	ID          string `json:"id"`
	Title       string `json:"title"`
	Description string `json:"description,omitempty"`
}

type outTemplate struct {
	Name       string      `json:"name"`
	Language   language    `json:"language"`
	Components []component `json:"components"`
}

type language struct {
	Code string `json:"code"`
}

type component struct {
	Type       string      `json:"type"` // body
	Parameters []parameter `json:"parameters"`
}

type parameter struct {
	Type string `json:"type"` // text
	Text string `json:"text"`
}
