package liqo

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"time"

	authv1beta1 "github.com/liqotech/liqo/apis/authentication/v1beta1"
	liqov1beta1 "github.com/liqotech/liqo/apis/core/v1beta1"
	"github.com/liqotech/liqo/pkg/liqo-controller-manager/authentication"
	"github.com/liqotech/liqo/pkg/utils/kubeconfig"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Identity issues a certificate for a ResourceSlice of a home cluster and returns a kubeconfig as
// Liqo creates it for a consumer. The default of server is that of the client.
func (r Remote) Identity(ctx context.Context, homeID, slice, server string) ([]byte, error) {
	if homeID == "" || slice == "" {
		return nil, errors.New("an identity needs the ID of the home cluster and the name of a ResourceSlice")
	}
	if server == "" {
		server = r.Config.Host
	}
	config := rest.CopyConfig(r.Config)
	if err := rest.LoadTLSFiles(config); err != nil {
		return nil, fmt.Errorf("read the certificate authority of %s: %w", r.Config.Host, err)
	}
	if len(config.CAData) == 0 {
		return nil, fmt.Errorf("the kubeconfig of %s has no certificate authority", r.Config.Host)
	}
	keyPEM, request, err := certificateRequest(homeID, slice)
	if err != nil {
		return nil, fmt.Errorf("create a certificate request for home cluster %s: %w", homeID, err)
	}
	certificate, err := r.sign(ctx, request)
	if err != nil {
		return nil, fmt.Errorf("sign the certificate of home cluster %[2]s in %[1]s: %[3]w", r.Config.Host, homeID, err)
	}
	return kubeconfig.GenerateKubeconfig("resourceslice-"+slice, "remote", server, config.CAData, certificate, keyPEM, nil, nil)
}

func certificateRequest(homeID, slice string) (keyPEM, request []byte, err error) {
	keyPEM, _, err = authentication.GenerateEd25519Keys()
	if err != nil {
		return nil, nil, err
	}
	block, _ := pem.Decode(keyPEM)
	if block == nil {
		return nil, nil, errors.New("Liqo generated a key that is not PEM")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, nil, err
	}
	request, err = authentication.GenerateCSRForResourceSlice(key, &authv1beta1.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: slice},
		Spec:       authv1beta1.ResourceSliceSpec{ConsumerClusterID: ptr.To(liqov1beta1.ClusterID(homeID))},
	})
	return keyPEM, request, err
}

// sign creates and approves a CertificateSigningRequest, waits until the controller manager has
// signed it, and deletes it.
func (r Remote) sign(ctx context.Context, request []byte) (certificate []byte, err error) {
	csr := &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "liqo-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:    request,
			SignerName: certificatesv1.KubeAPIServerClientSignerName,
			Usages:     []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		},
	}
	if err := r.Create(ctx, csr); err != nil {
		return nil, err
	}
	defer func() {
		// Also if the context is done.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		err = errors.Join(err, client.IgnoreNotFound(r.Delete(ctx, csr)))
	}()
	csr.Status.Conditions = append(csr.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "IdentityManagerApproval",
	})
	if err := r.SubResource("approval").Update(ctx, csr); err != nil {
		return nil, fmt.Errorf("approve %s: %w", csr.Name, err)
	}
	err = wait.PollUntilContextCancel(ctx, 200*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		if err := r.Get(ctx, client.ObjectKeyFromObject(csr), csr); err != nil {
			return false, err
		}
		for _, condition := range csr.Status.Conditions {
			if condition.Type == certificatesv1.CertificateFailed || condition.Type == certificatesv1.CertificateDenied {
				return false, fmt.Errorf("%s is %s: %s", csr.Name, condition.Type, condition.Message)
			}
		}
		return len(csr.Status.Certificate) > 0, nil
	})
	if err != nil {
		return nil, fmt.Errorf("wait for a certificate in %s (does the controller manager have --cluster-signing-cert-file?): %w", csr.Name, err)
	}
	return csr.Status.Certificate, nil
}
