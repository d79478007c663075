package httprouting

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"packetwalk.dev/internal/node/kube"
)

// scheme knows the kinds that are read and written, and no others: client-go's own knows every one, at some 10 MB a process.
var scheme = func() *runtime.Scheme {
	s := runtime.NewScheme()
	metav1.AddToGroupVersion(s, schema.GroupVersion{Version: "v1"})
	s.AddKnownTypes(corev1.SchemeGroupVersion,
		&corev1.Service{}, &corev1.ServiceList{}, &corev1.Secret{}, &corev1.SecretList{}, &corev1.Event{})
	s.AddKnownTypes(discoveryv1.SchemeGroupVersion, &discoveryv1.EndpointSlice{}, &discoveryv1.EndpointSliceList{})
	s.AddKnownTypes(networkingv1.SchemeGroupVersion,
		&networkingv1.Ingress{}, &networkingv1.IngressList{}, &networkingv1.IngressClass{}, &networkingv1.IngressClassList{})
	for _, gv := range []schema.GroupVersion{corev1.SchemeGroupVersion, discoveryv1.SchemeGroupVersion, networkingv1.SchemeGroupVersion} {
		metav1.AddToGroupVersion(s, gv)
	}
	return s
}()

// clients are those of the API groups in use.
type clients struct{ core, discovery, networking *rest.RESTClient }

func newClients(config *rest.Config) (c clients, err error) {
	for _, g := range []struct {
		client **rest.RESTClient
		gv     schema.GroupVersion
	}{{&c.core, corev1.SchemeGroupVersion}, {&c.discovery, discoveryv1.SchemeGroupVersion}, {&c.networking, networkingv1.SchemeGroupVersion}} {
		if *g.client, err = kube.RESTClient(config, g.gv, scheme); err != nil {
			return c, err
		}
	}
	return c, nil
}

// watch follows the objects of a resource that the field selector takes, "" for all.
func watch(w *kube.Watches, client *rest.RESTClient, resource string, object runtime.Object, selector string) cache.Store {
	return w.Add(kube.List{Client: client, Resource: resource, Object: object, Fields: selector, Transform: slim})
}

// slim removes the managed fields. Nothing reads them, and they make up most of many objects.
func slim(o any) (any, error) {
	if m, ok := o.(metav1.Object); ok {
		m.SetManagedFields(nil)
	}
	return o, nil
}
