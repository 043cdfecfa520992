package bpf

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -target bpfel -type unet_counter -type unet_tag_kind -type unet_alarm_kind -type unet_alarm -type unet_bucket Mux src/mux.c -- -O2 -Wall -Werror -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -target bpfel -type unet_record -type unet_place Capture src/capture.c -- -O2 -Wall -Werror -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu
//go:generate sh -c "sha256sum generate.go src/* *_bpfel.go *_bpfel.o > SOURCES.sha256"
