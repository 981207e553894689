// Options of norms and heads in every tensor mode against one process: norms whose weight is an offset from 1, norms
// without a bias, and heads whose logits are capped.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <map>

#include "colossal/base/seed.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/memory/chunk_store.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/loss_head.h"
#include "colossal/nn/norm.h"
#include "colossal/nn/serial_layers.h"
#include "colossal/parallel/data/gradient_reducer.h"
#include "colossal/parallel/tensor/activations.h"
#include "colossal/parallel/tensor/tensor_layers.h"
#include "support/parity.h"
#include "support/tolerance.h"

namespace colossal::test::layer_options_parity_test {
namespace {

using parallel::TensorConfig;

constexpr int64_t kHidden = 36, kSequence = 6, kVocabulary = 11;
constexpr double kCap = 1.5;

at::Tensor values(std::vector<int64_t> sizes, const std::string& name) {
  auto generator = at::detail::createCPUGenerator(derive_seed(9, name));
  return at::randn(sizes, generator, at::TensorOptions().dtype(at::kDouble));
}

struct Results {
  at::Tensor hidden, input_gradient;  // this rank's part
  at::Tensor logits, loss, found;
  std::map<std::string, at::Tensor> gradients;
};

template <class Part>
Results run_layers(nn::Layers& make, comm::Mesh& mesh, int64_t batch, const nn::ForwardContext& step,
                   const Part& part) {
  nn::Parameters& parameters = make.parameters();
  const auto rms = make.rms_norm("rms", kHidden, {.epsilon = 1e-6, .unit_offset = true});
  const auto centred = make.layer_norm("centred", kHidden, {.unit_offset = true});
  const auto bare = make.layer_norm("bare", kHidden, {.bias = false});
  const auto head = make.lm_head("head", kHidden, kVocabulary, {.bias = true, .soft_cap = kCap});
  for (const nn::Parameter& p : parameters) EXPECT_NE(p.name, "bare.bias");
  {
    const at::NoGradGuard no_grad;
    for (nn::Parameter& p : parameters)
      p.value.copy_(local_part(values(p.spec.shape, p.name), p.spec, mesh.coordinates()));
  }
  memory::ChunkStore store(parameters, mesh, {.capacity = 1 << 17});
  parallel::GradientReducer reducer(store, {.sums = at::kDouble});
  const at::Tensor labels = at::arange(batch * kSequence, at::kLong).remainder(kVocabulary).view({batch, kSequence});
  const at::Tensor x = part(values({batch, kSequence, kHidden}, "x")).requires_grad_();
  Results r;
  r.hidden = bare->forward(centred->forward(rms->forward(x)));
  reducer.begin(true);
  r.loss = head->loss_sum(r.hidden, labels, step);
  r.loss.backward();
  reducer.finish();
  r.input_gradient = x.grad();
  const at::NoGradGuard no_grad;
  r.logits = head->logits(r.hidden, step);
  r.found = head->found(r.hidden, at::where(labels.remainder(2).eq(0), r.logits.argmax(-1), labels), step);
  for (const nn::Parameter& p : parameters) r.gradients[p.name] = p.value.grad().clone();
  return r;
}

Results of_one_process(int64_t batch) {
  Results want;
  comm::run_ranks(1, [&](comm::World& world) {
    comm::Mesh mesh(world, {{"data", 1}});
    nn::Parameters parameters(mesh.coordinates(), {.dtype = at::kDouble});
    nn::SerialLayers make(parameters);
    want = run_layers(make, mesh, batch, {}, [](const at::Tensor& x) { return x; });
  });
  return want;
}

void check(const TensorConfig& config, bool collectives_off = false) {
  const int64_t batch = parallel::batch_parts(config) * 2;
  const Results want = of_one_process(batch);
  comm::run_ranks(static_cast<int>(config.size),
                  [&](comm::World& world) {
                    comm::Mesh mesh(world, parallel::tensor_axes(config));
                    nn::Parameters parameters(mesh.coordinates(), {.dtype = at::kDouble});
                    parallel::Layout layout = parallel::make_layout(config, mesh);
                    parallel::TensorLayers make(parameters, layout);
                    const nn::ForwardContext step = layout.with_cut({}, kSequence);
                    const auto part = [&](const at::Tensor& whole) {
                      return parallel::part_of(layout, layout.outside, whole, step).contiguous();
                    };
                    const Results got = run_layers(make, mesh, batch, step, part);
                    // Each norm sums over the features, one norm after the other in each direction.
                    const int64_t terms = 16 * kHidden, tokens = batch * kSequence;
                    expect_close(got.hidden, part(want.hidden), terms, "normed");
                    expect_close(got.input_gradient, part(want.input_gradient), terms * kVocabulary, "input gradient");
                    expect_close(got.logits, want.logits, terms, "capped logits");
                    expect_close(got.loss, want.loss, terms * tokens, "loss");
                    expect_equal(got.found, want.found, "labels that were found");
                    for (const nn::Parameter& p : parameters)
                      expect_close(got.gradients.at(p.name),
                                   local_part(want.gradients.at(p.name), p.spec, mesh.coordinates()), terms * tokens,
                                   "gradient of " + p.name);
                  },
                  {.collectives_off = collectives_off});
}

TEST(LayerOptions, EqualsTheFormulasOnOneProcess) {
  const Results got = of_one_process(2);
  const auto weight = [](const char* name, std::vector<int64_t> sizes) {
    return values(std::move(sizes), std::string(name)).requires_grad_();
  };
  const at::Tensor rms = weight("rms.weight", {kHidden}), centred = weight("centred.weight", {kHidden}),
                   bias = weight("centred.bias", {kHidden}), bare = weight("bare.weight", {kHidden}),
                   words = weight("head.weight", {kVocabulary, kHidden}), of_words = weight("head.bias", {kVocabulary}),
                   x = weight("x", {2, kSequence, kHidden});
  const at::Tensor first = x * (x.square().mean(-1, true) + 1e-6).rsqrt() * (1 + rms);
  const at::Tensor second = at::layer_norm(first, {kHidden}, 1 + centred, bias, 1e-5);
  const at::Tensor hidden = at::layer_norm(second, {kHidden}, bare, {}, 1e-5);
  const at::Tensor logits = kCap * ((hidden.matmul(words.t()) + of_words) / kCap).tanh();
  const at::Tensor labels = at::arange(2 * kSequence, at::kLong).remainder(kVocabulary);
  at::cross_entropy_loss(logits.flatten(0, 1), labels, {}, at::Reduction::Sum).backward();
  const int64_t terms = 16 * kHidden * kVocabulary;
  expect_close(got.hidden, hidden.detach(), terms, "normed");
  expect_close(got.logits, logits.detach(), terms, "capped logits");
  EXPECT_LT(got.logits.abs().max().item<double>(), kCap);
  expect_close(got.input_gradient, x.grad(), terms, "input gradient");
  const std::map<std::string, at::Tensor> gradients{{"rms.weight", rms.grad()},    {"centred.weight", centred.grad()},
                                                    {"centred.bias", bias.grad()}, {"bare.weight", bare.grad()},
                                                    {"head.weight", words.grad()}, {"head.bias", of_words.grad()}};
  ASSERT_EQ(got.gradients.size(), gradients.size());
  for (const auto& [name, gradient] : gradients) expect_close(got.gradients.at(name), gradient, terms, name);
}

TEST(LayerOptions, StartsAnOffsetAtZero) {
  nn::Parameters parameters(tensor::MeshCoordinates{}, {});
  nn::SerialLayers make(parameters);
  make.rms_norm("offset", 4, {.unit_offset = true});
  make.head_norm("head_offset", 4, {.unit_offset = true});
  make.rms_norm("factor", 4, {});
  EXPECT_EQ(parameters.at("offset.weight").value.abs().max().item<float>(), 0);
  EXPECT_EQ(parameters.at("head_offset.weight").value.abs().max().item<float>(), 0);
  EXPECT_EQ(parameters.at("factor.weight").value.min().item<float>(), 1);
}

class LayerOptionsParity : public testing::TestWithParam<TensorConfig> {};

TEST_P(LayerOptionsParity, EqualsOneProcess) {
  EXPECT_NO_THROW(check(GetParam()));
  EXPECT_THROW(check(GetParam(), true), ParityError);
}

INSTANTIATE_TEST_SUITE_P(Modes, LayerOptionsParity, testing::ValuesIn(tensor_modes()),
                         [](const auto& info) { return name_of(info.param); });

// All four logits are far beyond the cap, which makes them equal, but the last one is still the largest.
TEST(LayerOptions, PredictsFromLogitsBeyondTheCap) {
  for (const int ranks : {1, 2})
    comm::run_ranks(ranks, [&](comm::World& world) {
      const TensorConfig config{.size = ranks};
      comm::Mesh mesh(world, parallel::tensor_axes(config));
      nn::Parameters parameters(mesh.coordinates(), {.dtype = at::kDouble});
      parallel::TensorLayers make(parameters, parallel::make_layout(config, mesh));
      const auto head = make.lm_head("head", 1, 4, {.soft_cap = kCap});
      const at::NoGradGuard no_grad;
      for (nn::Parameter& p : parameters)
        p.value.copy_(local_part(at::arange(100, 104, at::kDouble).view({4, 1}), p.spec, mesh.coordinates()));
      const at::Tensor hidden = at::ones({1, 1, 1}, at::kDouble), last = at::full({1, 1}, 3, at::kLong);
      EXPECT_EQ(head->logits(hidden, {}).argmax(-1).item<int64_t>(), 0) << "of ties the first";
      EXPECT_EQ(head->found(hidden, last, {}).item<int64_t>(), 1) << ranks;
    });
}

}  // namespace
}  // namespace colossal::test::layer_options_parity_test
