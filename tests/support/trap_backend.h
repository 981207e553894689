// The parts of the trap device: what trap_device.cpp registers. Tests include trap_device.h.
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

/// Gives tensors of the current trap device forbidden addresses, and counts as allocators of GPUs do
/// (c10::DeviceAllocator::getDeviceStats): bytes in lines of 64.
c10::Allocator& trap_allocator();
/// Gives tensors of the host that stand for those of the device memory of it, by its accessible address.
c10::Allocator& trap_alias_allocator();
/// Forbidden memory under `alias`, a pointer of trap_alias_allocator(), which it takes over.
c10::DataPtr forbidden_of(c10::DataPtr alias, c10::Device device);

/// Page-locked memory of the host, as far as LibTorch can see.
c10::Allocator& trap_pinned_allocator();
bool is_trap_pinned(const void* address);

/// Of trap device `index`: one each, apart from that of the host.
const at::Generator& trap_generator(c10::DeviceIndex index);
/// The generator of the CPU inside one of the trap device's.
at::Generator host_generator_of(const at::Generator& generator);

/// The device whose turn it is on this thread.
c10::DeviceIndex current_trap_device();
void set_current_trap_device(c10::DeviceIndex index);

/// An operator has run there, which moves the device's clock.
void count_operator(c10::Device device);

/// Adds to what happened on a device.
void count(c10::Device device, const TrapCounts& happened);
TrapCounts counted(c10::Device device);

/// What is allocated on a device: forbidden addresses, and bytes in lines of 64.
std::vector<std::pair<void*, size_t>> trap_blocks(c10::Device device);

/// Copies between a device and pinned memory that nobody waits for and that a stream other than the first was asked
/// for: they are made as late as they may be (trap_streams.cpp).
/// Whether `device` has such a stream as its current one on this thread; then it makes `copy` in its turn.
bool is_aside(c10::Device device);
void copy_later(c10::Device device, std::function<void()> copy);
/// The current stream of `device` does something at once: what it was asked for before comes first.
void catch_up(c10::Device device);
/// All streams of all devices have done what they were asked for.
void catch_up_all();
/// Which stream is the current one of a device on this thread: 0 is the first.
c10::StreamId current_trap_stream(c10::Device device);
void set_current_trap_stream(c10::Device device, c10::StreamId stream);
c10::StreamId new_trap_stream();
/// How much a stream was asked for so far; and that it does that much, if it has not: then it was behind, which is
/// returned. `by`: another stream of the device, which is to do so before it goes on, not the host.
int64_t asked_of(c10::Device device, c10::StreamId stream);
bool is_done(c10::Device device, c10::StreamId stream, int64_t asked);
bool do_until(c10::Device device, c10::StreamId stream, int64_t asked);
void go_on_behind(c10::Device device, c10::StreamId by, c10::StreamId stream, int64_t asked);

/// While a device records a graph (trap_graph.h): what runs there is computed, for the sizes of what comes after, and
/// written down; when the recording ends the numbers are forgotten.
bool is_recording(c10::Device device);
/// What every replay is to do again; nothing where `device` does not record.
void record_call(c10::Device device, std::function<void()> call);
/// Throws while `device` records.
void refuse_while_recording(c10::Device device, const char* what);
/// Memory that is allocated while `device` records is the graph's: tensors give it back without freeing it.
void keep_for_graph(c10::Device device, void* address);
bool is_given_to_graph(void* address);

/// The operators: the CPU's, behind one boxed function, and the few that cross between the host and the device.
void register_trap_operators();
/// Plain versions of fused operators that LibTorch has for GPUs alone: their checks of operands, and their numbers.
void register_trap_fused_operators(torch::Library& aten);

}  // namespace colossal::test
