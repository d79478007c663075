// Package apiobjects owns the reading of the Kubernetes objects that a capture holds (capture.ObjectLists) from an API server. It must not
// import kernel or what runs a lab.
package apiobjects

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strconv"
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
	return FetchBy(ctx, config, patience)
}

// FetchBy is Fetch with a client's configuration; patience bounds the answer to each request.
func FetchBy(ctx context.Context, config *rest.Config, patience time.Duration) (map[string][]byte, error) {
	config = rest.CopyConfig(config)
	config.QPS, config.Burst, config.UserAgent, config.Timeout = -1, 0, "packetwalk", patience
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("read Kubernetes objects: %w", err)
	}
	texts := make([][]byte, len(capture.ObjectLists))
	problems := make([]error, len(capture.ObjectLists))
	var g errgroup.Group
	for i, list := range capture.ObjectLists {
		g.Go(func() error {
			texts[i], problems[i] = get(ctx, client.RESTClient(), list)
			return nil
		})
	}
	_ = g.Wait()
	lists := map[string][]byte{}
	for i, list := range capture.ObjectLists {
		if problems[i] == nil {
			lists[list.File] = texts[i]
		}
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

// A page has so many objects, which bounds what is in memory untrimmed: what walks use of a pod is a tenth of it. The number of pages is
// bounded, too.
const (
	pageLimit = 500
	maxPages  = 2000
)

// get reads a list of a capture; a path of the API where there is nothing is left out.
func get(ctx context.Context, client rest.Interface, list capture.ObjectList) ([]byte, error) {
	var all []json.RawMessage
	for _, path := range list.Paths {
		next := ""
		for n := 0; n == 0 || next != ""; n++ {
			if n == maxPages {
				return nil, fmt.Errorf("%s: there are more than %d objects", path, maxPages*pageLimit)
			}
			var page []byte
			var err error
			if page, next, err = getPage(ctx, client, path, next); apierrors.IsNotFound(err) {
				break
			} else if err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
			objects, err := list.Trim(page)
			if err != nil {
				return nil, err
			}
			all = append(all, objects...)
		}
	}
	return capture.List(all), nil
}

// getPage reads what follows the page with a token, which begins as "", and gives the token of its own; "" says that it is the last one.
// A token that is too old is answered with a newer one, which goes on with what there is now (meta/v1, ListMeta.Continue).
func getPage(ctx context.Context, client rest.Interface, path, token string) (page []byte, next string, err error) {
	for range 3 {
		request := client.Get().AbsPath(path).Param("limit", strconv.Itoa(pageLimit))
		if token != "" {
			request.Param("continue", token)
		}
		var head struct {
			Metadata struct{ Continue string }
		}
		page, err = request.DoRaw(ctx) // with the answer's text also where that is an error
		unread := json.Unmarshal(page, &head)
		if next = head.Metadata.Continue; err == nil {
			return page, next, unread
		}
		if !apierrors.IsGone(err) && !apierrors.IsResourceExpired(err) || next == "" {
			break
		}
		token = next
	}
	return nil, "", err
}
