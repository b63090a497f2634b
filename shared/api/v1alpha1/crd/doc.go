// Package crd is what the CustomResourceDefinitions of config/crd are generated
// from: the resources as Kubernetes sees them. Functions and tools read
// v1alpha1 itself, which needs no Kubernetes library; nothing imports this
// package, and `make generate` is its only reader.
//
// +kubebuilder:object:generate=false
// +groupName=tuluat.ai
// +versionName=v1alpha1
package crd
