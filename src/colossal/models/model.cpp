#include "colossal/models/model.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <charconv>

#include "colossal/base/error.h"
#include "colossal/models/registry.h"
#include "colossal/nn/input_home.h"

namespace colossal::models {

at::Tensor run_stage(const Model& model, const Stage& stage, const at::Tensor& x, const nn::Step& step) {
  require(!stage.embeds || step.batch, "model",
          "the first stage must have the micro-batch in its step: got none; nn::step_of() makes it");
  at::Tensor hidden = stage.embeds ? model.embed(*step.batch, step) : x;
  for (int64_t i = stage.first; i < stage.last; ++i) {
    const auto block = [&block = model.blocks[i], step](const at::Tensor& h) { return block(h, step); };
    hidden = step.training && step.recompute == nn::Recompute::Block ? nn::recomputed(block, hidden, step.inputs.get())
                                                                     : block(hidden);
  }
  return stage.ends ? model.norm(hidden, step) : hidden;
}

void check_fields(const Model& model, const tensor::Batch& batch) {
  for (const std::string& name : model.fields) batch.field(name);
}

int64_t tokens_of(const Model& model, const tensor::Batch& batch) {
  return batch.has_tokens() ? batch.tokens() : std::max<int64_t>(1, model.shape.positions);
}

std::optional<int64_t> block_of(const std::string& parameter, int64_t layers) {
  constexpr std::string_view kBlocks = "blocks.";
  if (!parameter.starts_with(kBlocks)) return {};
  int64_t block = -1;
  const char *begin = parameter.data() + kBlocks.size(), *end = parameter.data() + parameter.size();
  const auto [behind, error] = std::from_chars(begin, end, block);
  require(error == std::errc() && behind != end && *behind == '.' && block >= 0 && block < layers, "model",
          "a parameter of a block must be named `blocks.<i>.<name>` with i in [0, ", layers, "): got ", parameter,
          "; rename it, without `blocks.` if it belongs to no block");
  return block;
}

std::vector<int64_t> stages_using(const std::string& parameter, const ModelShape& shape,
                                  const std::vector<int64_t>& cuts) {
  const auto last = static_cast<int64_t>(cuts.size()) - 2;
  if (const std::optional<int64_t> block = block_of(parameter, shape.layers))
    return {std::upper_bound(cuts.begin(), cuts.end(), *block) - cuts.begin() - 1};
  if (parameter.starts_with("norm.") || parameter.starts_with("head.")) return {last};
  if (shape.architecture && shape.architecture->shared)
    if (const auto blocks = shape.architecture->shared(shape, parameter)) {
      std::vector<int64_t> stages;
      for (int64_t stage = 0; stage <= last; ++stage)
        if (cuts[stage] < blocks->second && cuts[stage + 1] > blocks->first) stages.push_back(stage);
      return stages;
    }
  if (parameter.starts_with("embedding.") && shape.tied && last > 0) return {0, last};
  return {0};
}

}  // namespace colossal::models
