// Package armread reads a cluster's resources from Azure Resource Manager, with the login of who asks: GETs only, within a time, few at
// once. What it may not read, or cannot, it leaves out and says so ([armview.Resources.Unread]).
package armread

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/arm"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/runtime"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"golang.org/x/sync/errgroup"

	"packetwalk.dev/internal/azure/armview"
	"packetwalk.dev/internal/base/limitio"
)

const (
	budget     = time.Minute // for all requests together
	oneRequest = 15 * time.Second
	atOnce     = 4
	maxAnswer  = 64 << 20 // bytes
	maxPages   = 100      // of a list
	maxReads   = 2000     // requests
	rounds     = 6        // of following what resources name
)

// Versions of the providers' interfaces.
const (
	networkVersion  = "2024-05-01"
	scaleSetVersion = "2018-10-01" // in which interfaces and public addresses of a scale set are listed
	clusterVersion  = "2024-09-01"
	groupVersion    = "2021-04-01"
)

// lists are the kinds that are read of the nodes' resource group.
var lists = []string{"loadBalancers", "networkInterfaces", "publicIPAddresses", "publicIPPrefixes", "natGateways", "routeTables",
	"networkSecurityGroups", "virtualNetworks"}

// Login reads with the user's own login: environment, workload or managed identity, Azure CLI, Azure Developer CLI (azidentity's
// DefaultAzureCredential). Scopes are as [Read] has them.
func Login(ctx context.Context, r *armview.Resources, scopes []string) error {
	credential, err := azidentity.NewDefaultAzureCredential(nil)
	if err != nil {
		return noLogin(err)
	}
	return Read(ctx, r, scopes, credential, nil)
}

// maxWhy bounds the words of a failed login, in characters.
const maxWhy = 1000

// noLogin returns an error of one line that says what to do when no user is logged in. Azidentity's error has a line for each way that it
// tried. Only the user knows which of them was meant to work.
func noLogin(err error) error {
	var lines []string
	for line := range strings.Lines(err.Error()) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	why := []rune(strings.Join(lines, "; "))
	if len(why) > maxWhy {
		why = append(why[:maxWhy], '…')
	}
	return fmt.Errorf("no login to Azure; run 'az login', or write --azure=DIR with what az printed: %s", string(why))
}

// Read adds to the resources what belongs to the scopes: ids of machines of a scale set or of others (nodes' spec.providerID without
// "azure://"), or of resource groups. Options may be nil; they are for another cloud, or a lab. An error is that nothing could be read.
func Read(ctx context.Context, r *armview.Resources, scopes []string, credential azcore.TokenCredential, options *arm.ClientOptions) error {
	ctx, cancel := context.WithTimeout(ctx, budget)
	defer cancel()
	o := arm.ClientOptions{}
	if options != nil {
		o = *options
	}
	o.Retry = policy.RetryOptions{MaxRetries: 2, TryTimeout: oneRequest, RetryDelay: time.Second, MaxRetryDelay: 20 * time.Second}
	o.DisableRPRegistration = true
	client, err := arm.NewClient("packetwalk", "v1.0.0", credential, &o)
	if err != nil {
		return fmt.Errorf("azure: %w", err)
	}
	a := &reader{client: client, into: r, asked: map[string]bool{}}
	paths, err := begin(scopes)
	if err != nil {
		return err
	}
	for range rounds {
		if err := a.all(ctx, paths); err != nil {
			return err
		}
		if paths = a.next(); len(paths) == 0 {
			break
		}
	}
	return nil
}

// request is one path with the version of its provider.
type request struct {
	path, version string
	list          bool
}

// begin returns the first requests for some scopes.
func begin(scopes []string) ([]request, error) {
	var all []request
	add := func(r request) {
		if !slices.ContainsFunc(all, func(o request) bool { return strings.EqualFold(o.path, r.path) }) {
			all = append(all, r)
		}
	}
	for _, s := range scopes {
		id, err := arm.ParseResourceID(s)
		if err != nil || id.SubscriptionID == "" || id.ResourceGroupName == "" {
			return nil, fmt.Errorf("%q is no id of a resource in Azure: want /subscriptions/ID/resourceGroups/NAME", s)
		}
		group := fmt.Sprintf("/subscriptions/%s/resourceGroups/%s", id.SubscriptionID, id.ResourceGroupName)
		add(request{group, groupVersion, false})
		for _, kind := range lists {
			add(request{group + "/providers/Microsoft.Network/" + kind, networkVersion, true})
		}
		for at := id; at != nil; at = at.Parent {
			if strings.EqualFold(at.ResourceType.String(), "Microsoft.Compute/virtualMachineScaleSets") {
				add(request{at.String() + "/networkInterfaces", scaleSetVersion, true})
				add(request{at.String() + "/publicipaddresses", scaleSetVersion, true})
			}
		}
	}
	return all, nil
}

// reader reads. mu is held for what is below it.
type reader struct {
	client  *arm.Client
	mu      sync.Mutex
	into    *armview.Resources
	asked   map[string]bool
	cluster string // that manages the resource group
	read    int    // answers that could be used
	first   error  // that kept something from being read
}

// all asks for several paths, a few at once.
func (a *reader) all(ctx context.Context, requests []request) error {
	var g errgroup.Group
	g.SetLimit(atOnce)
	for _, r := range requests {
		a.asked[strings.ToLower(r.path)] = true
		g.Go(func() error { return a.one(ctx, r) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if a.read == 0 && a.first != nil {
		return fmt.Errorf("azure: nothing could be read: %w", a.first)
	}
	return nil
}

// next returns the resources that those that were read name, and the cluster.
func (a *reader) next() []request {
	var all []request
	for _, id := range a.into.References() {
		if plainID(id) && !a.asked[id] && len(a.asked)+len(all) < maxReads {
			version := networkVersion
			if strings.Contains(id, "/providers/microsoft.compute/") {
				version = scaleSetVersion
			}
			all = append(all, request{id, version, false})
		}
	}
	if id := a.cluster; id != "" && !a.asked[strings.ToLower(id)] {
		all = append(all, request{id, clusterVersion, false})
	}
	return all
}

// plainID reports whether a text of an answer is an id. Paths are made only of ids.
func plainID(id string) bool {
	_, err := arm.ParseResourceID(id)
	return err == nil && !strings.ContainsAny(id, "?#%\\") && !strings.Contains(id, "/..")
}

// one requests a path, and all pages of a list. A forbidden or missing path is not an error. A missing login is an error.
func (a *reader) one(ctx context.Context, r request) error {
	at := runtime.JoinPaths(a.client.Endpoint(), r.path) + "?api-version=" + r.version
	for page := 0; at != ""; page++ {
		text, err := a.get(ctx, at)
		var login azidentityError
		switch {
		case errors.As(err, &login):
			return noLogin(err)
		case err == nil && page == maxPages:
			err = fmt.Errorf("more than %d pages", maxPages)
		}
		if err != nil {
			a.unread(r, err)
			return nil
		}
		if at, err = a.addPage(r, text); err != nil {
			a.unread(r, err)
			return nil
		}
	}
	return nil
}

// azidentityError is what azidentity's errors for a missing login have in common (azidentity.AuthenticationFailedError and
// CredentialUnavailableError; azcore/internal/errorinfo).
type azidentityError interface {
	error
	NonRetriable()
}

func (a *reader) unread(r request, err error) {
	why := err.Error()
	var answer *azcore.ResponseError
	if errors.As(err, &answer) {
		why = fmt.Sprintf("HTTP %d %s", answer.StatusCode, answer.ErrorCode)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.first == nil {
		a.first = fmt.Errorf("%s: %s", r.path, why)
	}
	a.into.Unread = append(a.into.Unread, fmt.Sprintf("%s: %s", r.path, why))
}

func (a *reader) get(ctx context.Context, at string) ([]byte, error) {
	q, err := runtime.NewRequest(ctx, http.MethodGet, at)
	if err != nil {
		return nil, err
	}
	runtime.SkipBodyDownload(q) // the pipeline would read it without a bound
	q.Raw().Header.Set("Accept", "application/json")
	answer, err := a.client.Pipeline().Do(q)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	text, err := limitio.Read(answer.Body, maxAnswer)
	if err != nil {
		return nil, err
	}
	if !runtime.HasStatusCode(answer, http.StatusOK) {
		answer.Body = http.NoBody
		return nil, answerError(answer, text)
	}
	return text, nil
}

// answerError returns an error for an answer of no success, with the code of its body.
func answerError(answer *http.Response, text []byte) error {
	var body struct{ Error struct{ Code string } }
	_ = json.Unmarshal(text, &body) // an answer of a proxy has none
	return &azcore.ResponseError{StatusCode: answer.StatusCode, ErrorCode: body.Error.Code, RawResponse: answer}
}

// addPage adds the resources of a response and returns the URL of the list's next page. That must be on the same host, because it gets the
// token.
func (a *reader) addPage(r request, text []byte) (next string, err error) {
	var outer struct{ NextLink, ManagedBy, ID string }
	if err := json.Unmarshal(text, &outer); err != nil {
		return "", fmt.Errorf("no JSON: %w", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.into.Read("", text); err != nil {
		return "", err
	}
	a.read++
	if outer.ManagedBy != "" && strings.Contains(strings.ToLower(outer.ManagedBy), "/microsoft.containerservice/managedclusters/") {
		if plainID(outer.ManagedBy) {
			a.cluster = outer.ManagedBy
		}
	}
	if outer.NextLink == "" || !r.list {
		return "", nil
	}
	link, err := url.Parse(outer.NextLink)
	home, homeErr := url.Parse(a.client.Endpoint())
	if err != nil || homeErr != nil || link.Scheme != home.Scheme || link.Host != home.Host {
		return "", errors.New("the list's next page is at another host")
	}
	return outer.NextLink, nil
}
