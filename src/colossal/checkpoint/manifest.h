// The table of contents of a checkpoint: the rank file and the checksum of each block of each tensor.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "colossal/base/fields.h"
#include "colossal/base/json.h"
#include "colossal/checkpoint/box.h"
#include "colossal/nn/parameter.h"
#include "colossal/tensor/mesh_coordinates.h"

namespace colossal::checkpoint {

struct StoredBlock {
  int rank;              ///< rank whose file holds it, under the name block_name(tensor, box)
  Box box;               ///< indices of the logical tensor
  std::string checksum;  ///< XXH3-128 of its bytes
};

struct StoredTensor {
  at::ScalarType dtype;
  std::vector<int64_t> shape;  ///< logical shape
  std::vector<StoredBlock> blocks;
  std::vector<int64_t> rows{};  ///< first row and end of the rows of dimension 0 that exist; empty = all
};

/// Returns StoredTensor::rows of a tensor of that shape.
std::vector<int64_t> stored_rows(const nn::RowRange& rows, const std::vector<int64_t>& shape);

/// One block of one tensor, as the manifest and the tables of the ranks hold it.
struct BlockRow {
  std::string name, dtype;                  ///< name and dtype of the tensor
  std::vector<int64_t> shape, start, size;  ///< logical shape of the tensor; first indices and sizes of the block
  std::string checksum;                     ///< XXH3-128 of its bytes
  int rank = 0;                             ///< rank whose file holds it
  std::vector<int64_t> rows{};              ///< StoredTensor::rows

  void fields(Fields& f);
};

/// Manifest of a checkpoint. The layout under which it was saved is information for people only: loading needs just the
/// blocks.
struct Manifest {
  int64_t step = 0;
  nlohmann::json layout;  ///< {"data": 2, "tensor": 2}
  nlohmann::json progress;
  std::map<std::string, StoredTensor> tensors;

  /// Adds a block. Errors: an unknown dtype; a tensor whose dtype or shape differs from that of other blocks; a block
  /// outside its tensor.
  void add(const BlockRow& row);
  /// Errors: throws Error("checkpoint", ...) if the blocks of a tensor do not add up to its elements.
  void check_complete() const;
  /// Writes the file atomically, with a checksum of its content.
  void write(const std::string& path) const;
  /// Reads a manifest. Errors: throws Error("checkpoint", path and reason) for anything that write() cannot have
  /// written.
  static Manifest read(const std::string& path);
};

/// Returns the name of a stored block, e.g. "name@0,128" for a block that starts at [0, 128].
std::string block_name(const std::string& tensor, const Box& box);
/// Returns e.g. "rank-00003.safetensors".
std::string shard_name(int rank);
/// Returns the row of a block, whose rank is 0.
BlockRow block_row(const std::string& name, const StoredTensor& tensor, const Box& box, const std::string& checksum);
nlohmann::json layout_of(const tensor::MeshCoordinates& coordinates);

}  // namespace colossal::checkpoint
