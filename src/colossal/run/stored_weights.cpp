#include "colossal/run/stored_weights.h"

#include <ATen/ATen.h>

namespace colossal::run {
namespace {

tensor::Stored values_of(const memory::Shard& shard, const memory::Piece& piece) {
  const int64_t offset = piece.offset, size = piece.part.size;
  return {shard.options(),
          {size},
          [=](bool writes) {
            const memory::Lease lease = shard.lease({.values = writes ? memory::Access::Write : memory::Access::Read});
            return tensor::Held{lease->values.narrow(0, offset, size), lease};
          },
          shard.identity()};
}

}  // namespace

std::vector<checkpoint::NamedTensor> weights_of(memory::ChunkStore& store, bool only_saved) {
  std::vector<checkpoint::NamedTensor> weights;
  for (const auto* shards : {&store.shards(), &store.frozen()})
    for (const memory::Shard& shard : *shards)
      for (const memory::Piece& piece : shard.pieces())
        if (!only_saved || piece.parameter->treatment.saved)
          weights.push_back({piece.parameter->name, values_of(shard, piece), piece.parameter->spec, piece.part});
  return weights;
}

}  // namespace colossal::run
