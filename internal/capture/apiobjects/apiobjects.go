// Package apiobjects owns the reading of the Kubernetes objects that a capture holds (capture.ObjectLists) from an API server.
package apiobjects

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
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

// FetchBy does what Fetch does with a client's configuration; patience bounds the answer to each request.
func FetchBy(ctx context.Context, config *rest.Config, patience time.Duration) (map[string][]byte, error) {
	config = rest.CopyConfig(config)
	config.QPS, config.Burst, config.UserAgent, config.Timeout = -1, 0, "packetwalk", patience
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("read Kubernetes objects: %w", err)
	}
	texts := make([][]byte, len(capture.ObjectLists))
	problems := make([]error, len(capture.ObjectLists))
	var masq []string // the ConfigMaps that pods name
	var g errgroup.Group
	for i, list := range capture.ObjectLists {
		if list.HasConfigMaps() {
			continue
		}
		note := func([]byte) {}
		if list.File == "pods.json" {
			note = func(page []byte) { masq = capture.MasqConfigMaps(masq, page) }
		}
		g.Go(func() error {
			texts[i], problems[i] = get(ctx, client.RESTClient(), list, note)
			return nil
		})
	}
	_ = g.Wait()
	silent := slices.IndexFunc(problems, isUnanswered)
	for i, list := range capture.ObjectLists {
		switch {
		case !list.HasConfigMaps():
		case silent >= 0: // a further request would only wait, too
			problems[i] = fmt.Errorf("%s: %w", list.Paths[0], errors.Unwrap(problems[silent]))
		default:
			if len(masq) > 0 {
				list.Paths = capture.ConfigMapPaths(masq)
			}
			texts[i], problems[i] = get(ctx, client.RESTClient(), list, func([]byte) {})
		}
	}
	lists := map[string][]byte{}
	for i, list := range capture.ObjectLists {
		if texts[i] != nil {
			lists[list.File] = texts[i]
		}
	}
	if err := unread(problems); err != nil {
		return lists, fmt.Errorf("read Kubernetes objects: %w", err)
	}
	return lists, nil
}

// isUnanswered reports whether an error says that the API server did not answer.
func isUnanswered(err error) bool {
	_, ok := errors.AsType[*url.Error](err)
	return ok
}

// unread joins the errors of all lists. Where every list fails with the same error, the API server does not answer, and unread reports that
// once.
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
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil || config.ExecProvider == nil {
		return config, err
	}
	// The program is one that a user's file names, such as kubelogin. Behind sudo it would run as root.
	if caller := os.Getenv("SUDO_UID"); os.Geteuid() == 0 && caller != "" && caller != "0" { // sudo(8)
		err = fmt.Errorf("%s runs %s for credentials, and behind sudo that would run as root: use a kubeconfig with a token or a certificate, "+
			"such as 'az aks get-credentials --admin' writes", kubeconfig, config.ExecProvider.Command)
	}
	return config, err
}

// A page has so many objects, which bounds what is in memory untrimmed: what walks use of a pod is a tenth of it. The number of pages is
// bounded, too.
const (
	pageLimit = 500
	maxPages  = 2000
)

// get reads a list of a capture; a path of the API where there is nothing is left out. note gets each page as it is. Of several paths those
// that can be read are, beside the first error.
func get(ctx context.Context, client rest.Interface, list capture.ObjectList, note func(page []byte)) ([]byte, error) {
	all, problem := []json.RawMessage{}, error(nil)
	for _, path := range list.Paths {
		objects, err := getPath(ctx, client, list, path, note)
		switch {
		case err == nil || apierrors.IsNotFound(err):
			all = append(all, objects...)
		case len(list.Paths) == 1:
			return nil, fmt.Errorf("%s: %w", path, err)
		case problem == nil:
			problem = fmt.Errorf("%s: %w", path, err)
		}
		if isUnanswered(err) {
			break
		}
	}
	if problem != nil && len(all) == 0 {
		return nil, problem
	}
	return capture.List(all), problem
}

// getPath reads what is at one path of the API.
func getPath(ctx context.Context, client rest.Interface, list capture.ObjectList, path string, note func(page []byte)) (
	all []json.RawMessage, err error,
) {
	next := ""
	for n := 0; n == 0 || next != ""; n++ {
		if n == maxPages {
			return nil, fmt.Errorf("there are more than %d objects", maxPages*pageLimit)
		}
		var page []byte
		if page, next, err = getPage(ctx, client, path, next); err != nil {
			return nil, err
		}
		note(page)
		objects, err := list.Trim(page)
		if err != nil {
			return nil, err
		}
		all = append(all, objects...)
	}
	return all, nil
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
		result := request.Do(ctx)
		page, _ = result.Raw() // also of an error
		err = result.Error()   // with the API server's reason, which Raw does not read
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
