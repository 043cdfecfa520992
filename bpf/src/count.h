/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
#ifndef UNET_COUNT_H
#define UNET_COUNT_H

#include "unet.h"

/* One slot for each counter and CPU: written without atomics, summed by the reader. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, UNET_COUNTERS);
	__type(key, enum unet_counter);
	__type(value, __u64);
} counters SEC(".maps");

static __always_inline void add(enum unet_counter counter, __u64 n)
{
	__u64 *v = bpf_map_lookup_elem(&counters, &counter);

	if (v)
		*v += n;
}

/* count ends a program: one counter, one verdict. */
static __always_inline int count(enum unet_counter counter, int verdict)
{
	add(counter, 1);
	return verdict;
}

#endif
