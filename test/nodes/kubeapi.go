package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
)

const (
	apiServer = "https://192.0.2.1:6443"
	apiToken  = "nodes"
)

// kubeconfig is for all clients of the API server, which makes its certificate itself.
const kubeconfig = `{"apiVersion": "v1", "kind": "Config", "current-context": "nodes",
 "clusters": [{"name": "nodes", "cluster": {"server": "` + apiServer + `", "insecure-skip-tls-verify": true}}],
 "users": [{"name": "nodes", "user": {"token": "` + apiToken + `"}}],
 "contexts": [{"name": "nodes", "context": {"cluster": "nodes", "user": "nodes"}}]}
`

// api sends one request to the API server. body is an object, or a string that is sent as it is;
// answer may be nil.
func api(method, path string, body, answer any) error {
	kind := "application/json"
	if method == http.MethodPatch {
		kind = "application/merge-patch+json"
	}
	return request(method, path, kind, body, answer)
}

// apiYAML is api with a body in YAML.
func apiYAML(method, path, text string) error {
	return request(method, path, "application/yaml", text, nil)
}

func request(method, path, kind string, body, answer any) error {
	var text []byte
	switch b := body.(type) {
	case nil:
	case string:
		text = []byte(b)
	default:
		var err error
		if text, err = json.Marshal(b); err != nil {
			return err
		}
	}
	req, err := http.NewRequest(method, apiServer+path, bytes.NewReader(text))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", kind)
	req.Header.Set("Authorization", "Bearer "+apiToken)
	return pinned(underlay).do(func() error {
		conn, err := net.DialTimeout("tcp", req.URL.Host, tryTime)
		if err != nil {
			return err
		}
		defer conn.Close()
		client := http.Client{Timeout: commandTime, Transport: &http.Transport{
			DisableKeepAlives: true,
			TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, // its self-signed certificate
			DialContext:       func(context.Context, string, string) (net.Conn, error) { return conn, nil },
		}}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		got, err := io.ReadAll(resp.Body)
		switch {
		case err != nil:
			return err
		case resp.StatusCode >= http.StatusBadRequest:
			return fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, got)
		case answer == nil:
			return nil
		}
		return json.Unmarshal(got, answer)
	})
}

// Paths of the kinds of objects.
const (
	podsPath        = "/api/v1/namespaces/default/pods"
	servicesPath    = "/api/v1/namespaces/default/services"
	deploymentsPath = "/apis/apps/v1/namespaces/default/deployments"
	nodesPath       = "/api/v1/nodes"
)

// A kubePod has the members of a pod that the trial reads.
type kubePod struct {
	Metadata struct {
		Name              string
		DeletionTimestamp string
		Labels            map[string]string
	}
	Spec   struct{ NodeName string }
	Status struct {
		Phase  string
		PodIPs []struct{ IP string }

		Conditions []struct{ Type, Status, Reason, Message string }

		ContainerStatuses []struct {
			State struct {
				Waiting struct{ Reason, Message string }
			}
		}
	}
}

// ready returns an error with the known reason if the pod is not ready.
func (p *kubePod) ready() error {
	for _, c := range p.Status.Conditions {
		if c.Type == "Ready" && c.Status == "True" && len(p.Status.PodIPs) == len(families) {
			return nil
		}
	}
	return fmt.Errorf("pod %s on %q is not ready: %+v", p.Metadata.Name, p.Spec.NodeName, p.Status)
}

// podsOf lists the pods of an application; "": all.
func podsOf(app string) ([]kubePod, error) {
	path := podsPath
	if app != "" {
		path += "?labelSelector=app%3D" + app
	}
	var list struct{ Items []kubePod }
	err := api(http.MethodGet, path, nil, &list)
	return list.Items, err
}

// A deployment runs the test image.
type deployment struct {
	app      string
	replicas int
	node     string // that its pods run on; "": any
	hostPort int    // of the server; 0: none
	recreate bool   // a new pod starts after the old one is gone

	annotations map[string]string
}

// object returns the deployment for the API.
func (d *deployment) object() map[string]any {
	type m = map[string]any
	ports := m{"containerPort": port, "protocol": "TCP"}
	if d.hostPort != 0 {
		ports["hostPort"] = d.hostPort
	}
	spec := m{
		"terminationGracePeriodSeconds": 30, "automountServiceAccountToken": false, "enableServiceLinks": false,
		"containers": []m{{
			"name": "server", "image": kubeImage, "imagePullPolicy": "Never", "args": []string{serveArg},
			"command": []string{imageProgram}, "ports": []m{ports},
			"readinessProbe": m{"tcpSocket": m{"port": port}, "periodSeconds": 1},
		}},
	}
	if d.node != "" {
		spec["nodeSelector"] = m{"kubernetes.io/hostname": d.node}
	}
	strategy := m{"type": "RollingUpdate", "rollingUpdate": m{"maxUnavailable": 0, "maxSurge": 1}}
	if d.recreate {
		strategy = m{"type": "Recreate"}
	}
	labels := map[string]string{"app": d.app}
	return m{
		"apiVersion": "apps/v1", "kind": "Deployment", "metadata": m{"name": d.app},
		"spec": m{
			"replicas": d.replicas, "strategy": strategy, "selector": m{"matchLabels": labels},
			"template": m{"metadata": m{"labels": labels, "annotations": d.annotations}, "spec": spec},
		},
	}
}

// create creates the deployment, and waits until all its pods are ready.
func (d *deployment) create() error {
	if err := api(http.MethodPost, deploymentsPath, d.object(), nil); err != nil {
		return err
	}
	return d.wait()
}

// scale changes the number of pods without waiting.
func (d *deployment) scale(replicas int) error {
	d.replicas = replicas
	return api(http.MethodPatch, deploymentsPath+"/"+d.app, map[string]any{"spec": map[string]any{"replicas": replicas}}, nil)
}

// roll replaces all pods without waiting.
func (d *deployment) roll(label string) error {
	return api(http.MethodPatch, deploymentsPath+"/"+d.app,
		fmt.Sprintf(`{"spec": {"template": {"metadata": {"annotations": {"rolled": %q}}}}}`, label), nil)
}

// wait waits until all pods are ready and of the newest template.
func (d *deployment) wait() error {
	return within(rolloutTime, func() error {
		var got struct {
			Metadata struct{ Generation int }
			Status   struct {
				ObservedGeneration, Replicas, UpdatedReplicas, ReadyReplicas int
			}
		}
		if err := api(http.MethodGet, deploymentsPath+"/"+d.app, nil, &got); err != nil {
			return err
		}
		s := got.Status
		if s.ObservedGeneration == got.Metadata.Generation && s.Replicas == d.replicas && s.UpdatedReplicas == d.replicas && s.ReadyReplicas == d.replicas {
			return d.settled()
		}
		pods, err := podsOf(d.app)
		if err != nil {
			return err
		}
		for _, p := range pods {
			if err := p.ready(); err != nil {
				return err
			}
		}
		return fmt.Errorf("deployment %s: got %+v, want %d pods", d.app, s, d.replicas)
	})
}

// settled returns an error while pods of the deployment are being deleted.
func (d *deployment) settled() error {
	pods, err := podsOf(d.app)
	if err == nil && len(pods) != d.replicas {
		err = fmt.Errorf("deployment %s: %d pods, want %d", d.app, len(pods), d.replicas)
	}
	return err
}

// delete deletes the deployment, and waits until its pods are gone.
func (d *deployment) delete() error {
	if err := api(http.MethodDelete, deploymentsPath+"/"+d.app+"?propagationPolicy=Foreground", nil, nil); err != nil {
		return err
	}
	d.replicas = 0
	return within(rolloutTime, d.settled)
}

// A service exposes an application, with the same node port for both families.
type service struct {
	name, app string
	nodePort  int
	local     bool // externalTrafficPolicy
}

// create creates the service, and returns its cluster addresses.
func (s *service) create() (addrs []string, err error) {
	type m = map[string]any
	spec := m{
		"type": "NodePort", "selector": m{"app": s.app}, "ipFamilyPolicy": "RequireDualStack", "ipFamilies": []string{"IPv4", "IPv6"},
		"ports": []m{{"port": port, "targetPort": port, "nodePort": s.nodePort}},
	}
	if s.local {
		spec["externalTrafficPolicy"] = "Local"
	}
	var got struct{ Spec struct{ ClusterIPs []string } }
	err = api(http.MethodPost, servicesPath, m{"apiVersion": "v1", "kind": "Service", "metadata": m{"name": s.name}, "spec": spec}, &got)
	return got.Spec.ClusterIPs, err
}
