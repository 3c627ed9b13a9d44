// Command traffic is what the demo sends through its containers, so that it needs no other program:
//
//	traffic serve :80          echo what comes by TCP, after a line with the peer's address
//	traffic ask ADDRESS [SEEN] send a megabyte, compare the echo, and print the address that the server saw
//	traffic refused ADDRESS    there is no server, and nothing else answers
//
// With SEEN it is an error if the server saw another one.
package main

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"time"
)

func main() {
	var err error
	switch args := os.Args[1:]; {
	case len(args) == 2 && args[0] == "serve":
		err = serve(args[1])
	case len(args) == 2 && args[0] == "ask":
		err = ask(args[1], "")
	case len(args) == 3 && args[0] == "ask":
		err = ask(args[1], args[2])
	case len(args) == 2 && args[0] == "refused":
		err = refused(args[1])
	default:
		err = errors.New("usage: traffic serve ADDRESS | ask ADDRESS [SEEN] | refused ADDRESS")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "traffic:", err)
		os.Exit(1)
	}
}

func serve(address string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			fmt.Fprintln(c, c.RemoteAddr())
			io.Copy(c, c)
		}()
	}
}

func refused(address string) error {
	c, err := net.DialTimeout("tcp", address, 5*time.Second)
	if err == nil {
		c.Close()
		return fmt.Errorf("%s accepts connections", address)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("%s does not refuse connections: %w", address, err)
	}
	return nil
}

func ask(address, want string) error {
	c, err := net.DialTimeout("tcp", address, 5*time.Second)
	for end := time.Now().Add(10 * time.Second); errors.Is(err, syscall.ECONNREFUSED) && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond) // the server is starting
		c, err = net.DialTimeout("tcp", address, 5*time.Second)
	}
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(30 * time.Second))
	sent, got := make([]byte, 1<<20), make([]byte, 1<<20)
	rand.Read(sent)
	go c.Write(sent) // what is missing is missing in the echo
	r := bufio.NewReader(c)
	line, err := r.ReadString('\n')
	if err == nil {
		_, err = io.ReadFull(r, got)
	}
	if err != nil {
		return fmt.Errorf("from %s: %w", address, err)
	}
	if !bytes.Equal(sent, got) {
		return fmt.Errorf("%s did not echo what it was sent", address)
	}
	seen, _, err := net.SplitHostPort(strings.TrimSpace(line))
	if err == nil && want != "" && seen != want {
		err = fmt.Errorf("%s saw %s, not %s", address, seen, want)
	}
	fmt.Println(seen)
	return err
}
