package pki

import (
	"crypto/x509"
	"os"
	"testing"
)

func TestIssuedCertificatesAreTrustedForTheirPurpose(t *testing.T) {
	dir := Dir(t.TempDir())
	authority, err := dir.Authority("ca")
	if err != nil {
		t.Fatal(err)
	}
	for _, request := range []Request{
		{Name: "server", CommonName: "server", Hosts: []string{"10.1.2.3", "example.test"}},
		{Name: "user", CommonName: "somebody", Organizations: []string{"group"}},
	} {
		if err := authority.Issue(dir, request); err != nil {
			t.Fatal(err)
		}
	}
	roots := x509.NewCertPool()
	roots.AddCert(authority.cert)
	server, err := readCertificate(dir.Cert("server"))
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"10.1.2.3", "example.test"} {
		options := x509.VerifyOptions{Roots: roots, DNSName: host}
		if _, err := server.Verify(options); err != nil {
			t.Errorf("server as %s: %v", host, err)
		}
	}
	user, err := readCertificate(dir.Cert("user"))
	if err != nil {
		t.Fatal(err)
	}
	if user.Subject.CommonName != "somebody" || user.Subject.Organization[0] != "group" {
		t.Errorf("the user is %v", user.Subject)
	}
	if _, err := user.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		t.Errorf("user as a client: %v", err)
	}
	if _, err := user.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}); err == nil {
		t.Error("a user's certificate serves")
	}
}

func TestNothingIsIssuedTwice(t *testing.T) {
	dir := Dir(t.TempDir())
	make := func() {
		t.Helper()
		authority, err := dir.Authority("ca")
		if err == nil {
			err = authority.Issue(dir, Request{Name: "one", CommonName: "one"})
		}
		if err == nil {
			err = dir.ServiceAccountKey("sa")
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	files := []string{dir.Cert("ca"), dir.Cert("one"), dir.Key("sa"), dir.PublicKey("sa")}
	make()
	before := read(t, files)
	make()
	if read(t, files) != before {
		t.Error("a second round changed files")
	}
}

func read(t *testing.T, files []string) (all string) {
	t.Helper()
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all += string(content)
	}
	return all
}
