// Linear layers in fp8 in every tensor mode against one process. If scales agree, all numbers agree bit for bit,
// because operands of few bits make sums that are exact in fp64 in any order.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>

#include <map>

#include "colossal/base/seed.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/nn/attention_shape.h"
#include "colossal/nn/embedding.h"
#include "colossal/nn/fp8_product.h"
#include "colossal/nn/head_projections.h"
#include "colossal/nn/linear_layers.h"
#include "colossal/nn/loss_head.h"
#include "colossal/nn/patches.h"
#include "colossal/nn/serial_layers.h"
#include "colossal/parallel/tensor/activations.h"
#include "colossal/parallel/tensor/tensor_layers.h"
#include "colossal/parallel/tensor/vocabulary.h"
#include "parallel/summed_gradients.h"
#include "support/parity.h"
#include "support/tolerance.h"

namespace colossal::test::fp8_parity_test {
namespace {

using nn::Fp8Products;
using nn::Fp8Recipe;
using parallel::Layout;
using parallel::TensorConfig;

constexpr int64_t kNarrow = 36, kWide = 72, kSequence = 6;

at::Generator generator(const std::string& name) { return at::detail::createCPUGenerator(derive_seed(3, name)); }
/// Returns uniform numbers. Blocks of a hundred of them have largest magnitudes in (7/8, 1), however they are split,
/// so they share one scale if scales are powers of two.
at::Tensor uniform(std::vector<int64_t> sizes, const std::string& name) {
  return at::rand(sizes, generator(name), at::TensorOptions(at::kDouble)) * 2 - 1;
}
at::Tensor normal(std::vector<int64_t> sizes, const std::string& name) {
  return at::randn(sizes, generator(name), at::TensorOptions(at::kDouble));
}

/// An expand and a contract, each with a separate input.
struct Pair {
  Pair(nn::Layers& make)
      : parameters(make.parameters()),
        up(make.expand("up", kNarrow, kWide, {})),
        down(make.contract("down", kWide, kNarrow, {})) {
    const at::NoGradGuard no_grad;
    for (nn::Parameter& p : parameters) {
      const at::Tensor whole = uniform(p.spec.shape, p.name);
      p.value.copy_(local_part(p.name.ends_with(".bias") ? (whole * 8).round() / 8 : whole, p.spec,
                               parameters.coordinates()));  // a bias is not in fp8
    }
  }
  nn::Parameters& parameters;
  std::unique_ptr<nn::Expand> up;
  std::unique_ptr<nn::Contract> down;
};

/// Splits whole tensors into this rank's parts outside and inside.
struct Parts {
  std::function<at::Tensor(const at::Tensor&)> outside, inside;
};

Parts parts_of(const Layout& layout) {
  const auto outside = [&layout](const at::Tensor& whole) {
    return parallel::part_of(layout, layout.outside, whole).contiguous();
  };
  const auto inside = [&layout, order = parallel::SequenceOrder::inside(layout)](const at::Tensor& whole) {
    return order.by_rank(parallel::part_of(layout, layout.inside, whole), {}).contiguous();
  };
  return {outside, inside};
}

struct Results {
  at::Tensor up, down, up_input, down_input;  // values and input gradients
  std::map<std::string, at::Tensor> gradients;
};

using Draw = at::Tensor (*)(std::vector<int64_t>, const std::string&);

Results run(Pair& pair, comm::Mesh& mesh, const Parts& parts, int64_t batch, Draw draw) {
  const auto whole = [&](int64_t features, const std::string& name) {
    return draw({batch, kSequence, features}, name);
  };
  zero_gradients(pair.parameters);
  const at::Tensor narrow = parts.outside(whole(kNarrow, "narrow")).requires_grad_(),
                   wide = parts.inside(whole(kWide, "wide")).requires_grad_();
  const at::Tensor up = pair.up->forward(narrow).tensor, down = pair.down->forward({wide});
  torch::autograd::backward({up, down},
                            {parts.inside(whole(kWide, "d wide")), parts.outside(whole(kNarrow, "d narrow"))});
  sum_gradients(pair.parameters, mesh);
  Results r{up.detach(), down.detach(), narrow.grad(), wide.grad(), {}};
  for (const nn::Parameter& p : pair.parameters) r.gradients[p.name] = p.value.grad().clone();
  return r;
}

nn::Parameters::Options options(Fp8Products& fp8) {
  return {.dtype = at::kDouble,
          .products = {[&fp8](auto product, const nn::Parameter& weight, nn::Parameters& parameters) {
            return fp8.wrap(std::move(product), weight, parameters);
          }}};
}

void compare(const Results& got, const Results& want, const Parts& parts, const nn::Parameters& parameters) {
  expect_equal(got.up, parts.inside(want.up), "result of an expand");
  expect_equal(got.down, parts.outside(want.down), "result of a contract");
  expect_equal(got.up_input, parts.outside(want.up_input), "input gradient of an expand");
  expect_equal(got.down_input, parts.inside(want.down_input), "input gradient of a contract");
  for (const nn::Parameter& p : parameters) {
    const at::Tensor whole = local_part(want.gradients.at(p.name), p.spec, parameters.coordinates());
    if (p.name.ends_with(".bias"))  // sums that use all digits
      expect_close(got.gradients.at(p.name), whole, 1000, "gradient of " + p.name);
    else
      expect_equal(got.gradients.at(p.name), whole, "gradient of " + p.name);
  }
}

/// Checks a step on uniform numbers, whose scales agree by construction. Then, with delayed scaling, checks a step on
/// other numbers, whose scales agree because their histories do.
void check(const TensorConfig& config, Fp8Recipe::Scaling scaling, bool agrees = true, bool collectives_off = false) {
  const int64_t batch = parallel::batch_parts(config) * 4;
  const Fp8Recipe recipe{.scaling = scaling};
  Results first, second;
  std::vector<at::Tensor> history;
  comm::run_ranks(1, [&](comm::World& world) {
    comm::Mesh mesh(world, {{"data", 1}});
    Fp8Products fp8(recipe);
    nn::Parameters parameters(mesh.coordinates(), options(fp8));
    nn::SerialLayers make(parameters);
    Pair pair(make);
    const auto all = [](const at::Tensor& x) { return x; };
    first = run(pair, mesh, {all, all}, batch, uniform);
    ops::RankReduction alone;
    fp8.end_step(alone);
    for (const auto& state : fp8.states()) history.push_back(state->history);
    second = run(pair, mesh, {all, all}, batch, normal);
  });
  comm::run_ranks(static_cast<int>(config.size),
                  [&](comm::World& world) {
                    comm::Mesh mesh(world, parallel::tensor_axes(config));
                    Fp8Products fp8(recipe);
                    nn::Parameters parameters(mesh.coordinates(), options(fp8));
                    const Layout layout = parallel::make_layout(config, mesh);
                    parallel::TensorLayers make(parameters, layout);
                    Pair pair(make);
                    const Parts parts = parts_of(layout);
                    compare(run(pair, mesh, parts, batch, uniform), first, parts, parameters);
                    if (scaling == Fp8Recipe::Scaling::Current) return;
                    parallel::GroupReduction ranks(mesh.all());
                    ops::RankReduction alone;
                    fp8.end_step(agrees ? ranks : alone);
                    for (size_t i = 0; i < history.size(); ++i)
                      expect_equal(fp8.states()[i]->history, history[i], fp8.states()[i]->name);
                    compare(run(pair, mesh, parts, batch, normal), second, parts, parameters);
                  },
                  {.collectives_off = collectives_off});
}

class Fp8Parity : public testing::TestWithParam<TensorConfig> {};

TEST_P(Fp8Parity, EqualsOneProcessBitwiseWithCurrentScaling) {
  EXPECT_NO_THROW(check(GetParam(), Fp8Recipe::Scaling::Current));
  EXPECT_THROW(check(GetParam(), Fp8Recipe::Scaling::Current, true, true), ParityError);
}

TEST_P(Fp8Parity, EqualsOneProcessBitwiseWithDelayedScaling) {
  EXPECT_NO_THROW(check(GetParam(), Fp8Recipe::Scaling::Delayed));
  EXPECT_THROW(check(GetParam(), Fp8Recipe::Scaling::Delayed, false), ParityError);
}

// The effect of fp8 is visible: the same layers without it give other numbers.
TEST(Fp8Difference, DiffersFromPlainLayers) {
  comm::run_ranks(1, [](comm::World& world) {
    comm::Mesh mesh(world, {{"data", 1}});
    Fp8Products fp8({});
    nn::Parameters parameters(mesh.coordinates(), options(fp8)), plain(mesh.coordinates(), {.dtype = at::kDouble});
    nn::SerialLayers make(parameters), make_plain(plain);
    Pair pair(make), plain_pair(make_plain);
    const auto all = [](const at::Tensor& x) { return x; };
    EXPECT_THROW(compare(run(pair, mesh, {all, all}, 2, uniform), run(plain_pair, mesh, {all, all}, 2, uniform),
                         {all, all}, parameters),
                 ParityError);
  });
}

TEST_P(Fp8Parity, WrapsOnlyProductsOfBlocksAndLogits) {
  comm::run_ranks(static_cast<int>(GetParam().size), [&](comm::World& world) {
    comm::Mesh mesh(world, parallel::tensor_axes(GetParam()));
    std::vector<std::string> names;
    nn::Parameters parameters(mesh.coordinates(),
                              {.products = {[&](auto product, const nn::Parameter& weight, nn::Parameters&) {
                                 names.push_back(weight.hidden_matrix ? weight.name : weight.name + ", of logits");
                                 return product;
                               }}});
    parallel::TensorLayers make(parameters, parallel::make_layout(GetParam(), mesh));
    const nn::AttentionShape shape{.hidden = kNarrow, .heads = 6, .kv_heads = 6, .head_dim = 3};
    const auto embedding = make.embedding("embedding", 11, kNarrow, 1),
               positions = make.positions("positions", 5, kNarrow, 1);
    make.patch_embedding("patches", {2, 4, 4, 2}, kNarrow, 1, "class_token", 1);
    make.heads("qkv", shape, {});
    make.from_heads("out", shape, {});
    make.expand("up", kNarrow, kWide, {});
    make.contract("down", kWide, kNarrow, {});
    make.lm_head("head", kNarrow, 11, {.deviation = 1});
    make.classifier("classifier", kNarrow, 5, 1);
    EXPECT_THAT(names,
                testing::ElementsAre("qkv.weight", "out.weight", "up.weight", "down.weight", "head.weight, of logits"));
  });
}

INSTANTIATE_TEST_SUITE_P(Modes, Fp8Parity, testing::ValuesIn(tensor_modes()),
                         [](const auto& info) { return name_of(info.param); });

}  // namespace
}  // namespace colossal::test::fp8_parity_test
