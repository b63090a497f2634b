package v1alpha1_test

import (
	"fmt"
	"strings"
	"testing"

	"tuluat.ai/harness/shared/api/v1alpha1"
)

const askingFile = head + `spec:
  harness:
    type: BOTH
    channels:
      - type: WHATSAPP
        phoneNumberId: "100000000000001"
        phoneNumber: "+15550009999"
        verifyTokenSecretRef: {name: s, key: v}
        appSecretSecretRef: {name: s, key: a}
        accessTokenSecretRef: {name: s, key: t}
        senders: {allow: ["1555"]}
  approvals:
    quorum: 2
    approvers:
`

// WhatsApp names people by digits, whoever writes the number.
func TestAnApproversNumber(t *testing.T) {
	agent := read(t, askingFile+`      - {channel: WHATSAPP, channelUserId: "+1 (555) 000-1111"}
      - {channel: WHATSAPP, channelUserId: "15550002222"}
      - {channel: WHATSAPP, channelUserId: "US.13491208655302741918"}
`).Agent.Agent()
	want := "[whatsapp 15550001111 whatsapp 15550002222 whatsapp US.13491208655302741918]"
	if got := fmt.Sprint(agent.Approvals.Terms.Approvers); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// Nobody is two people by being named twice.
func TestAQuorumOfOnePerson(t *testing.T) {
	problems := read(t, askingFile+`      - {channel: WHATSAPP, channelUserId: "+15550001111"}
      - {channel: WHATSAPP, channelUserId: "15550001111"}
`).Validate(v1alpha1.DefaultLimits())
	if len(problems) != 1 || !strings.Contains(problems[0].String(), "spec.approvals.quorum is 2: use 1 to 1") {
		t.Errorf("%v", problems)
	}
}
