// The chunks of a store before it exists: sizes and groups, no tensors.
//
//   for (const memory::PlannedChunk& chunk : memory::plan_store(parameters, mesh, options).chunks)
//     bytes += chunk.length * size;   // over all ranks that share it
#pragma once
#include <cstdint>
#include <vector>

#include "colossal/memory/chunk_store.h"

namespace colossal::memory {

struct PlannedChunk {
  std::vector<Slot> slots;
  int64_t length;        ///< elements, with padding
  comm::Group* sharers;  ///< group of ranks, each of which owns a part of the chunk; all parts have the same length
  bool is_trained;
  at::ScalarType dtype;  ///< dtype in which its parameters are stored (nn::Parameters::stored_dtype)
  int64_t part_length() const { return length / sharers->size(); }
  int64_t element_size() const { return static_cast<int64_t>(c10::elementSize(dtype)); }
};

struct StorePlan {
  std::vector<PlannedChunk> chunks;  ///< chunks in the order in which the store makes them
  int64_t padding = 0;               ///< elements that belong to no parameter
};

/// Returns the plan of a ChunkStore of the same arguments. A chunk has parameters of one model, and the chunks of a
/// model are the same as in a store of that model alone. Makes the groups of ranks that share chunks, which is as
/// collective as Mesh::group().
/// Errors ("zero"): options that contradict each other; a number of sharers that does not divide the replicas.
StorePlan plan_store(nn::Parameters& parameters, comm::Mesh& mesh, const ChunkOptions& options);

/// Returns the pieces of parameters in the elements [begin, begin + length) of a chunk. `counts`: FlatPart::counts.
std::vector<Piece> pieces_of(const std::vector<Slot>& slots, int64_t begin, int64_t length, bool counts);

/// Returns the parts of `pieces` that train, ascending: a piece without rows that are frozen (nn::Treatment::rows) as
/// it is, of others the ranges of rows that train.
std::vector<Piece> trained_pieces(const std::vector<Piece>& pieces, const tensor::MeshCoordinates& coordinates);

}  // namespace colossal::memory
