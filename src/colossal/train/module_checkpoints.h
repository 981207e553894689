// Checkpoints of a user-defined module in training: optimizer and parameters, buffers, generators, and a value of the
// caller's.
//
//   train::ModuleCheckpoints checkpoints(folder, mesh, config, optimization, device);
//   checkpoints.add_buffer("mean", mean, tensor::ShardSpec::whole({4}));
//   checkpoints.save({{"epoch", 3}});
//   const std::optional<train::Resumed> resumed = checkpoints.resume();
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "colossal/base/json.h"
#include "colossal/comm/mesh.h"
#include "colossal/run/config.h"
#include "colossal/tensor/shard_spec.h"
#include "colossal/train/checkpoints.h"
#include "colossal/train/optimization.h"

namespace colossal::train {

/// Saves and loads the checkpoints of a module in one folder. Buffers are copied; they get the dtype of the parameters'
/// exact values, so that they are the same in every precision with such values.
class ModuleCheckpoints final : Resumable {
 public:
  /// `mesh`, `config` and `optimization` must outlive this object.
  /// `device`: the device of the parameters.
  ModuleCheckpoints(std::string folder, comm::Mesh& mesh, const run::Config& config, Optimization& optimization,
                    at::Device device);
  /// Adds this rank's part of a buffer, or a view of it, which a load writes.
  void add_buffer(const std::string& name, at::Tensor value, tensor::ShardSpec spec);

  /// Saves a checkpoint of the current step: see ModuleTraining::save().
  void save(const nlohmann::json& extra);
  /// Continues from the newest checkpoint: see ModuleTraining::load(). The caller must then call zero_grad().
  Resumed load();
  /// Calls load() if the folder holds a step; otherwise returns none.
  std::optional<Resumed> resume();

 private:
  int64_t steps_done() const override { return optimization_.steps_done(); }
  checkpoint::TrainingState state() override;
  void loaded(const checkpoint::TrainingState& filled) override;
  void check_progress(const nlohmann::json& progress) const override { optimization_.check_progress(progress); }
  Resumed load(const checkpoint::StepFolders& steps);

  struct Buffer {
    std::string name;
    at::Tensor value;
    tensor::ShardSpec spec;
  };
  comm::Mesh& mesh_;
  const run::Config& config_;
  Optimization& optimization_;
  at::Device device_;
  Checkpoints checkpoints_;
  std::vector<Buffer> buffers_;
};

}  // namespace colossal::train
