// Multi-token layers: their loss against a plain computation on one process, and the tokens and labels that they read.
// tests/parallel/multi_token_parity_test.cpp compares layouts.
#include "colossal/models/multi_token.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <map>

#include "colossal/base/error.h"
#include "colossal/data/batch_fields.h"
#include "colossal/models/families/deepseek.h"
#include "colossal/models/shape_parts.h"
#include "colossal/models/task_batch.h"
#include "colossal/nn/batch_step.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/reports.h"
#include "colossal/nn/serial_layers.h"
#include "support/parity.h"
#include "support/thrown_message.h"
#include "support/tolerance.h"

namespace colossal::models::multi_token_test {
namespace {

constexpr int64_t kRows = 2, kTokens = 6, kIgnored = data::kIgnored;

ModelShape tiny(int64_t layers, double loss = 0.3) {
  ModelShape shape = test::tiny_deepseek();
  auto own = shape.own.as<DeepseekSizes>();
  own.multi_token_layers = layers;
  own.multi_token_loss = loss;
  shape.own = own;
  shape.set(models::MultiTokenSizes{layers});
  return shape;
}

/// Returns rows of two documents each, of 4 and 2 tokens. The label of the first token is ignored.
tensor::Batch two_documents() {
  auto generator = at::detail::createCPUGenerator(3);
  const at::Tensor tokens = at::randint(0, 37, {kRows, kTokens + 1}, generator, at::kLong);
  at::Tensor labels = tokens.narrow(1, 1, kTokens).clone();
  labels[0][0] = kIgnored;
  const at::Tensor positions = at::tensor({0, 1, 2, 3, 0, 1}, at::kLong).expand({kRows, kTokens}).contiguous();
  const at::Tensor documents = at::tensor({0, 0, 0, 0, 1, 1}, at::kLong).expand({kRows, kTokens}).contiguous();
  return data::text_batch(tokens.narrow(1, 0, kTokens).contiguous(), labels, positions, documents);
}

TEST(MultiToken, ReadsTheTokensAheadWithinDocuments) {
  tensor::Batch batch;
  using tensor::Dim;
  const auto add = [&](const char* name, at::Tensor values, std::optional<int64_t> ignored = {}) {
    batch.add(name, {values.unsqueeze(0), {Dim::Row, Dim::Token}, ignored});
  };
  add("ids", at::tensor({10, 11, 12, 13, 14}, at::kLong));
  add("labels", at::tensor({11, -7, 13, 14, 15}, at::kLong), -7);
  add("positions", at::tensor({0, 1, 2, 0, 1}, at::kLong));
  const tensor::Batch longer = with_tokens_ahead(batch, 2);
  const auto row = [&](const char* name) {
    const int64_t* first = longer.at(name).const_data_ptr<int64_t>();
    return std::vector<int64_t>(first, first + 5);
  };
  EXPECT_EQ(row("ids.1"), (std::vector<int64_t>{11, 12, 13, 14, 0}));
  EXPECT_EQ(row("labels.1"), (std::vector<int64_t>{-7, 13, -7, 15, -7})) << "13 at index 2 is of the other document";
  EXPECT_EQ(row("labels.2"), (std::vector<int64_t>{13, -7, -7, -7, -7}));
  EXPECT_EQ(longer.field("labels.1").ignored, -7);
  EXPECT_EQ(with_tokens_ahead(longer, 2).fields().size(), longer.fields().size());
  EXPECT_EQ(with_tokens_ahead(batch, 0).fields().size(), batch.fields().size());
  EXPECT_EQ(with_tokens_ahead(nn::token_batch(batch.at("ids"), batch.at("positions")), 2).fields().size(), 2u);
  EXPECT_EQ(with_tokens_ahead(batch, 9).at("labels.9").ne(-7).sum().item<int64_t>(), 0) << "more than a row";
}

/// A model of one process in fp64 and the reports of a training step.
struct Trained {
  explicit Trained(const ModelShape& shape) : parameters({}, {.dtype = at::kDouble, .seed = 7}), make(parameters) {
    model = make_model(shape, make);
    reports = std::make_shared<nn::ReportAccumulator>(model.reports, at::kCPU);
    auto generator = at::detail::createCPUGenerator(11);
    const at::NoGradGuard no_grad;
    for (nn::Parameter& p : parameters) {  // norms start at one, which would hide that one of them is left out
      if (p.value.dim() == 1) p.value.add_(at::randn(p.value.sizes(), generator, p.value.options()), 0.2);
      all[p.name] = p.value;
    }
  }
  States run(bool training) {
    nn::ForwardContext step = nn::step_of(two_documents());
    step.training = training;
    if (training) step.parts.set(nn::ReportsOfStep{reports});
    reports->begin(1);
    return run_stage(model, {.last = static_cast<int64_t>(model.blocks.size())}, {}, step);
  }
  double reported(const std::string& name) const {
    for (const nn::Reports::Declared& declared : model.reports.declared())
      if (declared.name == name) return reports->values()[declared.first].item<double>();
    return NAN;
  }
  at::Tensor normed(const at::Tensor& x, const std::string& name) const {
    return x * (x.square().mean(-1, true) + model.shape.norm_epsilon).rsqrt() * all.at(name + ".weight");
  }

  nn::Parameters parameters;
  nn::SerialLayers make;
  Model model;
  std::shared_ptr<nn::ReportAccumulator> reports;
  std::map<std::string, at::Tensor> all;
};

/// Computes the loss of the report, section 2.2: layer by layer, token by token. The blocks of the layers must have the
/// parameters of block 1, which stands in for them.
at::Tensor plain_loss(const Trained& t, const at::Tensor& end, int64_t layers) {
  const tensor::Batch batch = two_documents();
  const nn::ForwardContext step = nn::step_of(batch);
  at::Tensor h = end, sum = at::zeros({}, at::kDouble);
  for (int64_t k = 0; k < layers; ++k) {
    const std::string name = concat("head.multi_token.", k);
    std::vector<at::Tensor> inputs;
    for (int64_t row = 0; row < kRows; ++row)
      for (int64_t i = 0; i < kTokens; ++i) {
        const int64_t at = i + k + 1, id = at < kTokens ? batch.at("ids")[row][at].item<int64_t>() : 0;
        inputs.push_back(at::cat(
            {t.normed(t.all.at("embedding.weight")[id], name + ".enorm"), t.normed(h[row][i], name + ".hnorm")}));
      }
    const at::Tensor joined = at::matmul(at::stack(inputs), t.all.at(name + ".eh_proj.weight").t());
    h = t.model.blocks[1](joined.view({kRows, kTokens, -1}), step);
    const at::Tensor logits = at::matmul(t.normed(h, name + ".norm"), t.all.at("head.weight").t()).log_softmax(-1);
    for (int64_t row = 0; row < kRows; ++row)
      for (int64_t i = 0; i < kTokens; ++i) {
        const int64_t at = i + k + 1;
        const bool same_document = at < kTokens && (i < 4) == (at < 4);
        const int64_t label = same_document ? batch.at("labels")[row][at].item<int64_t>() : kIgnored;
        if (label != kIgnored) sum = sum - logits[row][i][label];
      }
  }
  return sum / static_cast<double>(kRows * kTokens * layers);
}

void copy_block(Trained& t, int64_t layers) {
  const at::NoGradGuard no_grad;
  const std::string from = "blocks.1.";
  for (const auto& [name, value] : t.all)
    if (name.starts_with(from))
      for (int64_t k = 0; k < layers; ++k)
        t.all.at(concat("head.multi_token.", k, ".", name.substr(from.size()))).copy_(value);
}

TEST(MultiToken, HasTheLossOfAPlainComputation) {
  for (const int64_t layers : {1, 2}) {
    Trained t(tiny(layers, 0.7));
    copy_block(t, layers);
    t.run(true);
    const double loss = t.reported("multi_token_loss");
    const at::Tensor plain = plain_loss(t, t.run(false)[0], layers);
    constexpr int64_t kTerms = 64 * kRows * kTokens;  // the terms of products and sums, as in check_parity()
    EXPECT_NO_THROW(test::expect_close(at::scalar_tensor(loss, at::kDouble), plain.detach(), kTerms, "loss"));
  }
}

TEST(MultiToken, HasGradientsOfItsStrength) {
  ModelShape shape = tiny(1, 0.7);
  auto own = shape.own.as<DeepseekSizes>();
  own.experts.balance_loss = 0;  // which has gradients of its own
  shape.own = own;
  Trained t(shape);
  copy_block(t, 1);
  const std::vector<std::string> names{"head.weight",
                                       "head.multi_token.0.eh_proj.weight",
                                       "head.multi_token.0.enorm.weight",
                                       "head.multi_token.0.norm.weight",
                                       "blocks.0.attention.out.weight",
                                       "norm.weight"};
  std::vector<at::Tensor> inputs;
  for (const std::string& name : names) inputs.push_back(t.all.at(name));
  // The model's own loss is left out: backward goes through zeros.
  const auto got = torch::autograd::grad({(t.run(true)[0] * 0).sum()}, inputs);
  const auto want = torch::autograd::grad({plain_loss(t, t.run(false)[0], 1) * 0.7}, inputs);
  constexpr int64_t kTerms = 64 * kRows * kTokens;
  for (size_t i = 0; i < names.size(); ++i)
    EXPECT_NO_THROW(test::expect_close(got[i], want[i], kTerms, "gradient of " + names[i]));
}

TEST(MultiToken, LeavesEvaluationAlone) {
  Trained with(tiny(2));
  const int64_t blocks = static_cast<int64_t>(with.model.blocks.size());
  const at::NoGradGuard no_grad;  // for both models: without gradients experts add in another way
  const at::Tensor end = with.run(false)[0];
  EXPECT_EQ(with.reported("multi_token_loss"), 0);
  nn::Parameters parameters({}, {.dtype = at::kDouble, .seed = 7});
  nn::SerialLayers make(parameters);
  const Model without = make_model(tiny(0), make);
  for (nn::Parameter& p : parameters) p.value.copy_(with.all.at(p.name));
  EXPECT_TRUE(at::equal(run_stage(without, {.last = blocks}, {}, nn::step_of(two_documents()))[0], end));
}

TEST(MultiToken, PlacesItsPartsAtTheEnd) {
  const ModelShape with = tiny(1), without = tiny(0);
  const std::vector<int64_t> cuts{0, 1, 2};
  EXPECT_EQ(stages_using("embedding.weight", with, cuts), (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(stages_using("embedding.weight", without, cuts), (std::vector<int64_t>{0}));
  EXPECT_EQ(stages_using("head.multi_token.0.eh_proj.weight", with, cuts), (std::vector<int64_t>{1}));
  const tensor::Batch example = example_batch(with, 1, kTokens);
  const Costs more = costs_of(with, example), less = costs_of(without, example);
  EXPECT_EQ(more.blocks, less.blocks);
  EXPECT_GT(more.last, 2 * less.last) << "a second head, and a block";
}

TEST(MultiToken, RefusesShapesThatDoNotFollow) {
  ModelShape shape = tiny(1);
  shape.set(models::MultiTokenSizes{0});
  EXPECT_THAT(test::thrown_message([&] { shape.validate(); }),
              testing::HasSubstr("multi_token_layers 0, which must be 1"));
}

}  // namespace
}  // namespace colossal::models::multi_token_test
