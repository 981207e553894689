// The chunks of a store, before there is one: sizes and groups, no tensors.
//
//   for (const memory::PlannedChunk& chunk : memory::plan_store(parameters, mesh, options).chunks)
//     bytes += chunk.length * size;   // of all ranks that share it
#pragma once
#include <cstdint>
#include <vector>

#include "colossal/memory/chunk_store.h"

namespace colossal::memory {

struct PlannedChunk {
  std::vector<Slot> slots;
  int64_t length;        ///< elements, with padding
  comm::Group* sharers;  ///< of each a part of the same length
  bool is_trained;
  int64_t part_length() const { return length / sharers->size(); }
};

struct StorePlan {
  std::vector<PlannedChunk> chunks;  ///< in their order
  int64_t padding = 0;               ///< elements that no parameter has
};

/// What a ChunkStore of the same arguments has. A chunk has parameters of one model, and the chunks of a model are
/// those that it has alone. Makes the groups of those that share, which is collective as far as
/// Mesh::group() is. Errors ("zero"): what of ChunkOptions does not go together.
StorePlan plan_store(nn::Parameters& parameters, comm::Mesh& mesh, const ChunkOptions& options);

/// What the elements [begin, begin + length) of a chunk have of the parameters in it. `counts`: FlatPart::counts.
std::vector<Piece> pieces_of(const std::vector<Slot>& slots, int64_t begin, int64_t length, bool counts);

}  // namespace colossal::memory
