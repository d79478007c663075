package usercluster

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// explain adds the remedy to an error of the API server.
func explain(err error) error { return explainIn("", err) }

// explainIn calls explain for what is made in a namespace; "" where that is unknown.
func explainIn(namespace string, err error) error {
	var unanswered *url.Error
	var network net.Error
	switch {
	case err == nil:
		return nil
	case isRefused(err):
		return fmt.Errorf("%w; %s", err, remedy(namespace, err.Error()))
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("the API server does not know you: %w; log in again", err)
	case errors.As(err, &unanswered):
		return fmt.Errorf("the API server does not answer: %w; --context and --kubeconfig choose another one", unanswered.Err)
	case errors.As(err, &network):
		return fmt.Errorf("the API server does not answer: %w", err)
	}
	return err
}

// isRefused reports whether the API server understood a request and does not allow it. Webhooks and admission policies choose the status of
// their refusal, but not these words (apiserver: pkg/admission/plugin/webhook/errors, pkg/admission/plugin/policy/validating).
func isRefused(err error) bool {
	return apierrors.IsForbidden(err) || strings.Contains(err.Error(), " denied the request") || strings.Contains(err.Error(), " denied request:")
}

// The words of refusals (apiserver: pkg/endpoints/handlers/responsewriters, pkg/admission/plugin/resourcequota; kubernetes:
// plugin/pkg/admission/limitranger).
var (
	noRight = regexp.MustCompile(`(?i)\buser "[^"]*" cannot `)
	quota   = regexp.MustCompile(`(?:exceeded|failed) quota: ([a-z0-9.-]+)|insufficient quota|status unknown for quota`)
	limit   = regexp.MustCompile(`(?:minimum|maximum) \S+ usage per (?:Pod|Container)|max limit to request ratio per`)
)

// remedy says what to do about a refusal in a namespace, by its words.
func remedy(namespace, refusal string) string {
	ours := "use --kept-namespace, and make that possible in namespace " + Namespace + ", which 'kubectl packetwalk rbac' prints"
	if namespace == Namespace {
		ours = "change it in namespace " + Namespace
	}
	if noRight.MatchString(refusal) {
		return "'kubectl packetwalk rbac' prints the rights that it takes"
	}
	if m := quota.FindStringSubmatch(refusal); m != nil {
		return strings.TrimSpace("ResourceQuota "+m[1]) + " leaves no room for it: " + ours
	}
	if limit.MatchString(refusal) {
		return "a LimitRange does not allow its resources: " + ours
	}
	return "where a policy forbids it, exempt the namespace " + Namespace + ", which 'kubectl packetwalk rbac' prints, and use --kept-namespace"
}
