package pki

import (
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"math/big"
	"os"
	"strings"
	"testing"
	"time"
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
		t.Error("a user's certificate is valid for a server")
	}
}

func TestExistingCertificatesAreKept(t *testing.T) {
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
		t.Error("the second call changed files")
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

func TestRedatedTokenDiffersOnlyInItsDates(t *testing.T) {
	dir := Dir(t.TempDir())
	if err := dir.ServiceAccountKey("sa"); err != nil {
		t.Fatal(err)
	}
	encode := base64.RawURLEncoding.EncodeToString
	before := encode([]byte(`{"alg":"ES256"}`)) + "." + encode([]byte(`{"sub":"a","exp":1,"uid":9007199254740993}`)) + ".c2ln"
	token, err := dir.Redated("sa", before, time.Unix(1790000000, 0), time.Unix(1790000060, 0))
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(token, ".")
	content, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil || string(content) != `{"exp":1790000060,"iat":1790000000,"sub":"a","uid":9007199254740993}` {
		t.Errorf("its content is %s (%v)", content, err)
	}
	der, err := readPEM(dir.PublicKey("sa"))
	if err != nil {
		t.Fatal(err)
	}
	public, err := x509.ParsePKIXPublicKey(der)
	if err != nil {
		t.Fatal(err)
	}
	signature, err := base64.RawURLEncoding.DecodeString(parts[2])
	if err != nil || len(signature) != 64 {
		t.Fatalf("the signature %x: %v", signature, err)
	}
	digest := sha256.Sum256([]byte(parts[0] + "." + parts[1]))
	r, s := new(big.Int).SetBytes(signature[:32]), new(big.Int).SetBytes(signature[32:])
	if !ecdsa.Verify(public.(*ecdsa.PublicKey), digest[:], r, s) {
		t.Error("the signature is wrong")
	}
}
