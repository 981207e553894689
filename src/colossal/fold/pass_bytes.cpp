#include "colossal/fold/pass_bytes.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <utility>

#include "colossal/fold/pair_heads.h"
#include "colossal/memory/account.h"
#include "colossal/models/registry.h"
#include "colossal/nn/batch_step.h"
#include "colossal/nn/serial_layers.h"

namespace colossal::fold {
namespace {

models::Model model_on_meta(const models::ModelShape& shape, nn::Parameters& parameters) {
  models::folding_of(shape);
  nn::SerialLayers layers(parameters);
  return models::make_model(shape, layers);
}

}  // namespace

PassShapes::PassShapes(const models::ModelShape& shape, at::ScalarType dtype)
    : parameters_({}, {.dtype = dtype, .device = at::kMeta}), model_(model_on_meta(shape, parameters_)) {}

int64_t PassShapes::bytes(const models::FoldingBatch& sizes) const {
  const at::NoGradGuard no_grad;
  const memory::Account account(memory::Counted::Shapes);
  nn::ForwardContext step = nn::step_of(models::example_folding(model_.shape, sizes, parameters_.options().dtype));
  const models::Stage all{.last = model_.shape.blocks()};
  const models::States end = models::run_stage(model_, all, {}, step);
  if (model_.folding->errors) {
    std::vector<int64_t> kept(static_cast<size_t>(sizes.residues));
    errors_by_rows(*model_.folding, end[static_cast<size_t>(model_.folding->pair)], kept, false);
  }
  return account.usage().peak_total;
}

int64_t PassShapes::pair_bytes(const models::FoldingBatch& sizes) const {
  return sizes.residues * sizes.residues * models::folding_of(model_.shape).pair *
         static_cast<int64_t>(c10::elementSize(parameters_.options().dtype));
}

bool PassShapes::predicts_errors() const { return bool(model_.folding->errors); }

}  // namespace colossal::fold
