// States move from one axis to the other and back on any number of ranks, with their gradients, and send what the
// formula says. A pair of blocks, over places and then over frames, equals one process.
#include "colossal/nn/axis_switch.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/base/seed.h"
#include "colossal/comm/agreement.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/comm/simulated_world.h"
#include "colossal/nn/attention_shape.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/head_projections.h"
#include "colossal/nn/linear_layers.h"
#include "colossal/nn/serial_layers.h"
#include "colossal/parallel/sequence/exchange.h"
#include "colossal/parallel/tensor/tensor_layers.h"
#include "support/pair_of_axes.h"
#include "support/thrown_message.h"
#include "support/tolerance.h"

namespace colossal::test::axis_switch_test {
namespace {

using comm::Phase;
using nn::Axis;
using testing::HasSubstr;

constexpr int64_t kHidden = 6;
constexpr nn::AttentionShape kHeads{kHidden, 2, 2, kHidden / 2};

at::Tensor random(const std::vector<int64_t>& sizes, const std::string& name) {
  return at::randn(sizes, at::detail::createCPUGenerator(derive_seed(5, name)), at::kDouble);
}

/// The layers of a rank whose sequence axis has all ranks.
struct Rank {
  explicit Rank(comm::World& world, const std::string& mode = "dsp")
      : config{world.size(), mode},
        mesh(world, parallel::sequence_axes(config)),
        parameters(mesh.coordinates(), {.dtype = at::kDouble}),
        layout(parallel::with_sequence(parallel::make_layout({}, mesh), config)),
        make(parameters, layout),
        axes(make.axis_switch()) {}
  at::Tensor own(const at::Tensor& whole, const Axis& axis) const {
    return axes->share(axis.size).of(whole, axis.dim, axis.name);
  }

  parallel::SequenceConfig config;
  comm::Mesh mesh;
  nn::Parameters parameters;
  parallel::Layout layout;
  parallel::TensorLayers make;
  std::shared_ptr<const nn::AxisSwitch> axes;
};

/// Two axes of a state of five dimensions.
struct Case {
  Axis from, to;
  std::vector<int64_t> sizes() const {
    std::vector<int64_t> sizes{2, 1, 3, 1, 2};
    sizes[from.dim] = from.size, sizes[to.dim] = to.size;
    return sizes;
  }
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const auto& [dim, other] : std::vector<std::pair<int64_t, int64_t>>{{3, 1}, {0, 4}})
    for (const auto& [size, other_size] : std::vector<std::pair<int64_t, int64_t>>{{4, 12}, {7, 5}, {6, 4}, {4, 9}})
      all.push_back({{dim, size, "places"}, {other, other_size, "frames"}});
  return all;
}

void on_ranks(const std::function<void(comm::World&)>& run) {
  for (int ranks = 1; ranks <= 4; ++ranks) comm::run_ranks(ranks, run);
}

TEST(AxisSwitch, MovesTheSplitBitForBit) {
  on_ranks([](comm::World& world) {
    Rank rank(world);
    for (const Case& c : cases()) {
      const at::Tensor whole = random(c.sizes(), "x"), own = rank.own(whole, c.from);
      const at::Tensor there = rank.axes->forward(own, c.from, c.to);
      EXPECT_TRUE(at::equal(there, rank.own(whole, c.to))) << c.from.size << " " << c.to.size;
      EXPECT_TRUE(at::equal(rank.axes->forward(there, c.to, c.from), own)) << c.from.size << " " << c.to.size;
    }
  });
}

TEST(AxisSwitch, ReturnsGradientsToTheRanksOfTheirElements) {
  on_ranks([](comm::World& world) {
    Rank rank(world);
    for (const Case& c : cases()) {
      const at::Tensor dy = random(c.sizes(), "dy");
      const at::Tensor x = at::zeros_like(rank.own(dy, c.from)).requires_grad_();
      rank.axes->forward(x, c.from, c.to).backward(rank.own(dy, c.to));
      EXPECT_TRUE(at::equal(x.grad(), rank.own(dy, c.from))) << c.from.size << " " << c.to.size;
    }
  });
}

TEST(AxisSwitch, SendsWhatTheFormulaSays) {
  on_ranks([](comm::World& world) {
    Rank rank(world);
    const auto ranks = static_cast<double>(world.size());
    for (const Case& c : cases()) {
      const at::Tensor whole = random(c.sizes(), "x");
      const auto elements = static_cast<double>(whole.numel());
      const at::Tensor x = rank.own(whole, c.from).clone().requires_grad_();
      world.traffic().reset();
      at::Tensor y;
      {
        const comm::PhaseScope phase(world.traffic(), Phase::Forward);
        y = rank.axes->forward(x, c.from, c.to);
      }
      {
        const comm::PhaseScope phase(world.traffic(), Phase::Backward);
        y.backward(at::ones_like(y));
      }
      // What a rank has before and after is not sent.
      const auto share = [&](const Axis& axis) {
        return static_cast<double>(rank.own(whole, axis).size(axis.dim)) / static_cast<double>(axis.size);
      };
      const auto over_ranks = [&](double of_rank) { return comm::sum(rank.mesh.all(), of_rank); };
      const double kept = over_ranks(elements * share(c.from) * share(c.to));
      for (const Phase phase : {Phase::Forward, Phase::Backward}) {
        const double sent = over_ranks(world.traffic().total("sequence", "", phase).elements);
        EXPECT_NEAR(sent, elements - kept, 1e-6);
        if (c.from.size % world.size() == 0 || c.to.size % world.size() == 0)
          EXPECT_NEAR(sent, (ranks - 1) / ranks * elements, 1e-6) << "exactly, if the ranks divide either axis";
      }
    }
  });
}

// 28 pairs of blocks of 1,152 features, for 120 latent frames of 3,600 places on 8 ranks.
TEST(AxisSwitch, CountsOnShapesWhatSixteenSecondsOf720pSend) {
  const auto world = comm::make_simulated_world(0, 8);
  const Rank rank(*world);
  const at::Tensor x = at::empty({120, 450, 1152}, at::TensorOptions(at::kMeta));
  const at::Tensor y = rank.axes->forward(x, {1, 3600, "places"}, {0, 120, "frames"});
  EXPECT_EQ(y.sizes(), (std::vector<int64_t>{15, 3600, 1152}));
  EXPECT_EQ(world->traffic().total("sequence").elements * 8 * 2 * 28, 24'385'536'000.0);
}

TEST(AxisSwitch, ChangesNothingInOneProcessAndInOtherModes) {
  const Case c = cases().front();
  const at::Tensor x = random({2, 3}, "x");
  nn::Parameters parameters({}, {});
  const auto serial = nn::SerialLayers(parameters).axis_switch();
  EXPECT_TRUE(serial->forward(x, c.from, c.to).is_same(x));
  EXPECT_TRUE(serial->share(7).is_all());
  comm::run_ranks(
      2, [&](comm::World& world) { EXPECT_TRUE(Rank(world, "ring").axes->forward(x, c.from, c.to).is_same(x)); });
}

TEST(AxisSwitch, RefusesFewerElementsThanRanksAndOtherStates) {
  comm::run_ranks(3, [](comm::World& world) {
    Rank rank(world);
    const Axis places{0, 6, "places"}, frames{1, 2, "frames"}, more{1, 4, "frames"};
    const auto refused = [&](const at::Tensor& x, const Axis& from, const Axis& to) {
      return thrown_message([&] { rank.axes->forward(x, from, to); });
    };
    world.traffic().reset();
    EXPECT_THAT(refused(at::zeros({2, 2}), places, frames),
                HasSubstr("each of the 3 ranks of parallel.sequence must have a part of both axes: got 2 frames"));
    EXPECT_THAT(refused(at::zeros({2, 2}), frames, places), HasSubstr("got 2 frames"));
    EXPECT_THAT(refused(at::zeros({6, 4}), places, more),
                HasSubstr("must have 2 of 6 places and all 4 frames in dimensions 0 and 1: got [6, 4]"));
    EXPECT_EQ(world.traffic().total().calls, 0);
    EXPECT_THAT(thrown_message([&] { rank.layout.with_cut({}, 2); }), HasSubstr("got 2 places"));
  });
}

/// Clips of `frames`, in `rows` rows. Pictures have one frame: their rows take its place.
struct Clips {
  int64_t rows, frames, places;
  std::vector<int64_t> sizes() const { return {rows * frames, places, kHidden}; }
};

/// Some layers as a function of x [frames of all rows, own places, H].
using Layer = std::function<at::Tensor(const at::Tensor& x, const nn::ForwardContext& step)>;

/// Compares results and gradients of the layers that `make` makes, on ranks that split places, with one process.
void expect_those_of_one_process(const Clips& c, const std::string& mode, int ranks,
                                 const std::function<Layer(nn::Layers&)>& make) {
  const at::Tensor x = random(c.sizes(), "x").requires_grad_(), dy = random(c.sizes(), "dy");
  nn::Parameters whole({}, {.dtype = at::kDouble});
  nn::SerialLayers serial(whole);
  const at::Tensor want = make(serial)(x, {});
  want.backward(dy);
  comm::run_ranks(ranks, [&](comm::World& world) {
    Rank rank(world, mode);
    const nn::ForwardContext step = rank.layout.with_cut({}, c.places);
    const auto own = [&](const at::Tensor& t) { return rank.layout.tokens_read(step).of(t, 1, "places"); };
    const at::Tensor leaf = own(x.detach()).clone().requires_grad_();
    const at::Tensor y = make(rank.make)(leaf, step);
    y.backward(own(dy));
    expect_within(y, own(want), 1e-12, mode);
    expect_within(leaf.grad(), own(x.grad()), 1e-12, mode + ": dx");
    for (const nn::Parameter& p : rank.parameters) {
      at::Tensor sum = p.value.grad().clone();
      rank.mesh.all().all_reduce(sum, comm::Reduce::Sum).wait();
      expect_within(sum, whole.at(p.name).value.grad(), 1e-12, mode + ": " + p.name);
    }
  });
}

TEST(AxisSwitch, LetsBlocksOverTwoAxesEqualOneProcess) {
  for (const Clips& c : {Clips{1, 4, 4}, Clips{2, 3, 5}, Clips{5, 1, 7}})
    for (const std::string mode : {"dsp", "ring", "ulysses"})
      expect_those_of_one_process(c, mode, mode == "ulysses" ? 2 : 4, [&](nn::Layers& make) -> Layer {
        return [=, pair = std::make_shared<PairOfAxes>(make, "pair", kHeads)](const auto& x, const auto& step) {
          return pair->forward(x, {c.rows, c.places}, step);
        };
      });
}

TEST(AxisSwitch, LetsPlacesAttendToACaptionThatIsWhole) {
  nn::AttentionShape shape = kHeads;
  shape.source_hidden = 4;
  for (const std::string mode : {"dsp", "ring"})
    expect_those_of_one_process({2, 1, 5}, mode, 3, [&](nn::Layers& make) -> Layer {
      const std::shared_ptr<nn::CrossProjection> heads =
          make.cross_heads("cross", shape, {.deviation = 0.5}, {.deviation = 0.5});
      const std::shared_ptr<nn::Attention> attention = nn::axis_attention(shape, {.causal = false});
      const std::shared_ptr<nn::OutputProjection> out = make.from_heads("cross.out", shape, {.deviation = 0.5});
      return [=, text = random({2, 3, 4}, "text")](const auto& x, const auto& step) {
        return out->forward(attention->forward(heads->forward(x, text, step), step), step);
      };
    });
}

TEST(AxisSwitch, LeavesNoCaptionToALayoutThatGathersTokens) {
  const auto world = comm::make_simulated_world(0, 2);
  const parallel::TensorConfig config{.size = 2, .sequence = true};
  comm::Mesh mesh(*world, parallel::tensor_axes(config));
  nn::Parameters parameters(mesh.coordinates(), {});
  parallel::TensorLayers make(parameters, parallel::make_layout(config, mesh));
  EXPECT_THAT(thrown_message([&] { make.cross_heads("cross", kHeads, {}, {}); }),
              HasSubstr("leave out parallel.tensor.sequence"));
}

TEST(AxisSwitch, MustBringStatesBack) {
  comm::run_ranks(2, [](comm::World& world) {
    Rank rank(world);
    const PairOfAxes pair(rank.make, "pair", kHeads);
    const at::Tensor own = random({4, 2, kHidden}, "x");  // of 4 places
    EXPECT_NO_THROW(pair.forward(own, {1, 4}, {}));
    EXPECT_ANY_THROW(pair.forward(own, {.rows = 1, .places = 4, .comes_back = false}, {}));
  });
}

}  // namespace
}  // namespace colossal::test::axis_switch_test
