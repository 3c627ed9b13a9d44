package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
)

// A service is one of a gRPC server on a Unix socket. One call is one HTTP/2
// request (grpc/doc/PROTOCOL-HTTP2.md), and that much the library speaks.
type service struct {
	name string
	http http.Client
}

// dialService connects when the first call is made.
func dialService(socket, name string) *service {
	t := &http.Transport{Protocols: new(http.Protocols)}
	t.Protocols.SetUnencryptedHTTP2(true)
	t.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}
	return &service{name: name, http: http.Client{Transport: t}}
}

// call sends one message and returns the answer. An error is the server's words.
func (s *service) call(ctx context.Context, method string, in message) (message, error) {
	frame := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(in))) // 0: not compressed
	request, err := http.NewRequestWithContext(ctx, http.MethodPost,
		"http://localhost/"+s.name+"/"+method, bytes.NewReader(append(frame, in...)))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/grpc")
	request.Header.Set("TE", "trailers")
	answer, err := s.http.Do(request)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", method, err)
	}
	defer answer.Body.Close()
	out, err := io.ReadAll(answer.Body)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", method, err)
	}
	if err := status(answer); err != nil {
		return nil, fmt.Errorf("%s: %w", method, err)
	}
	if len(out) < len(frame) {
		return nil, fmt.Errorf("%s: an answer of %d bytes", method, len(out))
	}
	return out[len(frame):], nil
}

// status reads the trailers, which a server that has only those sends as headers.
func status(answer *http.Response) error {
	trailers := answer.Trailer
	if trailers.Get("Grpc-Status") == "" {
		trailers = answer.Header
	}
	code := trailers.Get("Grpc-Status")
	if code == "0" {
		return nil
	}
	words, err := url.PathUnescape(trailers.Get("Grpc-Message"))
	if err != nil {
		return err
	}
	return fmt.Errorf("HTTP %s, gRPC status %q: %s", answer.Status, code, words)
}
