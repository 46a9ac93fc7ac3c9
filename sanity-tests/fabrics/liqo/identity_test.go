package liqo

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"testing"
)

// Liqo's provider checks the user name, and binds rights to the group.
func TestCertificateRequestNamesTheHomeCluster(t *testing.T) {
	subject := requestSubject(t, "home", "torino")
	if subject.CommonName != "torino-4ea140588150" || len(subject.Organization) != 1 || subject.Organization[0] != "home" {
		t.Errorf("got %v", subject)
	}
}

func requestSubject(t *testing.T, homeID, slice string) pkix.Name {
	t.Helper()
	_, request, err := certificateRequest(homeID, slice)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(request)
	if block == nil {
		t.Fatal("the request is not PEM")
	}
	parsed, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return parsed.Subject
}
