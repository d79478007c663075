// Package container runs containers as processes in namespaces: a container is one process tree in a network namespace that somebody else
// made and in mount, pid and UTS namespaces of its own. Its file system is the layers of an image, nothing of the machine's, and over them
// a layer of its own that nobody else sees and that goes when the container goes.
//
// The package owns a container's life: start, stop, exec, attach, log, adopt after the starter died, remove. A container does not depend on
// the process that started it: its first process (packetwalk-app, package container/boot) writes the log and the exit state itself, so that
// kill -9 of the starter changes nothing for it and Adopt finds it again.
//
// It must not import anything of Kubernetes, nor internal/kernel: a network namespace is a path here.
package container
