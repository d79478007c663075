package oracle

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/apis/core"
	corev1conversion "k8s.io/kubernetes/pkg/apis/core/v1"
	corevalidation "k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/kubernetes/pkg/apis/discovery"
	discoveryv1conversion "k8s.io/kubernetes/pkg/apis/discovery/v1"
	discoveryvalidation "k8s.io/kubernetes/pkg/apis/discovery/validation"
)

// TestWorldsAreValid holds the objects to upstream's own validation, and to its defaults: the API server changes nothing in them.
func TestWorldsAreValid(t *testing.T) {
	for seed := range uint64(300) {
		for i, w := range Random(seed, 4).Steps {
			for key, s := range w.Services {
				if problem := checkService(s); problem != "" {
					t.Errorf("seed %d, step %d, service %s: %s", seed, i, key, problem)
				}
			}
			for key, s := range w.Slices {
				if problem := checkSlice(s); problem != "" {
					t.Errorf("seed %d, step %d, slice %s: %s", seed, i, key, problem)
				}
			}
		}
	}
}

func checkService(s *corev1.Service) string {
	defaulted := s.DeepCopy()
	corev1conversion.SetObjectDefaults_Service(defaulted)
	if diff := cmp.Diff(s, defaulted); diff != "" {
		return "defaults (-made +accepted):\n" + diff
	}
	var internal core.Service
	if err := corev1conversion.Convert_v1_Service_To_core_Service(defaulted, &internal, nil); err != nil {
		return err.Error()
	}
	errs := corevalidation.ValidateServiceCreate(&internal)
	errs = append(errs, corevalidation.ValidateLoadBalancerStatus(&internal.Status.LoadBalancer, nil, field.NewPath("status"),
		&internal.Spec)...)
	return text(errs)
}

func checkSlice(s *discoveryv1.EndpointSlice) string {
	defaulted := s.DeepCopy()
	discoveryv1conversion.SetObjectDefaults_EndpointSlice(defaulted)
	if diff := cmp.Diff(s, defaulted); diff != "" {
		return "defaults (-made +accepted):\n" + diff
	}
	var internal discovery.EndpointSlice
	if err := discoveryv1conversion.Convert_v1_EndpointSlice_To_discovery_EndpointSlice(defaulted, &internal, nil); err != nil {
		return err.Error()
	}
	return text(discoveryvalidation.ValidateEndpointSliceCreate(&internal))
}

func text(errs field.ErrorList) string {
	if len(errs) == 0 {
		return ""
	}
	return errs.ToAggregate().Error()
}
