package pki

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// Redated returns a service account token with other dates, signed with the key of that name: API
// servers issue no token that is valid for less than ten minutes.
func (d Dir) Redated(key, token string, issued, expires time.Time) (string, error) {
	signer, err := readKey(d.Key(key))
	if err != nil {
		return "", err
	}
	private, is := signer.(*ecdsa.PrivateKey)
	parts := strings.Split(token, ".")
	if !is || len(parts) != 3 {
		return "", fmt.Errorf("a token of %d parts cannot be signed with a key %T", len(parts), signer)
	}
	content, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return "", fmt.Errorf("read a token: %w", err)
	}
	claims := map[string]json.RawMessage{}
	if err := json.Unmarshal(content, &claims); err != nil {
		return "", fmt.Errorf("read a token: %w", err)
	}
	for claim, at := range map[string]time.Time{"iat": issued, "exp": expires} {
		claims[claim] = json.RawMessage(fmt.Sprint(at.Unix()))
	}
	if content, err = json.Marshal(claims); err != nil {
		return "", err
	}
	signed := parts[0] + "." + base64.RawURLEncoding.EncodeToString(content)
	digest := sha256.Sum256([]byte(signed))
	r, s, err := ecdsa.Sign(rand.Reader, private, digest[:])
	if err != nil {
		return "", err
	}
	signature := make([]byte, 64) // the format of RFC 7518 for P-256
	r.FillBytes(signature[:32])
	s.FillBytes(signature[32:])
	return signed + "." + base64.RawURLEncoding.EncodeToString(signature), nil
}
