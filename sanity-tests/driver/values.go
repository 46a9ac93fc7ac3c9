package driver

import "storage.liqo.io/sanity-tests/chart"

// realClasses are classes of package storage that have a virtual class liqo-<real class>.
var realClasses = []string{
	"reference", "reference-immediate", "reference-slow", "reference-ext4", "reference-xfs", "reference-secret",
	"reference-attach", "reference-local", "reference-group", "local-path", "static-local",
}

// classes returns the virtual classes of the lab: `liqo`, which uses the default class of the
// cluster, one for each kind of real storage, and one for each option of a virtual class.
func classes() []chart.Values {
	classes := []chart.Values{
		{"name": "liqo", "fsType": "ext4"},
		{"name": "liqo-retain", "realStorageClass": "reference", "fsType": "ext4", "reclaimPolicy": "Retain"},
		{"name": "liqo-always", "realStorageClass": "reference", "fsType": "ext4", "volumeBindingMode": "Immediate"},
		{"name": "liqo-no-group", "realStorageClass": "reference"},
		{"name": "liqo-options", "realStorageClass": "reference-ext4", "fsType": "ext4", "mountOptions": []string{"noatime"}},
	}
	for _, real := range realClasses {
		classes = append(classes, chart.Values{"name": "liqo-" + real, "realStorageClass": real, "fsType": "ext4"})
	}
	return classes
}

// Values returns the lab's values of the chart.
func Values() chart.Values {
	return chart.Values{
		"storageClasses": classes(),
		// The namespace of the Secret of class reference-secret.
		"node": chart.Values{"secretNamespaces": []string{"lab-storage"}},
		// The real driver of reference-attach requires this token.
		"csiDriver": chart.Values{"tokenRequests": []chart.Values{{"audience": "reference"}}},
		"logFormat": "text",
	}
}
