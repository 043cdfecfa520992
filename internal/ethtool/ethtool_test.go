//go:build linux

package ethtool_test

import (
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/unet-go/unet/internal/ethtool"
	"github.com/unet-go/unet/internal/netlab"
)

// inNamespace runs fn with a socket in a namespace with a veth of 4 queues.
func inNamespace(t *testing.T, fn func(s *ethtool.Socket, iface string)) {
	t.Helper()
	h := netlab.RequirePair(t, netlab.Config{Queues: 4}).A
	if err := h.Do(func() error {
		s, err := ethtool.Open()
		if err != nil {
			return err
		}
		defer s.Close()
		fn(s, h.Interface)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

func TestFeatures(t *testing.T) {
	inNamespace(t, func(s *ethtool.Socket, iface string) {
		want := func(feature string, want ethtool.Feature) {
			t.Helper()
			all, err := s.Features(iface)
			if got, has := all[feature]; err != nil || !has || got != want {
				t.Errorf("%s: %+v, %t, %v; want %+v", feature, got, has, err, want)
			}
		}
		// As `ethtool -k` shows a veth: changeable, off [fixed], and a feature of the kernel alone.
		want("rx-vlan-hw-parse", ethtool.Feature{Active: true, Changeable: true})
		want("rx-gro-hw", ethtool.Feature{})
		if err := s.SetFeatures(iface, map[string]bool{"rx-vlan-hw-parse": false, "rx-gro": true}); err != nil {
			t.Error(err)
		}
		want("rx-vlan-hw-parse", ethtool.Feature{Changeable: true})
		want("rx-gro", ethtool.Feature{Active: true, Changeable: true})
		if err := s.SetFeatures(iface, map[string]bool{"rx-gro-hw": true}); err != nil {
			t.Error(err)
		}
		want("rx-gro-hw", ethtool.Feature{})
		if err := s.SetFeatures(iface, map[string]bool{"rx-vlan-hw-parse": true, "no-such": true}); err == nil || !strings.Contains(err.Error(), "no-such") {
			t.Errorf("an unknown feature: %v", err)
		}
		want("rx-vlan-hw-parse", ethtool.Feature{Changeable: true})
		if all, err := s.Features("none"); !errors.Is(err, unix.ENODEV) {
			t.Errorf("no interface: %v, %v", all, err)
		}
		if _, err := s.Features("a-name-that-is-too-long"); err == nil {
			t.Error("a name of 23 bytes is accepted")
		}
	})
}

func TestChannels(t *testing.T) {
	inNamespace(t, func(s *ethtool.Socket, iface string) {
		if err := s.SetChannels(iface, ethtool.Channels{Rx: 3, Tx: 2}); err != nil {
			t.Error(err)
		}
		if c, err := s.Channels(iface); err != nil || c != (ethtool.Channels{Rx: 3, Tx: 2}) {
			t.Errorf("%+v, %v", c, err)
		}
		if err := s.SetChannels(iface, ethtool.Channels{Rx: 5, Tx: 2}); !errors.Is(err, unix.EINVAL) {
			t.Errorf("more than there are: %v", err)
		}
		if c, err := s.Channels("lo"); !errors.Is(err, unix.EOPNOTSUPP) {
			t.Errorf("lo: %+v, %v", c, err)
		}
	})
}

// Answers of the kernel are complete while the runtime moves stacks of goroutines and collects garbage: the
// addresses that were passed to the kernel stay valid.
func TestAnswersDuringGarbageCollection(t *testing.T) {
	inNamespace(t, func(s *ethtool.Socket, iface string) {
		stop := make(chan struct{})
		var collector sync.WaitGroup
		collector.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					runtime.GC()
				}
			}
		})
		defer collector.Wait()
		defer close(stop)
		for range 300 {
			answer := make(chan error)
			go func() { // with a new, small stack
				driver, err := s.Driver(iface)
				if err == nil && driver != "veth" {
					err = errors.New("driver " + driver)
				}
				all, err2 := s.Features(iface)
				if err2 == nil && !all["rx-vlan-hw-parse"].Active {
					err2 = errors.New("rx-vlan-hw-parse is off")
				}
				answer <- errors.Join(err, err2)
			}()
			if err := <-answer; err != nil {
				t.Fatal(err)
			}
		}
	})
}
