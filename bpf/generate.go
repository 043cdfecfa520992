package bpf

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -target bpfel -type unet_counter -type unet_tag_kind -type unet_alarm_kind -type unet_alarm Mux src/mux.c -- -O2 -Wall -Werror -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu
//go:generate sh -c "sha256sum generate.go src/* mux_bpfel.go mux_bpfel.o > SOURCES.sha256"
