// Convolutions and GroupNorms of pictures in every mode of tensor parallelism and in replicas: a small network has the
// outputs and the gradients of one process. Their traffic is that of the products that they consist of.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "colossal/base/error.h"
#include "colossal/base/seed.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/memory/chunk_store.h"
#include "colossal/nn/convolution.h"
#include "colossal/nn/features.h"
#include "colossal/nn/field_linear.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/linear_layers.h"
#include "colossal/nn/low_rank.h"
#include "colossal/nn/norm.h"
#include "colossal/nn/outputs.h"
#include "colossal/nn/serial_layers.h"
#include "colossal/ops/group_norm.h"
#include "colossal/parallel/data/gradient_reducer.h"
#include "colossal/parallel/tensor/activations.h"
#include "colossal/parallel/tensor/tensor_layers.h"
#include "support/parity.h"
#include "support/thrown_message.h"
#include "support/tolerance.h"

namespace colossal::test::convolution_parity_test {
namespace {

using comm::Phase;
using comm::PhaseScope;
using nn::Place;
using parallel::Layout;
using parallel::TensorConfig;
using tensor::Dim;
using testing::HasSubstr;

constexpr int64_t kHidden = 36, kInner = 72, kCondition = 18, kChannels = 3, kOutputs = 4;
const ops::PictureSize kSize{3, 6}, kHalf{1, 3};
const nn::Pictures kSame{kSize, ops::Window::same(3)};
const nn::LinearOptions kKernel{.deviation = 0.1, .taps = {3, 3}};

at::Tensor values(std::vector<int64_t> sizes, const std::string& name) {
  auto generator = at::detail::createCPUGenerator(derive_seed(9, name));
  return at::randn(sizes, generator, at::TensorOptions().dtype(at::kDouble));
}

/// A ResNet block as of Stable Diffusion, a smaller picture, and the outputs.
struct Network {
  explicit Network(nn::Layers& make)
      : first(make.picture_embedding("first", kChannels, kHidden, 3, 0.3)),
        colour(make, "colour", kChannels, kCondition, 0.3),
        blend(make.dense("blend", kCondition, kCondition, {.deviation = 0.3})),
        norm_1(make.group_norm("norm_1", kHidden, {.groups = 6}, Place::Outside)),
        up(make.expand("up", kHidden, kInner, kKernel)),
        condition(make.expand("condition", kCondition, kInner, {.deviation = 0.3})),
        norm_2(make.group_norm("norm_2", kInner, {.groups = 12}, Place::Inside)),
        down(make.contract("down", kInner, kHidden, kKernel)),
        half(make.dense("half", kHidden, kHidden, kKernel)),
        mix(make.dense("mix", kHidden, kHidden, {.deviation = 0.1, .taps = {1, 1}})),
        wide(make.dense("wide", kHidden, kHidden, {.bias = false, .deviation = 0.1, .taps = {3, 3}})),
        outputs(make.outputs("outputs", kHidden, kOutputs, kKernel)) {}

  at::Tensor forward(const at::Tensor& pictures, const at::Tensor& vector, const nn::ForwardContext& step) const {
    at::Tensor x = first->forward(pictures, kSame.window);
    const at::Tensor blended = blend->forward(vector + colour.forward(pictures.mean({2, 3})).unsqueeze(1));
    const at::Tensor inside =
        up->forward(at::silu(norm_1->forward(x)), kSame).tensor + condition->forward(blended).tensor;
    x = x + down->forward(
                nn::Inside{norm_2->forward(inside)}.map([](const at::Tensor& t) { return at::silu(t); }, step), kSame);
    const at::Tensor small = half->forward(x, {kSize, {.stride = 2, .bottom = 1, .right = 1}});
    const at::Tensor mixed = nn::as_pictures(mix->forward(small, {kHalf, {}}), kHalf);
    const at::Tensor large = wide->forward(nn::as_pixels(ops::enlarged(mixed, kSize)), kSame);
    return outputs->forward(at::silu(x + large), kSame, step);
  }

  std::unique_ptr<nn::PictureEmbedding> first;
  nn::FieldLinear colour;
  std::unique_ptr<nn::Dense> blend;
  std::unique_ptr<nn::GroupNorm> norm_1;
  std::unique_ptr<nn::Expand> up, condition;
  std::unique_ptr<nn::GroupNorm> norm_2;
  std::unique_ptr<nn::Contract> down;
  std::unique_ptr<nn::Dense> half, mix, wide;
  std::unique_ptr<nn::Outputs> outputs;
};

/// `adapted`: each layer that offers its product has an adapter, beside which its weight trains, too.
nn::Parameters::Options options_of(bool adapted) {
  nn::Parameters::Options options{.dtype = at::kDouble};
  if (adapted)
    options.products = {[](auto product, const nn::Parameter& weight, nn::Parameters& parameters) {
      return nn::with_low_rank(std::move(product), weight, parameters, {.rank = 2, .scale = 0.5});
    }};
  return options;
}

struct Results {
  at::Tensor outputs, condition_gradient;  // the gradient: this rank's part
  std::map<std::string, at::Tensor> gradients;
};

/// Runs the network on this rank's parts of pictures and condition.
Results run_network(nn::Layers& make, comm::Mesh& mesh, const at::Tensor& pictures, const at::Tensor& condition,
                    const nn::ForwardContext& step, const at::Tensor& weights) {
  nn::Parameters& parameters = make.parameters();
  const Network network(make);
  {
    const at::NoGradGuard no_grad;
    for (nn::Parameter& p : parameters)
      p.value.copy_(local_part(values(p.spec.shape, p.name) * 0.2, p.spec, mesh.coordinates()));
  }
  memory::ChunkStore store(parameters, mesh, {.capacity = 1 << 17});
  parallel::GradientReducer reducer(store, {.sums = at::kDouble});
  const at::Tensor leaf = condition.clone().requires_grad_();
  reducer.begin(true);
  const at::Tensor y = network.forward(pictures, leaf, step);
  (y * weights).square().sum().backward();
  reducer.finish();
  Results r{.outputs = y.detach(), .condition_gradient = leaf.grad()};
  for (const nn::Parameter& p : parameters) r.gradients[p.name] = p.value.grad().clone();
  return r;
}

struct Case {
  TensorConfig tensor{};
  int64_t data = 1;
  nn::Recompute recompute = nn::Recompute::None;
  bool adapted = false;
};

void expect_near(const at::Tensor& got, const at::Tensor& want, const std::string& what) {
  expect_within(got, want, 1e-10 * std::max(1.0, want.abs().max().item<double>()), what);
}

void check(const Case& c, bool collectives_off = false) {
  const int64_t rows = parallel::batch_parts(c.tensor) * c.data * 2;
  const at::Tensor pictures = values({rows, kChannels, kSize.height, kSize.width}, "pictures"),
                   condition = values({rows, 1, kCondition}, "condition"),
                   weights = values({rows, kSize.pixels(), kOutputs}, "weights");
  Results want;
  comm::run_ranks(1, [&](comm::World& world) {
    comm::Mesh mesh(world, {{"data", 1}});
    nn::Parameters parameters(mesh.coordinates(), options_of(c.adapted));
    nn::SerialLayers make(parameters);
    want = run_network(make, mesh, pictures, condition, {}, weights);
  });
  std::vector<comm::Mesh::Axis> axes{comm::Mesh::batch("data", static_cast<int>(c.data))};
  for (const comm::Mesh::Axis& axis : parallel::tensor_axes(c.tensor)) axes.push_back(axis);
  comm::run_ranks(
      static_cast<int>(c.tensor.size * c.data),
      [&](comm::World& world) {
        comm::Mesh mesh(world, axes);
        nn::Parameters parameters(mesh.coordinates(), options_of(c.adapted));
        const Layout layout = parallel::make_layout(c.tensor, mesh);
        parallel::TensorLayers make(parameters, layout);
        const int64_t own = rows / c.data, first = mesh.index("data") * own;
        const auto replica = [&](const at::Tensor& whole) { return whole.narrow(0, first, own); };
        tensor::Batch batch;
        batch.add("pictures", {replica(pictures), {Dim::Row, Dim::Other, Dim::Other, Dim::Other}});
        batch.add("condition", {replica(condition), {Dim::Row, Dim::Other, Dim::Feature}});
        nn::ForwardContext step{.training = true, .recompute = c.recompute};
        step.batch = std::make_shared<const tensor::Batch>(std::move(batch));
        step = layout.with_cut(step, kSize.pixels());
        const auto part = [&](const char* name) {
          return parallel::part_of(layout, layout.outside, step.batch->field(name), step).clone();
        };
        const Results got = run_network(make, mesh, part("pictures"), part("condition"), step, replica(weights));
        expect_near(got.outputs, replica(want.outputs), "outputs");
        expect_near(got.condition_gradient,
                    parallel::part_of(layout, layout.outside, replica(want.condition_gradient), {}),
                    "gradient of the condition");
        for (const nn::Parameter& p : parameters)
          expect_near(got.gradients.at(p.name), local_part(want.gradients.at(p.name), p.spec, mesh.coordinates()),
                      "gradient of " + p.name);
      },
      {.collectives_off = collectives_off});
}

/// Modes that leave the pixels of a picture on one rank, on a few ranks.
std::vector<TensorConfig> modes() {
  std::vector<TensorConfig> all = tensor_modes();
  std::erase_if(all,
                [](const TensorConfig& t) { return t.sequence || t.size > 9 || (t.mode == "2.5d" && t.depth == 1); });
  return all;
}

class ConvolutionModes : public testing::TestWithParam<TensorConfig> {};

TEST_P(ConvolutionModes, EqualOneProcess) {
  EXPECT_NO_THROW(check({.tensor = GetParam()}));
  EXPECT_NO_THROW(check({.tensor = GetParam(), .recompute = nn::Recompute::Selective, .adapted = true}));
  EXPECT_THROW(check({.tensor = GetParam()}, true), ParityError);
}

INSTANTIATE_TEST_SUITE_P(Modes, ConvolutionModes, testing::ValuesIn(modes()),
                         [](const auto& info) { return name_of(info.param); });

TEST(Convolutions, EqualOneProcessInReplicas) {
  for (const TensorConfig& tensor : {TensorConfig{}, TensorConfig{.size = 2}, TensorConfig{.size = 4, .mode = "2d"}}) {
    EXPECT_NO_THROW(check({.tensor = tensor, .data = 2, .adapted = true}));
    EXPECT_THROW(check({.tensor = tensor, .data = 2}, true), ParityError);
  }
}

/// What a rank sends while `layer` runs, forward and backward.
struct Sent {
  double forward, backward;
  int64_t forward_calls, backward_calls;
  bool operator==(const Sent&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Sent& s) {
  return out << s.forward << " elements in " << s.forward_calls << " calls, " << s.backward << " in "
             << s.backward_calls;
}

Sent sent_by(comm::World& world, const std::function<at::Tensor()>& layer) {
  world.traffic().reset();
  at::Tensor y;
  {
    const PhaseScope phase(world.traffic(), Phase::Forward);
    y = layer();
  }
  {
    const PhaseScope phase(world.traffic(), Phase::Backward);
    y.sum().backward();
  }
  const auto f = world.traffic().total("", "", Phase::Forward), b = world.traffic().total("", "", Phase::Backward);
  return {f.elements, b.elements, f.calls, b.calls};
}

TEST(ConvolutionTraffic, HasOneSumOfResultsOrOfGradientsIn1d) {
  for (const int64_t size : {2, 3})
    comm::run_ranks(static_cast<int>(size), [&](comm::World& world) {
      const TensorConfig config{.size = size};
      comm::Mesh mesh(world, parallel::tensor_axes(config));
      nn::Parameters parameters(mesh.coordinates(), {.dtype = at::kDouble});
      parallel::TensorLayers make(parameters, parallel::make_layout(config, mesh));
      const auto up = make.expand("up", kHidden, kInner, kKernel);
      const auto down = make.contract("down", kInner, kHidden, kKernel);
      const nn::Pictures halves{kSize, {.stride = 2, .bottom = 1, .right = 1}};
      const double share = 2.0 * (static_cast<double>(size) - 1) / static_cast<double>(size), rows = 3;
      const at::Tensor x = at::ones({3, kSize.pixels(), kHidden}, at::kDouble).requires_grad_(),
                       inside = at::ones({3, kSize.pixels(), kInner / size}, at::kDouble).requires_grad_();
      EXPECT_EQ(sent_by(world, [&] { return up->forward(x, halves).tensor; }),
                (Sent{0, share * rows * kSize.pixels() * kHidden, 0, 1}));
      EXPECT_EQ(sent_by(world, [&] { return down->forward({inside}, halves); }),
                (Sent{share * rows * kHalf.pixels() * kHidden, 0, 1, 0}));
    });
}

// Products that exchange blocks do so once, for the inputs of all taps together.
TEST(ConvolutionTraffic, EqualsThatOfALinearLayerOfAllTaps) {
  for (const TensorConfig& config : modes())
    comm::run_ranks(static_cast<int>(config.size), [&](comm::World& world) {
      if (config.mode == "1d") return;
      comm::Mesh mesh(world, parallel::tensor_axes(config));
      nn::Parameters parameters(mesh.coordinates(), {.dtype = at::kDouble});
      const Layout layout = parallel::make_layout(config, mesh);
      parallel::TensorLayers make(parameters, layout);
      const auto convolution = make.expand("convolution", kHidden, kInner, kKernel);
      const auto linear = make.expand("linear", 9 * kHidden, kInner, {});
      const auto hidden = [&](int64_t features) {
        const int64_t rows = parallel::batch_parts(config) * 2;
        const auto sizes = parallel::local_sizes(layout, layout.outside, {rows, kSize.pixels(), features},
                                                 {Dim::Row, Dim::Token, Dim::Feature}, kSize.pixels());
        return at::ones(sizes, at::kDouble).requires_grad_();
      };
      EXPECT_EQ(sent_by(world, [&] { return convolution->forward(hidden(kHidden), kSame).tensor; }),
                sent_by(world, [&] { return linear->forward(hidden(9 * kHidden)).tensor; }))
          << name_of(config);
    });
}

TEST(Convolutions, RefuseRanksThatCutGroupsOrPictures) {
  comm::run_ranks(4, [&](comm::World& world) {
    const TensorConfig config{.size = 4};
    comm::Mesh mesh(world, parallel::tensor_axes(config));
    nn::Parameters parameters(mesh.coordinates(), {.dtype = at::kDouble});
    parallel::TensorLayers make(parameters, parallel::make_layout(config, mesh));
    EXPECT_NO_THROW(make.group_norm("outside", 36, {.groups = 6}, Place::Outside));
    EXPECT_THAT(thrown_message([&] { make.group_norm("inside", 36, {.groups = 6}, Place::Inside); }),
                HasSubstr("[parallel] ranks must have whole groups of the norm inside, of 6 features each: got 9 "
                          "features on a rank; choose a tensor size that divides 6 groups"));
    EXPECT_THAT(thrown_message([&] { make.group_norm("inside", 36, {.groups = 5}, Place::Inside); }),
                HasSubstr("[model] the groups of inside must divide its 36 features: got 5"));
  });
  comm::run_ranks(2, [&](comm::World& world) {
    const TensorConfig config{.size = 2, .sequence = true};
    comm::Mesh mesh(world, parallel::tensor_axes(config));
    nn::Parameters parameters(mesh.coordinates(), {.dtype = at::kDouble});
    parallel::TensorLayers make(parameters, parallel::make_layout(config, mesh));
    const auto up = make.expand("up", kHidden, kInner, kKernel);
    const at::Tensor half = at::ones({1, kSize.pixels() / 2, kHidden}, at::kDouble);
    EXPECT_THAT(thrown_message([&] { up->forward(half, kSame); }),
                HasSubstr("[model] pictures of 3 x 6 must be [B, 18, features]: got [1, 9, 36]"));
  });
}

TEST(Convolutions, NeedLayersWithTwoTaps) {
  const auto refuse = [](nn::Layers& make) {
    const at::Tensor x = at::ones({1, kSize.pixels(), kHidden}, at::kDouble);
    const auto up = make.expand("up", kHidden, kHidden, {});
    const auto down = make.contract("down", kHidden, kHidden, {.taps = {3}});
    const auto dense = make.dense("dense", kHidden, kHidden, {});
    const auto outputs = make.outputs("outputs", kHidden, 2, {});
    const auto message = HasSubstr("[model] the weight of a convolution must be [out, in, rows, columns]");
    EXPECT_THAT(thrown_message([&] { up->forward(x, kSame); }), message);
    EXPECT_THAT(thrown_message([&] { down->forward({x}, kSame); }), message);
    EXPECT_THAT(thrown_message([&] { dense->forward(x, kSame); }), message);
    EXPECT_THAT(thrown_message([&] { outputs->forward(x, kSame, {}); }), message);
  };
  nn::Parameters parameters({}, {.dtype = at::kDouble});
  nn::SerialLayers serial(parameters);
  refuse(serial);
  comm::run_ranks(1, [&](comm::World& world) {
    comm::Mesh mesh(world, {{"data", 1}});
    nn::Parameters own(mesh.coordinates(), {.dtype = at::kDouble});
    parallel::TensorLayers make(own, parallel::make_layout({}, mesh));
    refuse(make);
  });
}

// Adapters wrap convolutions and layers between blocks. What changes only hidden matrices (fp8, packed weights) leaves
// them alone.
TEST(Convolutions, OfferThemselvesToWrappersWithoutHiddenMatrices) {
  const auto check_wrapped = [](nn::Layers& make, const std::vector<std::string>& wrapped) {
    const auto up = make.expand("up", kHidden, kInner, kKernel);
    const auto down = make.contract("down", kInner, kHidden, kKernel);
    const auto dense = make.dense("dense", kHidden, kHidden, kKernel);
    const auto plain = make.expand("plain", kHidden, kInner, {});
    const auto outputs = make.outputs("outputs", kHidden, kOutputs, kKernel), few = make.outputs("few", kHidden, 1, {});
    EXPECT_THAT(wrapped,
                testing::ElementsAre("up.weight", "down.weight", "dense.weight", "plain.weight", "outputs.weight"));
    for (const nn::Parameter& p : make.parameters()) {
      EXPECT_EQ(p.hidden_matrix, p.name == "plain.weight") << p.name;
      EXPECT_EQ(p.between_blocks, p.name == "dense.weight" || p.name == "outputs.weight") << p.name;
    }
  };
  comm::run_ranks(2, [&](comm::World& world) {
    std::vector<std::string> wrapped;
    const nn::Parameters::Options options{
        .dtype = at::kDouble,
        .products = {[&](std::shared_ptr<const nn::Product> product, const nn::Parameter& weight, nn::Parameters&) {
          wrapped.push_back(weight.name);
          return product;
        }}};
    comm::Mesh mesh(world, parallel::tensor_axes({.size = 2}));
    nn::Parameters parameters(mesh.coordinates(), options), whole({}, options);
    parallel::TensorLayers make(parameters, parallel::make_layout({.size = 2}, mesh));
    check_wrapped(make, wrapped);
    wrapped.clear();
    nn::SerialLayers serial(whole);
    check_wrapped(serial, wrapped);
  });
}

}  // namespace
}  // namespace colossal::test::convolution_parity_test
