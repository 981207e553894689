// The tensors of a user-defined module in training, whole, one at a time.
//
//   train::WholeTensors tensors = training->named_tensors();                       // every rank
//   while (const auto tensor = tensors.next()) print(tensor->name, tensor->value);
#pragma once
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "colossal/checkpoint/safetensors.h"
#include "colossal/comm/mesh.h"
#include "colossal/train/module_tensors.h"

namespace colossal::train {

class Optimization;

/// A tensor on the host, of which the caller owns the memory.
struct NamedValue {
  std::string name;
  at::Tensor value;
};

/// Reads parameters (their exact values: master weights, if there are any) and then buffers (rank 0's). Made by
/// ModuleTraining::named_tensors(), and valid as long as the training. All ranks must call next() and read() in the
/// same order. Values may change between calls.
///
/// Memory: one whole tensor at a time, on an accelerator there and on the host.
class WholeTensors {
 public:
  WholeTensors(Optimization& optimization, comm::Mesh& mesh, const ModuleTensors::Named& buffers);
  WholeTensors(WholeTensors&&) noexcept;
  ~WholeTensors();

  /// Returns name, dtype and shape of all tensors, in the order of next(): parameters in the order of their chunks.
  const std::vector<checkpoint::TensorEntry>& entries() const { return entries_; }
  /// Returns the next tensor; none = there are no more. See read().
  std::optional<NamedValue> next();
  /// Returns the tensor of that name.
  /// Communication: collective among all ranks. Ranks that shard a parameter broadcast their parts of it, and rank 0
  ///                broadcasts a buffer. With tiers of [memory] also comm::agree().
  /// Errors ("training"): an unknown name. With tiers, errors of a load, on all ranks.
  at::Tensor read(const std::string& name);

 private:
  struct Source;
  at::Tensor read(const Source& source);

  Optimization& optimization_;
  comm::Mesh& mesh_;
  std::map<std::string, std::unique_ptr<Source>> sources_;
  std::vector<checkpoint::TensorEntry> entries_;
  size_t next_ = 0;
};

/// Writes tensors of `tensors` to model.safetensors in `folder`, or to several files of at most `max_file_bytes` bytes
/// (but at least one tensor) and an index, as transformers names them. `names`: pairs of the name in the folder and the
/// name of the tensor; empty = all under their own names. `dtype`: of floating-point values; none = their own.
///
/// Communication: every rank must call; as WholeTensors::read() of each tensor.
/// Memory:        one tensor at a time, on rank 0 a second one if `dtype` differs.
/// Errors, on all ranks: ("training") an unknown name, or one that is given twice, before anything is written. ("file")
///         a folder or file that rank 0 cannot write.
void save_weights(const std::string& folder, WholeTensors& tensors, comm::Group& ranks,
                  std::vector<std::pair<std::string, std::string>> names, std::optional<at::ScalarType> dtype,
                  int64_t max_file_bytes);

}  // namespace colossal::train
