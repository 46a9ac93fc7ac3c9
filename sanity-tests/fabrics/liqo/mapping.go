package liqo

import (
	"context"
	"fmt"
	"strings"

	offloadingv1beta1 "github.com/liqotech/liqo/apis/offloading/v1beta1"
	"github.com/liqotech/liqo/pkg/consts"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"storage.liqo.io/fabrics/cluster"
)

// Requested: the mapping is in the spec, and not in the status yet. Liqo has no name for it.
const Requested offloadingv1beta1.MappingPhase = "Requested"

// Mapping maps a home namespace to a remote namespace.
type Mapping struct {
	Home, Remote string
	Phase        offloadingv1beta1.MappingPhase
}

// ParseMapping parses HOME=REMOTE or HOME=REMOTE:PHASE.
func ParseMapping(text string) (Mapping, error) {
	home, rest, _ := strings.Cut(text, "=")
	remote, phase, hasPhase := strings.Cut(rest, ":")
	if home == "" || remote == "" {
		return Mapping{}, fmt.Errorf("%q is not a mapping: use HOME_NS=REMOTE_NS or HOME_NS=REMOTE_NS:PHASE", text)
	}
	m := Mapping{Home: home, Remote: remote, Phase: offloadingv1beta1.MappingAccepted}
	if hasPhase {
		m.Phase = offloadingv1beta1.MappingPhase(phase)
	}
	switch m.Phase {
	case Requested, offloadingv1beta1.MappingAccepted, offloadingv1beta1.MappingCreationLoopBackOff, offloadingv1beta1.MappingTerminating:
		return m, nil
	}
	return Mapping{}, fmt.Errorf("%q is not a phase of a mapping: use %s, %s, %s or %s", phase, offloadingv1beta1.MappingAccepted,
		offloadingv1beta1.MappingCreationLoopBackOff, offloadingv1beta1.MappingTerminating, Requested)
}

// Map sets mappings of a peered cluster, and keeps those of other namespaces.
func (h Home) Map(ctx context.Context, clusterID string, mappings ...Mapping) error {
	return h.changeMappings(ctx, clusterID, func(desired map[string]string, current map[string]offloadingv1beta1.RemoteNamespaceStatus) {
		for _, m := range mappings {
			desired[m.Home] = m.Remote
			if m.Phase == Requested {
				delete(current, m.Home)
			} else {
				current[m.Home] = offloadingv1beta1.RemoteNamespaceStatus{RemoteNamespace: m.Remote, Phase: m.Phase}
			}
		}
	})
}

// Unmap removes mappings of home namespaces.
func (h Home) Unmap(ctx context.Context, clusterID string, namespaces ...string) error {
	return h.changeMappings(ctx, clusterID, func(desired map[string]string, current map[string]offloadingv1beta1.RemoteNamespaceStatus) {
		for _, namespace := range namespaces {
			delete(desired, namespace)
			delete(current, namespace)
		}
	})
}

// changeMappings changes the desired mappings and, as Liqo would after the remote cluster has
// created the namespaces, the current ones.
func (h Home) changeMappings(ctx context.Context, clusterID string,
	change func(desired map[string]string, current map[string]offloadingv1beta1.RemoteNamespaceStatus),
) error {
	namespaceMap, err := h.namespaceMap(ctx, clusterID)
	if err != nil {
		return err
	}
	apply := func() {
		if namespaceMap.Spec.DesiredMapping == nil {
			namespaceMap.Spec.DesiredMapping = map[string]string{}
		}
		if namespaceMap.Status.CurrentMapping == nil {
			namespaceMap.Status.CurrentMapping = map[string]offloadingv1beta1.RemoteNamespaceStatus{}
		}
		change(namespaceMap.Spec.DesiredMapping, namespaceMap.Status.CurrentMapping)
	}
	err = h.Enforce(ctx, namespaceMap, func() error {
		apply()
		return nil
	})
	if err != nil {
		return err
	}
	return h.EnforceStatus(ctx, namespaceMap, apply)
}

// namespaceMap returns the NamespaceMap of a cluster, by its labels as in Liqo.
func (h Home) namespaceMap(ctx context.Context, clusterID string) (*offloadingv1beta1.NamespaceMap, error) {
	var found offloadingv1beta1.NamespaceMapList
	err := cluster.IgnoreAbsent(h.List(ctx, &found, client.MatchingLabels(namespaceMapLabels(clusterID))))
	if err != nil {
		return nil, fmt.Errorf("find the NamespaceMap of cluster %s: %w", clusterID, err)
	}
	switch len(found.Items) {
	case 0:
		return nil, notPeered(clusterID)
	case 1:
		return &found.Items[0], nil
	}
	return nil, fmt.Errorf("cluster %s has %d NamespaceMaps; Liqo has one per cluster", clusterID, len(found.Items))
}

func (h Home) enforceNamespaceMap(ctx context.Context, tenant, clusterID string) error {
	namespaceMap := &offloadingv1beta1.NamespaceMap{ObjectMeta: named(tenant, clusterID)}
	return h.Enforce(ctx, namespaceMap, func() error {
		label(namespaceMap, namespaceMapLabels(clusterID))
		return nil
	})
}

func namespaceMapLabels(clusterID string) map[string]string {
	return map[string]string{
		consts.RemoteClusterID:             clusterID,
		consts.ReplicationRequestedLabel:   consts.ReplicationRequestedLabelValue,
		consts.ReplicationDestinationLabel: clusterID,
	}
}
