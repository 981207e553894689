// The table of contents of a checkpoint: which block of which tensor lies in which rank's file, under which checksum.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "colossal/checkpoint/box.h"
#include "colossal/tensor/place.h"

namespace colossal::checkpoint {

struct StoredBlock {
  int rank;              ///< whose file holds it, under the name block_name(tensor, box)
  Box box;               ///< of the logical tensor
  std::string checksum;  ///< XXH3-128 of its bytes
};

struct StoredTensor {
  at::ScalarType dtype;
  std::vector<int64_t> shape;  ///< logical
  std::vector<StoredBlock> blocks;
};

/// Names come with the checkpoint; the layout it was saved under is kept for people, loading needs the blocks alone.
struct Manifest {
  int64_t step = 0;
  nlohmann::json layout;  ///< {"data": 2, "tensor": 2}
  nlohmann::json progress;
  std::map<std::string, StoredTensor> tensors;

  /// Adds the blocks of one rank, rows made by block_row().
  /// Errors: a tensor whose dtype or shape is not that of other ranks.
  void add(int rank, const nlohmann::json& table);
  /// Errors: throws Error("checkpoint", ...) when the blocks of a tensor do not add up to its elements.
  void check_complete() const;
  /// With a checksum over itself, atomically.
  void write(const std::string& path) const;
  /// Errors: throws Error("checkpoint", path and reason) on anything that write() cannot have written.
  static Manifest read(const std::string& path);
};

/// "name@0,128": the start of the block.
std::string block_name(const std::string& tensor, const Box& box);
/// "rank-00003.safetensors"
std::string shard_name(int rank);
/// One row of a rank's table: {"name", "dtype", "shape", "start", "size", "checksum"}.
nlohmann::json block_row(const std::string& name, const StoredTensor& tensor, const Box& box,
                         const std::string& checksum);
nlohmann::json layout_of(const tensor::Place& place);

}  // namespace colossal::checkpoint
