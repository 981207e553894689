// The parts of the trap device that trap_device.cpp registers. Tests include trap_device.h instead.
#pragma once
#include <ATen/core/Generator.h>
#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <torch/library.h>

#include <functional>
#include <utility>
#include <vector>

#include "support/trap_device.h"

namespace colossal::test {

/// Returns the allocator of the trap devices. It gives tensors of the current device forbidden addresses. It counts
/// bytes in lines of 64, as allocators of GPUs do (c10::DeviceAllocator::getDeviceStats).
c10::Allocator& trap_allocator();
/// Returns the allocator of host tensors that stand for tensors of the device. It gives them device memory, by its
/// accessible address.
c10::Allocator& trap_alias_allocator();
/// Returns the forbidden address of `alias`, a pointer of trap_alias_allocator(), and takes over its memory.
c10::DataPtr forbidden_of(c10::DataPtr alias, c10::Device device);

/// Returns an allocator of host memory that LibTorch takes for page-locked.
c10::Allocator& trap_pinned_allocator();
bool is_trap_pinned(const void* address);

/// Returns the generator of trap device `index`. Each device has its own one, separate from the host's.
const at::Generator& trap_generator(c10::DeviceIndex index);
/// Returns the CPU generator inside a generator of a trap device.
at::Generator host_generator_of(const at::Generator& generator);

/// Returns the current device of this thread.
c10::DeviceIndex current_trap_device();
void set_current_trap_device(c10::DeviceIndex index);

/// Counts an operator of a device, which advances the device's clock.
void count_operator(c10::Device device);

/// Adds `happened` to the counts of a device.
void count(c10::Device device, const TrapCounts& happened);
TrapCounts counted(c10::Device device);

/// Returns the blocks that are allocated on a device: forbidden addresses, and bytes in lines of 64.
std::vector<std::pair<void*, size_t>> trap_blocks(c10::Device device);

// A non-blocking copy between a device and pinned memory on a stream other than the first is made as late as is allowed
// (trap_streams.cpp).

/// Returns true if the current stream of `device` on this thread is such a stream.
bool is_aside(c10::Device device);
/// Queues `copy` on the current stream of `device`.
void copy_later(c10::Device device, std::function<void()> copy);
/// Runs all work that was queued on the current stream of `device`, because that stream is about to run other work.
void catch_up(c10::Device device);
/// Runs all work that was queued on any stream of any device.
void catch_up_all();
/// Returns the current stream of a device on this thread; 0 is the first stream.
c10::StreamId current_trap_stream(c10::Device device);
void set_current_trap_stream(c10::Device device, c10::StreamId stream);
c10::StreamId new_trap_stream();
/// Returns the number of work items that were queued on a stream so far.
int64_t asked_of(c10::Device device, c10::StreamId stream);
/// Returns true if the first `asked` items of a stream have run.
bool is_done(c10::Device device, c10::StreamId stream, int64_t asked);
/// Runs items of a stream until the first `asked` ones have run. Returns true if some had not run before.
bool do_until(c10::Device device, c10::StreamId stream, int64_t asked);
/// Makes another stream of the device, `by`, wait for the first `asked` items of `stream`. The host does not wait.
void go_on_behind(c10::Device device, c10::StreamId by, c10::StreamId stream, int64_t asked);

/// Returns true while a device records a graph (trap_graph.h). The device then computes each operator, because later
/// operators need the sizes, and records it. At the end of the recording the computed numbers are dropped.
bool is_recording(c10::Device device);
/// Adds a call that every replay repeats. Does nothing if `device` does not record.
void record_call(c10::Device device, std::function<void()> call);
/// Throws if `device` records.
void refuse_while_recording(c10::Device device, const char* what);
/// Gives a block that was allocated while `device` records to the graph. Tensors then release it without freeing it.
void keep_for_graph(c10::Device device, void* address);
/// Marks a block as released by its tensors. Returns false if no graph owns it, so the caller must free it.
bool is_given_to_graph(void* address);

/// Registers the operators: one boxed function for those of the CPU, and the few that copy between host and device.
void register_trap_operators();
/// Registers plain versions of fused operators that LibTorch has only for GPUs: the same checks of operands, and the
/// same results.
void register_trap_fused_operators(torch::Library& aten);

}  // namespace colossal::test
