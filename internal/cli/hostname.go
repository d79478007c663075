package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"packetwalk.dev/internal/answer/endpoint"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/session"
)

// hostOfEnd returns the host that a HOST of the command line means where it is written as an end of a walk: a pod of a service, a
// Deployment and the like. Other names are returned as they are. objects is asked only where they are needed.
func hostOfEnd(host string, objects func() (snapshot.Objects, error)) (string, error) {
	e, err := endpoint.Parse(host)
	if err != nil {
		return host, nil //nolint:nilerr // it is no end, such as container-group/NAME
	}
	if e.Port != 0 || e.PortName != "" {
		port := e.PortName
		if e.Port != 0 {
			port = strconv.Itoa(int(e.Port))
		}
		return "", fmt.Errorf("%s: a host has no port; leave out :%s", host, port)
	}
	switch e.Kind {
	case endpoint.Service, endpoint.Deployment, endpoint.StatefulSet, endpoint.DaemonSet, endpoint.Job:
	case endpoint.HostName, endpoint.DNSName, endpoint.Address, endpoint.NetNS:
		return host, nil
	default:
		return e.String(), nil
	}
	all, err := objects()
	if err != nil {
		return "", err
	}
	pod, err := endpoint.Sender(all, e)
	if err != nil {
		return "", badInput{fmt.Errorf("%s: %w", host, err)}
	}
	if pod.Kind != endpoint.Pod {
		return "", badInput{errors.New(host + ": not a pod")}
	}
	return pod.String(), nil
}

// labObjects returns a function that reads the Kubernetes objects of a lab.
func labObjects(ctx context.Context, name string) func() (snapshot.Objects, error) {
	return func() (snapshot.Objects, error) {
		opened, err := session.OpenLab(ctx, name)
		if err != nil {
			return snapshot.Objects{}, err
		}
		defer func() { _ = opened.Close(ctx) }()
		return opened.Source().Objects(), opened.Unread
	}
}
