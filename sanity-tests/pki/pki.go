// Package pki creates the certificates of a cluster: authorities, serving and client certificates,
// and the key of service account tokens. It only writes files.
package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// validity is longer than any lab runs, and short enough to be harmless.
const validity = 30 * 24 * time.Hour

// Dir is a folder of certificates: NAME.crt and NAME.key.
type Dir string

// Cert returns the path of a certificate.
func (d Dir) Cert(name string) string { return filepath.Join(string(d), name+".crt") }

// Key returns the path of a private key.
func (d Dir) Key(name string) string { return filepath.Join(string(d), name+".key") }

// Request describes a certificate.
type Request struct {
	// Name is the name of the files.
	Name string
	// CommonName and Organizations are the user and the groups of a client.
	CommonName    string
	Organizations []string
	// Hosts are the names and addresses of a server; a certificate without them is for clients
	// only.
	Hosts []string
}

// Authority issues certificates.
type Authority struct {
	cert *x509.Certificate
	key  crypto.Signer
}

// Authority loads the authority of that name, or creates it.
func (d Dir) Authority(name string) (*Authority, error) {
	if err := os.MkdirAll(string(d), 0o700); err != nil {
		return nil, fmt.Errorf("create the certificate folder: %w", err)
	}
	if _, err := os.Stat(d.Cert(name)); errors.Is(err, fs.ErrNotExist) {
		if err := d.makeAuthority(name); err != nil {
			return nil, fmt.Errorf("create the authority %s: %w", name, err)
		}
	}
	cert, err := readCertificate(d.Cert(name))
	if err != nil {
		return nil, err
	}
	key, err := readKey(d.Key(name))
	if err != nil {
		return nil, err
	}
	return &Authority{cert: cert, key: key}, nil
}

func (d Dir) makeAuthority(name string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template, err := newTemplate(name, nil)
	if err != nil {
		return err
	}
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return err
	}
	return d.write(name, der, key)
}

// Issue creates a certificate in a folder, unless it exists.
func (a *Authority) Issue(dir Dir, request Request) error {
	if _, err := os.Stat(dir.Cert(request.Name)); err == nil {
		return nil
	}
	if err := os.MkdirAll(string(dir), 0o700); err != nil {
		return fmt.Errorf("create the certificate folder: %w", err)
	}
	if err := a.issue(dir, request); err != nil {
		return fmt.Errorf("issue the certificate %s: %w", request.Name, err)
	}
	return nil
}

func (a *Authority) issue(dir Dir, request Request) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template, err := newTemplate(request.CommonName, request.Organizations)
	if err != nil {
		return err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	for _, host := range request.Hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	if len(request.Hosts) > 0 {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return err
	}
	return dir.write(request.Name, der, key)
}

// ServiceAccountKey creates the key pair that signs service account tokens: NAME.key and NAME.pub.
func (d Dir) ServiceAccountKey(name string) error {
	if _, err := os.Stat(d.Key(name)); err == nil {
		return nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return err
	}
	if err := writePEM(d.PublicKey(name), "PUBLIC KEY", public); err != nil {
		return err
	}
	return d.writeKey(name, key)
}

// PublicKey returns the path of the public key of service account tokens.
func (d Dir) PublicKey(name string) string { return filepath.Join(string(d), name+".pub") }

func newTemplate(commonName string, organizations []string) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: commonName, Organization: organizations},
		NotBefore:    now.Add(-time.Hour),
		NotAfter:     now.Add(validity),
	}, nil
}

// write writes the key and then the certificate: if the certificate exists, the key does.
func (d Dir) write(name string, der []byte, key *ecdsa.PrivateKey) error {
	if err := d.writeKey(name, key); err != nil {
		return err
	}
	return writePEM(d.Cert(name), "CERTIFICATE", der)
}

func (d Dir) writeKey(name string, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	return writePEM(d.Key(name), "EC PRIVATE KEY", der)
}

func writePEM(file, kind string, der []byte) error {
	content := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	if err := os.WriteFile(file+".new", content, 0o600); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

func readCertificate(file string) (*x509.Certificate, error) {
	der, err := readPEM(file)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

func readKey(file string) (crypto.Signer, error) {
	der, err := readPEM(file)
	if err != nil {
		return nil, err
	}
	return x509.ParseECPrivateKey(der)
}

func readPEM(file string) ([]byte, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read a certificate file: %w", err)
	}
	block, _ := pem.Decode(content)
	if block == nil {
		return nil, fmt.Errorf("%s holds no PEM block", file)
	}
	return block.Bytes, nil
}
