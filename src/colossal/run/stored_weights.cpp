#include "colossal/run/stored_weights.h"

#include <ATen/ATen.h>

#include <string>

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

/// Returns the weights of a store. name_of(parameter) is the name of its weight; empty = the parameter is left out.
template <class NameOf>
std::vector<checkpoint::NamedTensor> named_weights(memory::ChunkStore& store, const NameOf& name_of) {
  std::vector<checkpoint::NamedTensor> weights;
  for (const auto* shards : {&store.shards(), &store.frozen()})
    for (const memory::Shard& shard : *shards)
      for (const memory::Piece& piece : shard.stored_pieces()) {
        const std::string name = name_of(*piece.parameter);
        if (!name.empty()) weights.push_back({name, values_of(shard, piece), piece.parameter->spec, piece.part});
      }
  return weights;
}

}  // namespace

std::vector<checkpoint::NamedTensor> weights_of(memory::ChunkStore& store) {
  return named_weights(store, [](const nn::Parameter& p) { return p.name; });
}

std::vector<checkpoint::NamedTensor> saved_weights_of(memory::ChunkStore& store) {
  return named_weights(store, [](const nn::Parameter& p) { return p.treatment.saved ? p.saved_name() : ""; });
}

}  // namespace colossal::run
