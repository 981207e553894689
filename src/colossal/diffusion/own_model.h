// A model that each rank has whole: a text encoder or an autoencoder, beside the model that the ranks share.
//
//   const OwnModel encoder("sd/text_encoder", world, device, {.dtype = at::kBFloat16}, program);
//   models::text_states(encoder.model(), ids);
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "colossal/comm/mesh.h"
#include "colossal/comm/part_of_world.h"
#include "colossal/comm/world.h"
#include "colossal/distributed/distributed_model.h"
#include "colossal/run/learned_words.h"
#include "colossal/run/program.h"
#include "colossal/run/saved_model.h"

namespace colossal::diffusion {

/// How such a model is loaded.
struct OwnLoading {
  std::optional<at::ScalarType> dtype{};  ///< default: that of its run; fp32 for a folder or a preset
  bool uses_average = true;               ///< of a run with training.ema (run::Loading::uses_average)
  uint64_t seed = 1;                      ///< of the weights of a preset
  /// Adapters that are merged, of files for pipelines (checkpoint/peft/pipeline_file.h): those of this part
  std::vector<run::AdapterChoice> adapters{};
  std::vector<run::LearnedWord> words{};  ///< of a text encoder: words that it gets (run/learned_words.h)
};

class OwnModel {
 public:
  /// Loads a run folder or a folder of weights, or draws the weights of a preset. `world` must outlive the model.
  /// Communication: none. Errors: those of run::load_model() and run::find_source().
  OwnModel(const std::string& path, comm::World& world, at::Device device, const OwnLoading& loading,
           const run::Program& program);

  const models::Model& model() const { return model_->decoding_model(); }
  const nn::Parameters& parameters() const { return model_->parameters(); }
  const std::vector<std::string>& notices() const { return saved_.notices; }
  comm::Group& alone() { return mesh_.all(); }  ///< this rank, as the group of the model

 private:
  comm::PartOfWorld alone_;
  comm::Mesh mesh_;
  run::SavedModel saved_;
  std::unique_ptr<distributed::DistributedModel> drawn_;  // of a preset
  distributed::DistributedModel* model_ = nullptr;
};

}  // namespace colossal::diffusion
