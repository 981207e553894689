#include "colossal/fold/recycling_rule.h"

#include <ATen/ATen.h>

#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/base/seed.h"
#include "colossal/comm/agreement.h"
#include "colossal/data/folding/pass_fields.h"
#include "colossal/fold/finite_check.h"
#include "colossal/models/folding/folding_model.h"
#include "colossal/run/objectives/folding/folding_objective.h"
#include "colossal/tensor/host_value.h"

namespace colossal::fold {
namespace {

/// Returns the batch with fp64 numbers, if the model computes in fp64: those of samples are fp32.
tensor::Batch in_precision_of(train::Engine& engine, const tensor::Batch& batch) {
  if (engine.parameters().options().dtype != at::kDouble) return batch;
  return batch.map([](const tensor::Field& field) {
    return field.tensor.is_floating_point() ? field.tensor.to(at::kDouble) : field.tensor;
  });
}

/// Returns the parts of a batch that pass through the model one after another.
std::vector<tensor::Batch> parts_of(train::Engine& engine, const tensor::Batch& batch) {
  const int64_t count = engine.replica_rows(batch.rows()).micro_batches;
  if (engine.mesh().size("pipeline") > 1 || batch.rows() % count != 0) return {batch};
  const int64_t rows = batch.rows() / count;
  std::vector<tensor::Batch> parts;
  for (int64_t i = 0; i < count; ++i) parts.push_back(batch.part(i * rows, rows));
  return parts;
}

/// Returns the parts one after the other; one part, or undefined ones, without a copy.
at::Tensor joined(const std::vector<models::Recycled>& parts, at::Tensor models::Recycled::* member) {
  if (parts.size() == 1 || !(parts.front().*member).defined()) return parts.front().*member;
  std::vector<at::Tensor> tensors;
  for (const models::Recycled& part : parts) tensors.push_back(part.*member);
  return at::cat(tensors);
}

/// Returns what all ranks read of a pass: that of the last stage.
models::Recycled on_all_stages(train::Engine& engine, models::Recycled own, const tensor::Batch& batch) {
  comm::Group& stages = engine.mesh().group("pipeline");
  if (stages.size() == 1) return own;
  const models::FoldingSizes sizes = models::folding_of(engine.model().shape);
  const at::Tensor& types = batch.at("aatype");
  const int64_t rows = types.size(0), residues = types.size(1);
  const at::ScalarType dtype = engine.parameters().options().dtype;
  const auto options = at::TensorOptions(engine.device());
  const auto summed = [&](const at::Tensor& given, at::IntArrayRef wanted, at::ScalarType type) {
    at::Tensor sum = given.defined() ? given.to(type).contiguous() : at::zeros(wanted, options.dtype(type));
    stages.all_reduce(sum, comm::Reduce::Sum).wait();
    return sum;
  };
  return {
      .single = summed(own.single, {rows, residues, sizes.single}, dtype),
      .pair = summed(own.pair, {rows, engine.model().folding->ranks->own(residues).size, residues, sizes.pair}, dtype),
      .beta = summed(own.beta, {rows, residues, 3}, at::promote_types(dtype, at::kFloat)),
      .language = engine.model().folding->language >= 0 ? summed(own.language, {rows, residues, sizes.single}, dtype)
                                                        : at::Tensor()};
}

/// Runs a pass without gradients.
models::Recycled run_pass(train::Engine& engine, const tensor::Batch& batch) {
  std::vector<models::Recycled> parts;  // in the order of the rows, as a forward pass has its micro-batches
  const auto take = [&](const models::Model& model, const models::States& end, const nn::ForwardContext& step) {
    parts.push_back(models::recycled(*model.folding, end, *step.batch));
    parts.back().single = parts.back().single.clone();  // the first row of m would keep the others alive
    return at::zeros({1});
  };
  for (const tensor::Batch& part : parts_of(engine, batch)) engine.forward(part, take);
  models::Recycled own;
  if (!parts.empty())
    own = {.single = joined(parts, &models::Recycled::single),
           .pair = joined(parts, &models::Recycled::pair),
           .beta = joined(parts, &models::Recycled::beta),
           .language = joined(parts, &models::Recycled::language)};
  parts.clear();
  return on_all_stages(engine, std::move(own), batch);
}

/// Returns the batch of pass `passes` - 1, and calls `after` after each pass before it.
tensor::Batch passes_before(train::Engine& engine, const tensor::Batch& batch, int64_t passes,
                            const std::function<void(int64_t pass)>& after) {
  require(passes >= 1, "fold", "passes must be at least 1: got ", passes);
  const tensor::Batch all = in_precision_of(engine, batch);
  models::Recycled recycled;
  for (int64_t pass = 0;; ++pass) {
    tensor::Batch one = models::with_recycled(data::batch_of_pass(all, pass), recycled, engine.model().shape,
                                              engine.model().folding->ranks.get());
    if (pass + 1 == passes) return one;
    recycled = {};  // the batch alone holds it now
    recycled = run_pass(engine, one);
    if (after) after(pass);
  }
}

class RecyclingRule final : public train::StepRule {
 public:
  RecyclingRule(const run::FoldingObjective& objective, uint64_t seed) : objective_(objective), seed_(seed) {}

  train::StepOutcome step(train::Engine& engine, const NextBatch& next) override {
    const int64_t most = objective_.keys().passes,
                  passes = engine.device().is_meta() ? most : passes_of_step(seed_, engine.steps_done(), most);
    const tensor::Batch given = next(), batch = after_passes(engine, given, passes);
    objective_.check_model(engine.model());
    objective_.check(batch);
    std::vector<at::Tensor> measured;
    const auto loss_of = [&](const models::Model& model, const models::States& end, const nn::ForwardContext& step) {
      auto [loss, sums] = objective_.measure(model, end, step);
      measured.push_back(std::move(sums));
      return loss;
    };
    engine.zero_grad();
    const double weight = objective_.weight(batch), limit = objective_.keys().clip_sample,
                 loss = limit > 0 ? engine.train_rows(batch, weight, loss_of, limit)
                                  : engine.train_step(batch, weight, loss_of);
    if (!std::isfinite(loss)) check_finite(engine, given, passes);
    train::StepOutcome outcome{.loss = loss, .result = updated(engine, given, passes)};
    outcome.rows = rows_of(engine, measured, weight);
    return outcome;
  }

  tensor::Batch with_fields(train::Engine& engine, const tensor::Batch& batch) override {
    return after_passes(engine, batch, objective_.keys().passes);
  }

 private:
  train::StepResult updated(train::Engine& engine, const tensor::Batch& given, int64_t passes) const {
    try {
      return engine.step();
    } catch (const train::RefusedStep& refused) {
      if (refused.needed_bytes() == 0) check_finite(engine, given, passes);
      throw;
    }
  }

  /// Runs the step's passes again. Errors ("fold"), on all ranks: numbers that are not finite.
  void check_finite(train::Engine& engine, const tensor::Batch& given, int64_t passes) const {
    const auto loss_of = [&](const models::Model& model, const models::States& end, const nn::ForwardContext& step) {
      return objective_.loss(model, end, step).reshape({1});
    };
    FiniteCheck check(engine.model());
    const auto agree = [&](int64_t pass) {
      comm::agree(engine.mesh().all(), at::kCPU, [&] {
        require(check.found().empty(), "fold", "the numbers of a step must be finite: got others from ", check.found(),
                ", in pass ", pass + 1, " of ", passes, " of step ", engine.steps_done() + 1,
                "; lower optimizer.learning_rate, or check the weights and the data");
      });
    };
    const tensor::Batch last = passes_before(engine, given, passes, agree);
    for (const tensor::Batch& part : parts_of(engine, last)) engine.forward(part, loss_of);
    agree(passes - 1);
  }

  /// Returns the metrics of a step from the sums of this rank's micro-batches.
  std::vector<Metric> rows_of(train::Engine& engine, const std::vector<at::Tensor>& measured, double weight) const {
    comm::Mesh& mesh = engine.mesh();
    std::vector<double> values(2);
    if (!measured.empty()) values = tensor::host_values(at::stack(measured).sum(0));
    values.push_back(weight);
    at::Tensor totals = at::tensor(values, at::kDouble);
    std::vector<std::string> axes = mesh.coordinates().row_axes();
    axes.insert(axes.begin(), "pipeline");
    mesh.group(axes).all_reduce(totals, comm::Reduce::Sum).wait();
    const double* all = totals.const_data_ptr<double>();
    // All stages add the weight of their rows.
    return objective_.step_metrics({all, all + 2}, all[2] / static_cast<double>(mesh.size("pipeline")));
  }

  const run::FoldingObjective& objective_;
  uint64_t seed_;
};

}  // namespace

int64_t passes_of_step(uint64_t seed, int64_t step, int64_t most) {
  const uint64_t own = derive_seed(derive_seed(seed, "passes"), static_cast<uint64_t>(step));
  return 1 + static_cast<int64_t>(uniform_of_seed(own) * static_cast<double>(most));
}

tensor::Batch after_passes(train::Engine& engine, const tensor::Batch& batch, int64_t passes) {
  return passes_before(engine, batch, passes, {});
}

std::unique_ptr<train::StepRule> make_recycling_rule(train::Engine& engine, const run::Config& config,
                                                     const run::OwnTables&) {
  const auto* folding = dynamic_cast<const run::FoldingObjective*>(&engine.objective());
  if (folding == nullptr) return std::make_unique<train::OneUpdate>();
  return std::make_unique<RecyclingRule>(*folding, static_cast<uint64_t>(config.training.seed));
}

}  // namespace colossal::fold
