package crd

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tuluat.ai/harness/shared/api/v1alpha1"
)

// AiAgent is an AI agent: which model thinks, what it is told, what it may run
// and reach, and who may talk to it where.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=aiagents,singular=aiagent,shortName=aia,categories=tuluat,scope=Namespaced
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Sandboxes",type=integer,JSONPath=`.status.activeSandboxes`
// +kubebuilder:printcolumn:name="Last Execution",type=string,JSONPath=`.status.lastExecutionStatus`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63 && !self.metadata.name.contains('.')",message="metadata.name is too long or has a dot: use at most 63 lower-case letters, digits and dashes"
type AiAgent struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// What the agent is.
	// +optional
	Spec v1alpha1.Spec `json:"spec"`
	// How the agent stands, as the platform last found it.
	// +optional
	Status v1alpha1.Status `json:"status"`
}

// AiWorkflow is a graph of what agents, commands and people do one after the
// other or side by side.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=aiworkflows,singular=aiworkflow,shortName=aiw,categories=tuluat,scope=Namespaced
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Sessions",type=integer,JSONPath=`.status.activeSessions`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63 && !self.metadata.name.contains('.')",message="metadata.name is too long or has a dot: use at most 63 lower-case letters, digits and dashes"
type AiWorkflow struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// What the workflow is.
	Spec v1alpha1.WorkflowSpec `json:"spec"`
	// How the workflow stands, as the platform last found it.
	// +optional
	Status v1alpha1.WorkflowStatus `json:"status"`
}
