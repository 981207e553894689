// Records the work of one rank in a training step from shapes alone, without other ranks, data or a device.
//
//   for (const StepEvent& event : train::record_step({config, shape}, 5).list)    // rank 5 of config.parallel.ranks()
//     if (event.kind == StepEvent::Kind::Call) bytes += event.bytes;
#pragma once
#include <string>

#include "colossal/base/step_events.h"
#include "colossal/base/step_memory.h"
#include "colossal/memory/account.h"
#include "colossal/tensor/batch.h"
#include "colossal/train/run_models.h"

namespace colossal::train {

/// The events of a step and the memory of its tensors.
struct RecordedStep : StepEvents {
  StepMemory memory;
  int64_t panel_bytes = 0;  ///< packed weights that draw answers; 0 = none
  int64_t cache_bytes = 0;  ///< keys and values that draw answers (StepRule::cache_bytes()); 0 = steps draw none
  std::string recompute{};  ///< choice of memory.recompute = "auto" (train/recompute_choice.h); empty = another value
};

/// Returns the events and the memory of the second step of rank `rank`, as the rule of its models makes it: forward,
/// backward, reduction and update, of full samples, each row one document. From the second step on, the store knows the
/// order in which chunks are used.
///
/// Events: calls, waits, products and attention equal those that the rank records in the real run
/// (comm::RecordingWorld) on the device of [run]. Products inside update rules are included if the rank computes them.
/// Elementwise events are those of the run on shapes: our kernels announce the bytes that they move, and each other
/// operator of LibTorch counts as one kernel (tensor/moved_bytes.h). An op of ours without an announcement counts as
/// the operators of its reference, which move more bytes than its kernel.
/// HostCopy and Disk events are the transfers of the tiers of [memory], with waits where the rank needs their results
/// (tensor/transfers.h). Copies to the host have the bytes of DeviceUse::copied_from. Copies to the device have those
/// of DeviceUse::copied_to, and in addition states and partial sums of gradients that return to the device. A real
/// disk takes time, so it may read other tensors ahead. Not recorded: copies of parameters that stay on an accelerator
/// while the host updates them, and that a collective waits for the copy of its input.
/// Memory: the bytes that a memory::Account of the real rank counts in its second step, for each kind, with these
/// differences. A rule that draws answers holds their panels and cache when the step begins, and draws nothing. Memory
/// that operators and transports take from LibTorch's allocators for themselves is missing, such as blocks of operands
/// that oneDNN's products copy, up to 2 MiB for each thread, and up to 2 MiB around each packed weight. Reads and
/// writes of a disk take no time.
///
/// Several threads may record at once, each for its own rank: each has its own account.
/// No communication, and no parameter has memory; no file is made. Time: the bookkeeping of two steps.
/// Errors: as initialize(). "record": a model, an objective or an adapter with operators that LibTorch cannot run on
///         shapes alone; the message names the operator and the key that chooses it.
RecordedStep record_step(const ConfiguredRun& run, int rank);
/// The same for `rows`, those that the rank's replica passes to Engine::train_step(), on the host. Only the borders of
/// their documents count: they decide which tokens a rank of a sequence mode reads, the operations of attention, and
/// which masks a T5 needs.
/// Errors: also those of Engine::train_step() for rows that do not fit.
RecordedStep record_step(const ConfiguredRun& run, int rank, const tensor::Batch& rows);

/// Returns the memory of a step, without its curve, by the counts of an account whose peaks were reset when the step
/// began.
StepMemory step_memory(const memory::Account::Usage& usage);

}  // namespace colossal::train
