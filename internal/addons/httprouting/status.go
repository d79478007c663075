package httprouting

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"packetwalk.dev/internal/addons/ingress"
	"packetwalk.dev/internal/node/kube"
)

// again is when what failed is tried again.
const again = 5 * time.Second

// publish writes into Ingresses what became of them: their address, and events with their problems.
func (c *controller) publish(ctx context.Context) {
	for {
		var retry <-chan time.Time
		if err := c.publishOnce(ctx); err != nil && ctx.Err() == nil {
			c.options.Log.Print(err)
			retry = time.After(again)
		}
		select {
		case <-ctx.Done():
			return
		case <-c.rebuilt:
		case <-retry:
		}
	}
}

func (c *controller) publishOnce(ctx context.Context) error {
	address := c.address()
	table := c.table.Load()
	for _, name := range table.Ingresses {
		o, ok, _ := c.stores.ingresses.GetByKey(name.String())
		if !ok {
			continue
		}
		i := o.(*networkingv1.Ingress)
		if !equality.Semantic.DeepEqual(i.Status.LoadBalancer.Ingress, address) {
			if err := c.setAddress(ctx, name, address); err != nil {
				return err
			}
		}
		c.events.record(ctx, i, table.Problems)
	}
	return nil
}

// address returns the front end of the service that brings the requests here.
func (c *controller) address() (all []networkingv1.IngressLoadBalancerIngress) {
	o, ok, _ := c.stores.services.GetByKey(c.options.PublishService.String())
	if !ok {
		return nil
	}
	for _, in := range o.(*corev1.Service).Status.LoadBalancer.Ingress {
		all = append(all, networkingv1.IngressLoadBalancerIngress{IP: in.IP, Hostname: in.Hostname})
	}
	return all
}

func (c *controller) setAddress(ctx context.Context, name types.NamespacedName, address []networkingv1.IngressLoadBalancerIngress) error {
	// A merge patch in full, because of an empty list the API's own types would leave nothing to merge.
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"loadBalancer": map[string]any{"ingress": address}}})
	if err != nil {
		return err
	}
	err = c.clients.networking.Patch(types.MergePatchType).Namespace(name.Namespace).Resource("ingresses").Name(name.Name).
		SubResource("status").Body(patch).Do(ctx).Error()
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("write the address of Ingress %s: %w", name, err)
	}
	return nil
}

// component is the source of events, as ingress-nginx names itself.
const component = "nginx-ingress-controller"

// events tells an Ingress's users about it, each thing once.
type events struct {
	client *rest.RESTClient
	log    *log.Logger
	mu     sync.Mutex
	told   map[string]bool
}

func (e *events) record(ctx context.Context, i *networkingv1.Ingress, problems []ingress.Problem) {
	e.post(ctx, i, corev1.EventTypeNormal, "Sync", "Scheduled for sync")
	for _, p := range problems {
		if p.Ingress.Namespace == i.Namespace && p.Ingress.Name == i.Name && !p.Passing {
			e.post(ctx, i, corev1.EventTypeWarning, "Rejected", p.Field+": "+p.Message)
		}
	}
}

func (e *events) post(ctx context.Context, i *networkingv1.Ingress, kind, reason, message string) {
	key := string(i.UID) + message
	e.mu.Lock()
	told := e.told[key]
	e.told[key] = true
	e.mu.Unlock()
	if told {
		return
	}
	err := kube.PostEvent(ctx, e.client, corev1.Event{
		InvolvedObject: corev1.ObjectReference{
			APIVersion: networkingv1.SchemeGroupVersion.String(), Kind: "Ingress", Namespace: i.Namespace, Name: i.Name, UID: i.UID,
		},
		Type: kind, Reason: reason, Message: message, Source: corev1.EventSource{Component: component},
	})
	if err == nil {
		return
	}
	e.mu.Lock()
	delete(e.told, key) // the next time will do
	e.mu.Unlock()
	if ctx.Err() == nil {
		e.log.Print(err)
	}
}
