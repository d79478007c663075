// Package podspec is what a pod's object says, for whoever runs the pod: a node or a container group. Its variables and fields, its name
// servers, the ConfigMaps and Secrets that it uses, the files of its volumes, and its host ports. It reads no API, and imports nothing of
// the project but beneath.
package podspec
