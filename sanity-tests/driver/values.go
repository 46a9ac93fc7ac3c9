package driver

import "storage.liqo.io/sanity-tests/chart"

// realClasses are those of package storage that a virtual class of its own,
// named liqo-<real class>, stands for.
var realClasses = []string{
	"reference", "reference-immediate", "reference-slow", "reference-ext4", "reference-xfs", "reference-secret",
	"reference-attach", "reference-local", "reference-group", "local-path", "static-local",
}

// classes are the virtual classes of the lab: `liqo`, which names no real class
// and gets the default one of the cluster, one for each kind of real storage, and
// one for each thing that can be chosen about a virtual class.
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

// Values are what the lab sets in the chart; everything else is as released.
func Values() chart.Values {
	return chart.Values{
		"storageClasses": classes(),
		// Where the Secret of class reference-secret is.
		"node": chart.Values{"secretNamespaces": []string{"lab-storage"}},
		// What the real driver of reference-attach asks kubelet for.
		"csiDriver": chart.Values{"tokenRequests": []chart.Values{{"audience": "reference"}}},
		"logFormat": "text",
	}
}
