// A custom model whose blocks report values and attach a loss term: a tiny GPT-2 with a probe after each block.
//
//   const auto engine = train::initialize(world, config, test::tiny_reporter());
//   ...
//   for (const Metric& row : engine->step().rows) ...          // "blocks.0.probe_loss", "blocks.0.tokens", ...
#pragma once
#include <ATen/ATen.h>

#include <memory>
#include <string>
#include <vector>

#include "colossal/models/decoder.h"
#include "colossal/models/registry.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/linear_layers.h"
#include "colossal/nn/reports.h"
#include "colossal/ops/activation.h"
#include "support/parity.h"

namespace colossal::test {

/// Returns `x` in the dtype of sums: fp32, or fp64 in fp64 models.
inline at::Tensor widened(const at::Tensor& x) { return x.scalar_type() == at::kDouble ? x : x.to(at::kFloat); }

/// Returns the weight of a block's loss term, which differs between blocks.
inline double probe_weight(size_t block) { return 0.5 * static_cast<double>(block + 1); }

/// The reports of one block about its output y. The values for a batch equal the combined values of its parts, so no
/// layout and no split into micro-batches changes them.
struct Probe {
  Probe(size_t block, int64_t hidden, nn::Layers& make)
      : name("blocks." + std::to_string(block)),
        dense(make.dense(name + ".probe", hidden, 4, {.deviation = 0.5})),
        tokens(make.reports().add({.name = name + ".tokens"})),
        signs(make.reports().add({.name = name + ".signs", .size = 2, .over = nn::Over::Sum})),
        average(make.reports().add({.name = name + ".average", .over = nn::Over::Mean})),
        largest(make.reports().add({.name = name + ".largest", .over = nn::Over::Max})),
        loss(make.reports().add_loss({.name = name + ".probe_loss", .weight = probe_weight(block)})) {}
  at::Tensor forward(const at::Tensor& y, const nn::ForwardContext& step) {
    const at::Tensor values = widened(y.detach());
    step.report(tokens, at::full({}, y.size(0) * y.size(1), values.options()));
    step.report(signs, at::stack({(values > 0).sum(), (values < 0).sum()}));
    step.report(average, values.mean());
    step.report(largest, values.amax());
    return step.attach_loss(loss, widened(dense->forward(y)).square().mean(), y);
  }
  /// Adds a row for each reported element.
  void add_rows(const nn::Reported& reported, std::vector<Metric>& rows) const {
    rows.push_back({.name = name + ".tokens", .value = reported.at(tokens)[0]});
    rows.push_back({.name = name + ".above", .value = reported.at(signs)[0]});
    rows.push_back({.name = name + ".below", .value = reported.at(signs)[1]});
    rows.push_back({.name = name + ".average", .value = reported.at(average)[0]});
    rows.push_back({.name = name + ".largest", .value = reported.at(largest)[0]});
  }
  std::string name;
  std::unique_ptr<nn::Dense> dense;
  nn::Report tokens, signs, average, largest, loss;
};

inline models::Model make_reporter(const models::ModelShape& s, nn::Layers& layers) {
  models::Model model =
      models::make_decoder(s, {.block = {.activation = ops::gelu}, .learned_positions = true}, layers);
  std::vector<std::shared_ptr<Probe>> probes;
  for (size_t i = 0; i < model.blocks.size(); ++i) {
    probes.push_back(std::make_shared<Probe>(i, s.hidden, layers));
    model.blocks[i] = [inner = model.blocks[i], probe = probes.back()](const at::Tensor& x,
                                                                       const nn::ForwardContext& step) {
      return probe->forward(inner(x, step), step);
    };
  }
  model.end_step = [probes](const nn::Reported& reported, std::vector<Metric>& rows) {
    for (const auto& probe : probes) probe->add_rows(reported, rows);
    rows.push_back({.name = "was_skipped", .value = int64_t{reported.skipped}});
  };
  return model;
}

inline models::ModelShape tiny_reporter() {
  models::ModelShape shape = tiny_gpt2();
  shape.layers = 4;
  shape.architecture =
      std::make_shared<models::Architecture>(models::Architecture{.name = "reporter", .make = make_reporter});
  return shape;
}

}  // namespace colossal::test
