package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

// startTestFront starts a front before an API server that answers with the query of each request as a uid.
func startTestFront(t *testing.T) (*front, string) {
	t.Helper()
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, `{"metadata":{"uid":%q}}`, r.URL.Query().Get("labelSelector"))
	}))
	t.Cleanup(upstream.Close)
	address, err := url.Parse(upstream.URL)
	if err != nil {
		t.Fatal(err)
	}
	f := newFront("uid-of-the-front", []string{"a", "b"}, address, http.DefaultTransport)
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	return f, server.URL
}

func get(t *testing.T, address string) *bufio.Reader {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = response.Body.Close() })
	return bufio.NewReaderSize(response.Body, 1<<20)
}

func TestAFrontIsAClusterOfItsOwn(t *testing.T) {
	_, address := startTestFront(t)
	for path, want := range map[string]string{
		"/api/v1/namespaces/kube-system":                                       "uid-of-the-front",
		"/api/v1/namespaces?labelSelector=" + url.QueryEscape(homeLabel+"=me"): homeLabel + "=me," + namespaceLabel + " in (a,b)",
		"/api/v1/namespaces?labelSelector=other":                               "other",
		"/api/v1/pods?labelSelector=other":                                     "other",
	} {
		var got struct{ Metadata struct{ UID string } }
		if err := json.NewDecoder(get(t, address+path)).Decode(&got); err != nil || got.Metadata.UID != want {
			t.Errorf("%s: %q, %v", path, got.Metadata.UID, err)
		}
	}
}

func TestAHostileFrontAnswersAtTheLimits(t *testing.T) {
	f, address := startTestFront(t)
	pod := map[string]any{"metadata": map[string]any{
		"name": "web", "namespace": "a", "uid": "of-web", "annotations": map[string]any{homePod: "a/web", homePodUID: "of-web"},
	}, "status": map[string]any{"phase": "Running"}}
	f.setHostile([]map[string]any{pod})
	pods := address + "/api/v1/namespaces/a/pods"

	text, err := io.ReadAll(get(t, pods+"?limit=500&continue=300"))
	if err != nil {
		t.Fatal(err)
	}
	var page struct {
		Metadata struct{ Continue string }
		Items    []struct{ Metadata struct{ Name string } }
	}
	if err := json.Unmarshal(text, &page); err != nil {
		t.Fatal(err)
	}
	if len(text) < 3<<20 || len(text) > 4<<20 || page.Items[0].Metadata.Name != "invented-300" ||
		page.Metadata.Continue != fmt.Sprint(300+len(page.Items)) {
		t.Errorf("%d pods from %s on in %d bytes, continued at %s", len(page.Items), page.Items[0].Metadata.Name, len(text), page.Metadata.Continue)
	}

	events := get(t, pods+"?watch=true")
	for number := range 4 {
		line, err := events.ReadBytes('\n')
		if err != nil {
			t.Fatal(err)
		}
		var event struct {
			Type   string
			Object struct {
				Metadata struct{ Name, UID string }
				Status   struct{ Phase, Message string }
			}
		}
		if err := json.Unmarshal(line, &event); err != nil {
			t.Fatal(err)
		}
		name, isReal := event.Object.Metadata.Name, number%2 == 0
		if isReal != (name == "web") || isReal != (len(event.Object.Status.Message) > 50<<10) || event.Object.Status.Phase != "Running" ||
			!isReal && !strings.HasPrefix(name, "invented-") {
			t.Errorf("event %d is of %s, with %d bytes of message", number, name, len(event.Object.Status.Message))
		}
	}
	f.setHostile(nil)
	if _, err := io.Copy(io.Discard, events); err == nil {
		t.Log("the watch ended cleanly")
	}
	if text, err := io.ReadAll(get(t, pods)); err != nil || strings.Contains(string(text), "invented") {
		t.Errorf("an ordinary front answers %.100s: %v", text, err)
	}
}
