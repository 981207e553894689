#include "colossal/diffusion/own_model.h"

#include "colossal/base/error.h"
#include "colossal/base/seed.h"
#include "colossal/run/model_source.h"

namespace colossal::diffusion {

OwnModel::OwnModel(const std::string& path, comm::World& world, at::Device device, const OwnLoading& loading,
                   const run::Program& program)
    : alone_(world, world.size()), mesh_(alone_, {}) {
  const run::ModelSource source = run::find_source(path, program);
  if (source.is_preset) {
    require(loading.adapters.empty(), "adapter",
            "adapters of a text encoder must be put onto trained weights: got random ones, of the preset ", path,
            "; name a folder with --from");
    require(loading.words.empty(), "adapter",
            "learned words must be put onto a trained text encoder: got random weights, of the preset ", path,
            "; name a folder with --from");
    nn::Parameters::Options options{.dtype = loading.dtype.value_or(at::kFloat), .device = device};
    options.seed = derive_seed(loading.seed, "parameters");
    drawn_ = std::make_unique<distributed::DistributedModel>(mesh_, distributed::ParallelConfig{}, source.shape,
                                                             options, distributed::DistributedModel::Workload{});
    model_ = drawn_.get();
    return;
  }
  run::Loading own{.tokenizer = "none", .dtype = loading.dtype, .uses_average = loading.uses_average};
  run::set_adapters(own, loading.adapters);
  at::Tensor words;
  if (!loading.words.empty()) words = run::rows_of(loading.words, source.shape.hidden);
  if (words.defined()) own.learned_rows = words.size(0);
  saved_ = run::load_model(path, mesh_, {}, device, own, program);
  model_ = saved_.model.get();
  if (words.defined()) saved_.model->parameters().at("learned.weight").value.detach().copy_(words);
}

}  // namespace colossal::diffusion
