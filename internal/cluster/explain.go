package cluster

import (
	"errors"
	"fmt"
	"net"
	"net/url"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// explain adds the remedy to an error of the API server.
func explain(err error) error {
	var unanswered *url.Error
	var network net.Error
	switch {
	case err == nil:
		return nil
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%w; 'kubectl packetwalk rbac' prints the rights that it takes", err)
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("the API server does not know you: %w; log in again", err)
	case errors.As(err, &unanswered):
		return fmt.Errorf("the API server does not answer: %w; --context and --kubeconfig choose another one", unanswered.Err)
	case errors.As(err, &network):
		return fmt.Errorf("the API server does not answer: %w", err)
	}
	return err
}
