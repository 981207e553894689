// Each layer of the parallel factory, in every mode, against the serial one on integers. Every sum is exact in any
// order, so results must be equal bit for bit, and a difference is an error of layout, never of rounding. Then common
// errors in such layers, each of which must be noticed.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <map>

#include "colossal/base/seed.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/memory/chunk_store.h"
#include "colossal/nn/attention.h"
#include "colossal/nn/attention_shape.h"
#include "colossal/nn/dropout.h"
#include "colossal/nn/embedding.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/head_projections.h"
#include "colossal/nn/linear_layers.h"
#include "colossal/nn/loss_head.h"
#include "colossal/nn/patches.h"
#include "colossal/nn/serial_layers.h"
#include "colossal/nn/tokens.h"
#include "colossal/parallel/data/gradient_reducer.h"
#include "colossal/parallel/tensor/activations.h"
#include "colossal/parallel/tensor/tensor_layers.h"
#include "support/parity.h"
#include "support/tolerance.h"

namespace colossal::test::layers_parity_test {
namespace {

using parallel::Layout;
using parallel::TensorConfig;

constexpr int64_t kSequence = 6, kFfn = 20, kVocabulary = 11, kClasses = 5;
constexpr nn::AttentionShape kShape{.hidden = 36, .heads = 6, .kv_heads = 6, .head_dim = 3};

/// Small integers in doubles, drawn from `name`.
at::Tensor integers(std::vector<int64_t> sizes, const std::string& name) {
  auto generator = at::detail::createCPUGenerator(derive_seed(5, name));
  return at::randint(-3, 4, sizes, generator, at::TensorOptions().dtype(at::kDouble));
}

/// Layers in a chain, without operations that round.
struct Chain {
  Chain(nn::Layers& make, const nn::AttentionShape& shape, bool is_sequence_split) {
    const int64_t width = shape.hidden;
    embedding = make.embedding("embedding", kVocabulary, width, 1);
    positions = make.positions("positions", kSequence, width, 1);
    if (!is_sequence_split) patches = make.patch_embedding("patches", kPatches, width, 1, "class_token", 1);
    heads = make.heads("qkv", shape, {});
    from_heads = make.from_heads("out", shape, {});
    up = make.expand("up", width, kFfn, {});
    down = make.contract("down", kFfn, width, {});
    gate_up = make.expand("gate_up", width, 2 * kFfn, {.bias = false, .segments = {{kFfn}, {kFfn}}});
    down_2 = make.contract("down_2", kFfn, width, {.bias = false});
    tied = make.lm_head("tied", width, kVocabulary, {.deviation = 1, .tied = embedding.get(), .bias = true});
    untied = make.lm_head("untied", width, kVocabulary, {.deviation = 1});
    dense = make.dense("dense", width, width, {});
    classifier = make.classifier("classifier", width, kClasses, 1);
  }
  at::Tensor embed(const at::Tensor& ids, const at::Tensor& images, const nn::ForwardContext& step) {
    const at::Tensor where = at::arange(ids.size(1), ids.options()).expand_as(ids);
    const at::Tensor words = embedding->forward(ids, step) + positions->forward(where, step);
    return patches ? at::cat({patches->forward(images, step), words}, 1) : words;
  }
  at::Tensor hidden(const at::Tensor& x, const nn::ForwardContext& step) {
    const nn::Heads h = heads->forward(x, step);
    const int64_t group = h.q.size(2) / h.k.size(2);  // q heads that share a kv head
    const at::Tensor mixed = h.q + h.k.repeat_interleave(group, 2) - 2 * h.v.repeat_interleave(group, 2);
    const at::Tensor y = x + from_heads->forward({mixed.flatten(2)}, step);
    const auto difference = [](const at::Tensor& t) { return t.chunk(2, -1)[0] - t.chunk(2, -1)[1]; };
    return y + dense->forward(y) + down->forward(up->forward(y)) +
           down_2->forward(gate_up->forward(y).map(difference, step));
  }
  static constexpr nn::PatchShape kPatches{2, 4, 4, 2};
  std::unique_ptr<nn::Embedding> embedding, positions;
  std::unique_ptr<nn::PatchEmbedding> patches;  // null if the sequence is split, because words follow the patches
  std::unique_ptr<nn::HeadProjection> heads;
  std::unique_ptr<nn::Dense> dense;
  std::unique_ptr<nn::Expand> up, gate_up;
  std::unique_ptr<nn::OutputProjection> from_heads;
  std::unique_ptr<nn::Contract> down, down_2;
  std::unique_ptr<nn::LossHead> tied, untied, classifier;
};

at::Tensor ids(int64_t batch) { return integers({batch, kSequence}, "ids").abs().to(at::kLong); }

void fill(nn::Parameters& parameters, const tensor::MeshCoordinates& coordinates) {
  const at::NoGradGuard no_grad;
  for (nn::Parameter& p : parameters) p.value.copy_(local_part(integers(p.spec.shape, p.name), p.spec, coordinates));
}

struct Results {
  at::Tensor hidden, input_gradient;  // this rank's part
  at::Tensor tied, untied, classes, loss, found;
  std::map<std::string, at::Tensor> gradients;
};

/// Changes a layout, or each parameter, to check that the difference is noticed.
using Mutation = std::function<void(Layout&)>;
using ParameterMutation = std::function<void(nn::Parameter&)>;

/// Runs the chain. `step` has the cut of the layout; `part` cuts a whole hidden state to this rank's part.
template <class Part>
Results run_chain(nn::Layers& make, comm::Mesh& mesh, const nn::AttentionShape& shape, int64_t batch,
                  bool is_sequence_split, const nn::ForwardContext& step, const Part& part,
                  const ParameterMutation& mutate = {}) {
  nn::Parameters& parameters = make.parameters();
  Chain chain(make, shape, is_sequence_split);
  if (mutate)
    for (nn::Parameter& p : parameters) mutate(p);
  fill(parameters, mesh.coordinates());
  memory::ChunkStore store(parameters, mesh, {.capacity = 1 << 17});
  parallel::GradientReducer reducer(store, {.sums = at::kDouble});
  Results r;
  const at::Tensor x = chain.embed(ids(batch), integers({batch, 2, 4, 4}, "images"), step);
  const at::Tensor leaf = x.detach().requires_grad_();
  r.hidden = chain.hidden(leaf, step);
  reducer.begin(true);
  const int64_t tokens = kSequence + (is_sequence_split ? 0 : 1 + Chain::kPatches.count());
  r.hidden.backward(part(integers({batch, tokens, shape.hidden}, "gradient")));
  r.input_gradient = leaf.grad();
  x.backward(leaf.grad());
  reducer.finish();
  const at::NoGradGuard no_grad;
  r.tied = chain.tied->logits(r.hidden, step);
  r.untied = chain.untied->logits(r.hidden, step);
  r.classes = chain.classifier->logits(r.hidden.narrow(1, 0, 1), step);
  // Labels differ from token to token, and most of them are the head's predictions; only the loss rounds.
  const at::Tensor labels = integers({batch, tokens}, "labels").abs().to(at::kLong);
  r.loss = chain.tied->loss_sum(r.hidden, labels, step);
  r.found = chain.tied->found(r.hidden, at::where(labels.eq(0), labels, r.tied.argmax(-1)), step);
  for (const nn::Parameter& p : parameters) r.gradients[p.name] = p.value.grad().clone();
  return r;
}

void check(const TensorConfig& config, const nn::AttentionShape& shape, bool collectives_off = false,
           const Mutation& mutate = {}, const ParameterMutation& mutate_parameter = {},
           std::vector<comm::Mesh::Axis> axes = {}) {
  if (axes.empty()) axes = parallel::tensor_axes(config);
  const int64_t batch = parallel::batch_parts(config) * 2;
  Results want;
  comm::run_ranks(1, [&](comm::World& world) {
    comm::Mesh mesh(world, {{"data", 1}});
    nn::Parameters parameters(mesh.coordinates(), {.dtype = at::kDouble});
    nn::SerialLayers make(parameters);
    want = run_chain(make, mesh, shape, batch, config.sequence, {}, [](const at::Tensor& x) { return x; });
  });
  comm::run_ranks(
      static_cast<int>(config.size),
      [&](comm::World& world) {
        comm::Mesh mesh(world, axes);
        nn::Parameters parameters(mesh.coordinates(), {.dtype = at::kDouble});
        Layout layout = parallel::make_layout(config, mesh);
        if (mutate) mutate(layout);
        parallel::TensorLayers make(parameters, layout);
        const nn::ForwardContext step = layout.with_cut({}, kSequence);
        const auto part = [&](const at::Tensor& whole) {
          return parallel::part_of(layout, layout.outside, whole, step).contiguous();
        };
        const Results got = run_chain(make, mesh, shape, batch, config.sequence, step, part, mutate_parameter);
        expect_equal(got.hidden, part(want.hidden), "hidden state");
        expect_equal(got.input_gradient, part(want.input_gradient), "input gradient");
        expect_equal(got.tied, want.tied, "logits of a tied head");
        expect_equal(got.untied, want.untied, "logits of a head of its own");
        expect_close(got.loss, want.loss, batch * kSequence * kVocabulary, "loss");
        expect_equal(got.found, want.found, "labels that were found");
        expect_equal(got.classes, want.classes, "classes");
        for (const nn::Parameter& p : parameters)
          expect_equal(got.gradients.at(p.name), local_part(want.gradients.at(p.name), p.spec, mesh.coordinates()),
                       "gradient of " + p.name);
      },
      {.collectives_off = collectives_off});
}

class IntegerParity : public testing::TestWithParam<TensorConfig> {
 protected:
  void both(const nn::AttentionShape& shape) const {
    EXPECT_NO_THROW(check(GetParam(), shape));
    EXPECT_THROW(check(GetParam(), shape, true), ParityError);
  }
};

TEST_P(IntegerParity, EqualsOneProcessBitwiseInEveryLayer) { both(kShape); }
TEST_P(IntegerParity, EqualsOneProcessBitwiseWithSharedKvHeads) {
  both({.hidden = kShape.hidden, .heads = 6, .kv_heads = 1, .head_dim = 3});
}
TEST_P(IntegerParity, EqualsOneProcessBitwiseWithPaddedHeads) {
  both({.hidden = kShape.hidden, .heads = 5, .kv_heads = 5, .head_dim = 4});
}

INSTANTIATE_TEST_SUITE_P(Modes, IntegerParity, testing::ValuesIn(tensor_modes()),
                         [](const auto& info) { return name_of(info.param); });

// Returns a zigzag: rank r has run number r of 2 N from the start, and run number r from the end.
nn::SequenceCut zigzag(int64_t tokens, int64_t ranks) {
  nn::SequenceCut cut{.held = std::vector<std::vector<int64_t>>(ranks)};
  for (int64_t run = 0; run < 2 * ranks; ++run) {
    cut.lengths.push_back((tokens + 2 * ranks - 1 - run) / (2 * ranks));  // the first ones longer
    cut.held[std::min(run, 2 * ranks - 1 - run)].push_back(run);
  }
  return cut;
}

// 6 tokens are split into runs of 2, 2, 1, 1, and into 6 runs; every rank has tokens of both ends.
TEST(SequenceCut, EqualsOneProcessBitwiseInEveryLayer) {
  for (const bool keep_gathered : {false, true})
    for (const int64_t ranks : {2, 3}) {
      const TensorConfig config{.size = ranks, .keep_gathered = keep_gathered, .sequence = true};
      const auto cut = [](Layout& l) {
        l.cut = [ranks = l.mesh->size("tensor")](int64_t tokens, const nn::ForwardContext&) {
          return zigzag(tokens, ranks);
        };
      };
      EXPECT_NO_THROW(check(config, kShape, false, cut));
      EXPECT_THROW(check(config, kShape, true, cut), ParityError);
    }
}

// A mesh axis that splits only tokens, as in ring attention. Every rank multiplies whole matrices by its own tokens,
// and gradients are summed like those of replicas.
TEST(SequenceCut, EqualsOneProcessBitwiseAlongASeparateAxis) {
  for (const int ranks : {2, 3}) {
    const TensorConfig config{.size = ranks, .sequence = true};
    const auto along = [=](Layout& l) {
      l = parallel::make_layout({}, *l.mesh);
      l.outside.sequence = l.inside.sequence = {"sequence"};
      l.cut = [=](int64_t tokens, const nn::ForwardContext&) { return zigzag(tokens, ranks); };
    };
    const std::vector<comm::Mesh::Axis> axes{comm::Mesh::sequence("sequence", ranks)};
    EXPECT_NO_THROW(check(config, kShape, false, along, {}, axes));
    EXPECT_THROW(check(config, kShape, true, along, {}, axes), ParityError);
    EXPECT_THROW(check(config, kShape, false, along, {}, {{"sequence", ranks}}), ParityError) << "deals out nothing";
  }
}

TEST(SequenceCut, KeepsTheDropoutMasksOfTheWholeBatch) {
  const at::Tensor whole = at::ones({2, kSequence, 8}, at::kDouble);
  nn::ForwardContext step{.training = true, .dropout_seed = 5, .first_row = 3};
  nn::Parameters none(tensor::MeshCoordinates{}, {});
  const at::Tensor want = nn::SerialLayers(none).dropout("site", 8, 0.5)->forward(whole, step);
  for (const int ranks : {2, 3})
    comm::run_ranks(ranks, [&](comm::World& world) {
      comm::Mesh mesh(world, {{"tensor", ranks}});
      Layout layout = parallel::make_layout({.size = ranks, .sequence = true}, mesh);
      layout.cut = [=](int64_t tokens, const nn::ForwardContext&) { return zigzag(tokens, ranks); };
      const nn::ForwardContext cut = layout.with_cut(step, kSequence);
      nn::Parameters parameters(mesh.coordinates(), {});
      const auto dropout = parallel::TensorLayers(parameters, layout).dropout("site", 8, 0.5);
      const auto part = [&](const at::Tensor& x) { return parallel::part_of(layout, layout.outside, x, cut); };
      expect_equal(dropout->forward(part(whole), cut), part(want), "masked ones");
    });
}

// 64 ranks: q = 8; [4, 4, 4]; l = 4. Every layer of a block, with one batch row per part.
TEST(SixtyFourRanks, EqualsOneProcessBitwiseInEveryLayer) {
  for (const TensorConfig& config :
       {TensorConfig{.size = 64, .mode = "2d"}, TensorConfig{.size = 64, .mode = "2.5d", .depth = 4},
        TensorConfig{.size = 64, .mode = "3d"}}) {
    const nn::AttentionShape shape{.hidden = 64, .heads = 8, .kv_heads = 4, .head_dim = 4};
    EXPECT_NO_THROW(check(config, shape)) << name_of(config);
    EXPECT_THROW(check(config, shape, true), ParityError) << name_of(config);
  }
}

/// Expects an error: a layout with a fault gives other numbers, or tensors that do not fit.
void expect_noticed(const TensorConfig& config, const Mutation& mutate) {
  EXPECT_ANY_THROW(check(config, kShape, false, mutate));
}

TEST(Mutations, NoticesSwappedRowsAndColumns) {
  for (const TensorConfig& config :
       {TensorConfig{.size = 4, .mode = "2d"}, TensorConfig{.size = 8, .mode = "2.5d", .depth = 2}})
    expect_noticed(config, [](Layout& l) { std::swap(l.expand.weight.out, l.expand.weight.in); });
  expect_noticed({.size = 8, .mode = "3d"}, [](Layout& l) { std::swap(l.inside.batch[1], l.inside.columns[0]); });
  expect_noticed({.size = 8, .mode = "3d"}, [](Layout& l) { std::swap(l.outside.batch[0], l.outside.batch[1]); });
}

// The most common bug with a split sequence: vectors that get gradients from only a part of the tokens on each rank.
TEST(Mutations, NoticesAMissingSumOfNormAndBiasGradients) {
  const TensorConfig config{.size = 2, .sequence = true};
  EXPECT_THROW(check(config, kShape, false, {}, [](nn::Parameter& p) { p.spec.gradient_axes.clear(); }), ParityError);
}

TEST(Mutations, NoticesAMissingSumOverDepth) {
  expect_noticed({.size = 8, .mode = "2.5d", .depth = 2}, [](Layout& l) { l.weight_copies.clear(); });
}

/// Divides dW by the number of ranks, like a mean over a group that should be a sum.
struct DividedGradient : nn::Product {
  DividedGradient(std::shared_ptr<const Product> inner, double ranks) : inner(std::move(inner)), ranks(ranks) {}
  at::Tensor forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t out,
                     Saved* saved) const override {
    return inner->forward(x, weight, bias, out, saved);
  }
  Gradients backward(const at::Tensor& dy, const Saved& saved, const Wanted& wanted) const override {
    Gradients d = inner->backward(dy, saved, {wanted.x, wanted.weight});
    if (d.weight.defined()) d.weight = wanted.with(d.weight / ranks);
    return d;
  }
  std::shared_ptr<const Product> inner;
  double ranks;
};

class ModeMutations : public testing::TestWithParam<TensorConfig> {};

TEST_P(ModeMutations, NoticesAGradientDividedByTheRanks) {
  const auto divide = [](Layout& l) { l.contract.product = std::make_shared<DividedGradient>(l.contract.product, 2); };
  EXPECT_THROW(check(GetParam(), kShape, false, divide), ParityError);
}

// Takes the products of one direction from a layout whose mesh has no collectives.
TEST_P(ModeMutations, NoticesAProductWithoutItsCollectives) {
  comm::run_ranks(1, [&](comm::World& alone) {
    comm::Mesh mesh(alone, {{"data", 1}});
    const TensorConfig config = GetParam();
    const Layout silent = parallel::make_layout(config, mesh);
    expect_noticed(config, [&](Layout& l) { l.contract.product = silent.contract.product; });
  });
}

INSTANTIATE_TEST_SUITE_P(Modes, ModeMutations,
                         testing::Values(TensorConfig{.size = 2}, TensorConfig{.size = 3, .sequence = true},
                                         TensorConfig{.size = 4, .mode = "2d"},
                                         TensorConfig{.size = 8, .mode = "2.5d", .depth = 2},
                                         TensorConfig{.size = 8, .mode = "3d"}),
                         [](const auto& info) { return name_of(info.param); });

// The compiler refuses an expand without its contract before a residual, under every layout.
template <class A, class B>
concept Addable = requires(A a, B b) { a + b; };
static_assert(Addable<at::Tensor, at::Tensor>);
static_assert(!Addable<at::Tensor, nn::Inside> && !Addable<nn::Inside, at::Tensor> &&
              !std::is_convertible_v<nn::Inside, at::Tensor>);

}  // namespace
}  // namespace colossal::test::layers_parity_test
