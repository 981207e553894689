#include "colossal/memory/written_values.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <vector>

#include "colossal/base/checksum.h"

namespace colossal::memory {
namespace {

/// Calls body(parameters) with the elements of the parameters in `shard`: its copy, or the values if it has none.
template <class Body>
void write_parameters(const Chunk& chunk, const Shard& shard, const Body& body) {
  const bool has_masters = chunk.options().dtype() != shard.options().dtype();
  if (has_masters) shard.set_copy_written();
  const Lease lease = shard.lease(has_masters ? Needs{.copy = Access::Write} : Needs{.values = Access::Write});
  body(has_masters ? lease->copy : lease->values);
}

/// Writes the values of the parameter in that slot, which has memory of its own, to this rank's part.
void write_moved(Chunk& chunk, std::span<const Shard> shards, size_t index) {
  const Slot& slot = chunk.slots()[index];
  const at::Tensor values = slot.parameter->value.detach().contiguous().view(-1);
  if (chunk.state() == Chunk::State::Gathering) chunk.ready();  // the gather reads the part that is written here
  const bool is_whole = chunk.state() != Chunk::State::Sharded;
  if (is_whole) chunk.whole().narrow(0, slot.offset, slot.size).copy_(values);
  if (chunk.stays()) return;
  for (const Shard& shard : shards)
    for (const Piece& piece : shard.stored_pieces())
      if (piece.parameter == slot.parameter)
        write_parameters(chunk, shard, [&](const at::Tensor& parameters) {
          parameters.narrow(0, piece.offset, piece.part.size)
              .copy_(values.narrow(0, piece.part.first, piece.part.size));
        });
}

/// Returns what this rank's part of a compressed chunk holds where nobody wrote since the shards got its values.
at::Tensor unwritten_part(const Chunk& chunk, std::span<const Shard> shards, const Needs& needs) {
  if (chunk.kept_part().defined()) return chunk.kept_part();
  std::vector<at::Tensor> parts;
  for (const Shard& shard : shards) {
    const Lease lease = shard.lease(needs);
    const at::Tensor& stored = needs.copy != Access::None ? lease->copy : lease->values;
    parts.push_back(stored.to(chunk.options(), /*non_blocking=*/false, /*copy=*/true));
  }
  return chunk.as_gathered(at::cat(parts));
}

}  // namespace

void attach_moved(Chunk& chunk, std::span<const Shard> shards) {
  const at::NoGradGuard no_grad;
  bool is_any = false;
  for (size_t slot = 0; slot < chunk.slots().size(); ++slot) {
    if (chunk.is_attached(slot)) continue;
    chunk.require_same_kind(slot);
    write_moved(chunk, shards, slot);
    chunk.attach(slot);
    is_any = true;
  }
  if (is_any && chunk.is_compressed() && !chunk.stays() && chunk.whole().defined()) chunk.set_part_kept();
}

void store_written(Chunk& chunk, std::span<const Shard> shards) {
  if (!chunk.is_written()) return;
  chunk.set_written(false);
  const at::NoGradGuard no_grad;
  const at::Tensor part = chunk.own_slice();
  at::Tensor shown;
  if (chunk.is_compressed()) {
    const bool has_masters = chunk.options().dtype() != shards.front().options().dtype();
    const Needs needs = has_masters ? Needs{.copy = Access::Read} : Needs{.values = Access::Read};
    shown = unwritten_part(chunk, shards, needs);
  }
  for (size_t i = 0; i < shards.size(); ++i) {
    const auto& [first, length, offloaded] = chunk.segments()[i];
    const at::Tensor written = part.narrow(0, first, length);
    write_parameters(chunk, shards[i], [&](const at::Tensor& parameters) {
      if (!shown.defined()) {
        parameters.copy_(written);
        return;
      }
      const at::Tensor changed = written.ne(shown.narrow(0, first, length)).to(parameters.device());
      parameters.copy_(at::where(changed, written.to(parameters.device()), parameters));
    });
  }
  if (shown.defined()) chunk.set_part_kept();
}

void adopt_written(Chunk& chunk, std::span<const Shard> shards) {
  const at::NoGradGuard no_grad;
  at::Tensor shown;
  if (chunk.stays() && chunk.is_compressed()) shown = unwritten_part(chunk, shards, {.values = Access::Read});
  bool is_any = false;
  for (size_t i = 0; i < shards.size(); ++i) {
    const Segment& segment = chunk.segments()[i];
    if (chunk.stays() || shards[i].is_copy_written())
      is_any |= shards[i].adopt_copy(shown.defined() ? shown.narrow(0, segment.first, segment.length) : shown);
  }
  if (shown.defined() && is_any) chunk.set_part_kept();
}

uint64_t fingerprint_of(const Chunk& chunk) {
  const at::Tensor here = chunk.own_slice().detach().cpu();
  return checksum_number(here.const_data_ptr(), here.nbytes());
}

}  // namespace colossal::memory
