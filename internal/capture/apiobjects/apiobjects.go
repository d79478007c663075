// Package apiobjects owns the reading of the Kubernetes objects that a capture holds (capture.ObjectLists) from an API server. It must not
// import kernel or what runs a lab.
package apiobjects

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"packetwalk.dev/internal/capture"
)

// patience bounds the answers of an API server: names are a help, and a walk without them is one, too.
const patience = 5 * time.Second

// Fetch gets the lists of capture.ObjectLists from the API server that a kubeconfig names, or with "" that of the pod this process
// runs in. What is not to be read, by the rights there are, is an error that names it; the other lists are there all the same.
func Fetch(ctx context.Context, kubeconfig string) (map[string][]byte, error) {
	config, err := restConfig(kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read Kubernetes objects: %w", err)
	}
	config.QPS, config.Burst, config.UserAgent, config.Timeout = -1, 0, "packetwalk", patience
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("read Kubernetes objects: %w", err)
	}
	answers := make([][][]byte, len(capture.ObjectLists))
	problems := make([]error, len(capture.ObjectLists))
	var g errgroup.Group
	for i, list := range capture.ObjectLists {
		g.Go(func() error {
			answers[i], problems[i] = get(ctx, client.RESTClient(), list.Paths)
			return nil
		})
	}
	_ = g.Wait()
	lists := map[string][]byte{}
	for i, list := range capture.ObjectLists {
		if problems[i] != nil {
			continue
		}
		lists[list.File], problems[i] = list.Trim(answers[i]...)
	}
	if err := unread(problems); err != nil {
		return lists, fmt.Errorf("read Kubernetes objects: %w", err)
	}
	return lists, nil
}

// unread joins what went wrong with each list. Where it is the same with all of them, nobody answers, that is said once.
func unread(problems []error) error {
	var first *url.Error
	for i, problem := range problems {
		var e *url.Error
		if !errors.As(problem, &e) || i > 0 && e.Err.Error() != first.Err.Error() {
			return errors.Join(problems...)
		}
		first = e
	}
	if first == nil {
		return nil
	}
	return fmt.Errorf("the API server does not answer: %w", first.Err)
}

func restConfig(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		return rest.InClusterConfig()
	}
	return clientcmd.BuildConfigFromFlags("", kubeconfig)
}

// get reads what is at some paths of the API; one where there is nothing is left out.
func get(ctx context.Context, client rest.Interface, paths []string) ([][]byte, error) {
	var all [][]byte
	for _, path := range paths {
		answer, err := client.Get().AbsPath(path).DoRaw(ctx)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		all = append(all, answer)
	}
	return all, nil
}
