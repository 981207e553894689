#include <ATen/ATen.h>

#include <utility>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/distributed/distributed_model.h"
#include "colossal/memory/account.h"
#include "colossal/nn/batch_step.h"
#include "colossal/tensor/device_meant.h"
#include "colossal/train/engine.h"
#include "colossal/train/optimization.h"

namespace colossal::train {

Engine::FieldGradient Engine::gradient_of(const tensor::Batch& batch, const std::string& field, const Loss& losses,
                                          const std::string& model) {
  const tensor::MeantDevice meant(meant_);
  const memory::KindScope kind(memory::Kind::Activations);
  const comm::PhaseScope phase(mesh_->world().traffic(), comm::Phase::Other);
  const Member& one = member(model);
  const tensor::MeshCoordinates& here = one.mesh->coordinates();
  const int ranks = one.mesh->all().size(), replicas = here.size(here.row_axes());
  require(ranks == replicas, "training", "the gradient of a field needs a model that is whole on each rank: got ",
          one.name.empty() ? "the main model" : one.name, ", which ", ranks / replicas,
          " ranks divide; use data parallelism, ZeRO and tiers alone");
  const tensor::Batch b = checked(one, batch);
  is_canonical(one) ? pack(one) : release(one);
  const int64_t wanted = config_.micro_batches(), parts = b.rows() % wanted == 0 ? wanted : 1, rows = b.rows() / parts;
  // Small gradients must not vanish in fp16. The loss scale is for means over the rows of a global batch: gradients of
  // the loss of one row would overflow with it.
  const double scale = optimization_->loss_scale() / static_cast<double>(b.rows() * replicas);
  const auto losses_of = [&](int, const models::States& end, const nn::ForwardContext& step) {
    return losses(one.model->model(), end, step);
  };
  std::vector<at::Tensor> of_rows, gradients;
  for (int64_t i = 0; i < parts; ++i) {
    auto [lost, gradient] =
        one.model->field_gradient(as_generated(one, nn::step_of(b.part(i * rows, rows))), field, losses_of, scale);
    of_rows.push_back(std::move(lost)), gradients.push_back(std::move(gradient));
  }
  optimization_->end_pass();
  return {at::cat(of_rows), at::cat(gradients) / scale};
}

}  // namespace colossal::train
