// Log-probabilities and entropies of tokens in every mode agree with the loss and with one process, also in their
// gradients, use one slice of logits at a time, and leave out rows without a label.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>

#include "colossal/base/seed.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/memory/chunk_store.h"
#include "colossal/nn/embedding.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/loss_head.h"
#include "colossal/nn/serial_layers.h"
#include "colossal/ops/cross_entropy.h"
#include "colossal/ops/token_scores.h"
#include "colossal/parallel/data/gradient_reducer.h"
#include "colossal/parallel/sequence/exchange.h"
#include "colossal/parallel/tensor/activations.h"
#include "colossal/parallel/tensor/tensor_layers.h"
#include "support/parity.h"
#include "support/tolerance.h"

namespace colossal::test::log_probabilities_test {
namespace {

using parallel::Layout;
using parallel::TensorConfig;

constexpr int64_t kHidden = 36, kVocabulary = 11;
constexpr double kCap = 1.5, kBound = 1e-12;  // bound of fp64 errors, relative to the largest value

at::Tensor values(std::vector<int64_t> sizes, const std::string& name) {
  auto generator = at::detail::createCPUGenerator(derive_seed(9, name));
  return at::randn(sizes, generator, at::TensorOptions().dtype(at::kDouble));
}

/// Compares `got` with `want`, which is `whole` or a rank's part of it.
void expect_same(const at::Tensor& got, const at::Tensor& want, const std::string& what, const at::Tensor& whole) {
  expect_within(got, want, kBound * whole.abs().max().item<double>(), what);
}

void expect_same(const at::Tensor& got, const at::Tensor& want, const std::string& what) {
  expect_same(got, want, what, want);
}

/// Returns labels of which every fifth one is ignored.
at::Tensor labels_of(int64_t batch, int64_t sequence) {
  const at::Tensor all = at::arange(batch * sequence, at::kLong).view({batch, sequence});
  return all.remainder(kVocabulary).masked_fill(all.remainder(5).eq(2), ops::kIgnoredLabel);
}

/// A scalar loss of the tensor that the head reads.
using LossOf = std::function<at::Tensor(nn::LossHead&, const at::Tensor& hidden, const at::Tensor& labels,
                                        const nn::ForwardContext&)>;

at::Tensor fused(nn::LossHead& head, const at::Tensor& hidden, const at::Tensor& labels,
                 const nn::ForwardContext& step) {
  return head.loss_sum(hidden, labels, step);
}

at::Tensor plain(nn::LossHead& head, const at::Tensor& hidden, const at::Tensor& labels,
                 const nn::ForwardContext& step) {
  return -head.log_probabilities(hidden, labels, step).sum();
}

/// Returns a value that is no sum over tokens: each row's tokens change the weight of the others.
at::Tensor of_rows(const at::Tensor& log_probabilities) {
  const at::Tensor weights = values(log_probabilities.sizes().vec(), "weights");
  return (log_probabilities * weights).sum(1).square().sum();
}

/// The options of the scores in `weighted`.
constexpr ops::ScoreOptions kOptions{.temperature = 0.7, .entropy = true};

at::Tensor weighted(nn::LossHead& head, const at::Tensor& hidden, const at::Tensor& labels,
                    const nn::ForwardContext& step) {
  const ops::TokenScores scores = head.scores(hidden, labels, step, kOptions);
  return of_rows(scores.log_probabilities) + of_rows(scores.entropies * 2);
}

/// Returns the same value on one process, computed by LibTorch's operators from whole logits.
at::Tensor weighted_by_formula(nn::LossHead& head, const at::Tensor& hidden, const at::Tensor& labels,
                               const nn::ForwardContext& step) {
  const ops::TokenScores scores = ops::token_scores(head.logits(hidden, step), labels, kOptions);
  return of_rows(scores.log_probabilities) + of_rows(scores.entropies * 2);
}

/// Returns an entropy alone, whose log-probability receives no gradient.
at::Tensor entropy(nn::LossHead& head, const at::Tensor& hidden, const at::Tensor& labels,
                   const nn::ForwardContext& step) {
  return of_rows(head.scores(hidden, labels, step, {.entropy = true}).entropies);
}

at::Tensor entropy_by_formula(nn::LossHead& head, const at::Tensor& hidden, const at::Tensor& labels,
                              const nn::ForwardContext& step) {
  return of_rows(ops::token_scores(head.logits(hidden, step), labels, {.entropy = true}).entropies);
}

struct Results {
  at::Tensor loss, hidden_gradient;  // this rank's part of the gradient
  std::map<std::string, at::Tensor> gradients;
};

/// The head after the embedding: a tied one, which shares its weight, or a classifier of each row's first token.
enum class Head { Tied, Classifier };

/// `unknown`: if defined, not 0 at the elements of this rank's hidden state that become NaN.
Results run_head(nn::Layers& make, comm::Mesh& mesh, Head kind, const at::Tensor& labels,
                 const nn::ForwardContext& step, const LossOf& loss, const at::Tensor& unknown = {}) {
  nn::Parameters& parameters = make.parameters();
  const auto embedding = make.embedding("embedding", kVocabulary, kHidden, 1);
  const bool classifies = kind == Head::Classifier;
  const auto head = classifies ? make.classifier("head", kHidden, kVocabulary, 1)
                               : make.lm_head("head", kHidden, kVocabulary,
                                              {.tied = embedding.get(), .bias = true, .soft_cap = kCap});
  {
    const at::NoGradGuard no_grad;
    for (nn::Parameter& p : parameters)
      p.value.copy_(local_part(values(p.spec.shape, p.name), p.spec, mesh.coordinates()));
  }
  memory::ChunkStore store(parameters, mesh, {.capacity = 1 << 17});
  parallel::GradientReducer reducer(store, {.sums = at::kDouble});
  const at::Tensor ids = labels.masked_fill(labels.lt(0), 3).add(1).remainder(kVocabulary);
  at::Tensor hidden = embedding->forward(ids, step) / 6;
  if (unknown.defined()) hidden = hidden.masked_fill(unknown.ne(0), std::numeric_limits<double>::quiet_NaN());
  hidden.retain_grad();
  reducer.begin(true);
  Results r;
  r.loss = classifies ? loss(*head, hidden.narrow(1, 0, 1), labels.narrow(1, 0, 1), step)
                      : loss(*head, hidden, labels, step);
  r.loss.backward();
  reducer.finish();
  r.loss = r.loss.detach();
  r.hidden_gradient = hidden.grad();
  for (const nn::Parameter& p : parameters) r.gradients[p.name] = p.value.grad().clone();
  return r;
}

Results of_one_process(const at::Tensor& labels, const LossOf& loss, Head kind = Head::Tied) {
  Results want;
  comm::run_ranks(1, [&](comm::World& world) {
    comm::Mesh mesh(world, {{"data", 1}});
    nn::Parameters parameters(mesh.coordinates(), {.dtype = at::kDouble});
    nn::SerialLayers make(parameters);
    want = run_head(make, mesh, kind, labels, {}, loss);
  });
  return want;
}

struct Case {
  TensorConfig tensor{};
  parallel::SequenceConfig sequence{};
  int64_t tokens = 6;
  Head head = Head::Tied;
  bool poisons = false;  ///< whether hidden states of rows without a label are NaN
  at::Tensor labels{};   ///< undefined: labels_of()
};

void check(const Case& c, const LossOf& reference, const LossOf& loss, bool collectives_off = false) {
  const at::Tensor labels = c.labels.defined() ? c.labels : labels_of(parallel::batch_parts(c.tensor) * 2, c.tokens);
  const Results want = of_one_process(labels, reference, c.head);
  std::vector<comm::Mesh::Axis> axes = parallel::sequence_axes(c.sequence);
  for (const comm::Mesh::Axis& axis : parallel::tensor_axes(c.tensor)) axes.push_back(axis);
  comm::run_ranks(
      static_cast<int>(c.tensor.size * c.sequence.size),
      [&](comm::World& world) {
        comm::Mesh mesh(world, axes);
        nn::Parameters parameters(mesh.coordinates(), {.dtype = at::kDouble});
        const Layout layout = parallel::with_sequence(parallel::make_layout(c.tensor, mesh), c.sequence);
        parallel::TensorLayers make(parameters, layout);
        const nn::ForwardContext step = layout.with_cut({}, c.tokens);
        at::Tensor unknown;
        if (c.poisons)
          unknown = parallel::part_of(layout, layout.outside,
                                      labels.lt(0).to(at::kDouble).unsqueeze(-1).expand({-1, -1, kHidden}).contiguous(),
                                      step);
        const Results got = run_head(make, mesh, c.head, labels, step, loss, unknown);
        expect_same(got.loss, want.loss, "loss");
        expect_same(got.hidden_gradient, parallel::part_of(layout, layout.outside, want.hidden_gradient, step),
                    "gradient of the hidden state", want.hidden_gradient);
        for (const nn::Parameter& p : parameters)
          expect_same(got.gradients.at(p.name), local_part(want.gradients.at(p.name), p.spec, mesh.coordinates()),
                      "gradient of " + p.name, want.gradients.at(p.name));
      },
      {.collectives_off = collectives_off});
}

void check(const Case& c) {
  EXPECT_NO_THROW(check(c, fused, plain));
  EXPECT_NO_THROW(check(c, weighted_by_formula, weighted));
  EXPECT_NO_THROW(check(c, entropy_by_formula, entropy));
  EXPECT_THROW(check(c, fused, plain, true), ParityError);
}

class LogProbabilityModes : public testing::TestWithParam<TensorConfig> {};

TEST_P(LogProbabilityModes, AddsUpToTheLossWithItsGradients) { check(Case{.tensor = GetParam()}); }
TEST_P(LogProbabilityModes, AddsUpToTheLossForClasses) { check(Case{.tensor = GetParam(), .head = Head::Classifier}); }

INSTANTIATE_TEST_SUITE_P(Modes, LogProbabilityModes, testing::ValuesIn(tensor_modes()),
                         [](const auto& info) { return name_of(info.param); });

/// Labels of long prompts: the first half of the rows has none, so some ranks of a grid have none; the others have them
/// after two thirds of the tokens; or none at all.
at::Tensor labels_of_answers(int64_t batch, int64_t tokens, bool any) {
  const at::Tensor labels = labels_of(batch, tokens);
  labels.narrow(1, 0, any ? tokens * 2 / 3 : tokens).fill_(ops::kIgnoredLabel);
  labels.narrow(0, 0, batch / 2).fill_(ops::kIgnoredLabel);
  return labels;
}

void check_left_out(Case c) {
  const int64_t batch = parallel::batch_parts(c.tensor) * 2;
  c.poisons = c.tensor.mode != "3d";  // which multiplies all rows
  for (const at::Tensor& labels : {labels_of(batch, c.tokens), labels_of_answers(batch, c.tokens, true),
                                   labels_of_answers(batch, c.tokens, false)}) {
    c.labels = labels;
    EXPECT_NO_THROW(check(c, weighted_by_formula, weighted));
  }
}

TEST_P(LogProbabilityModes, LeavesOutRowsWithoutALabel) { check_left_out({.tensor = GetParam()}); }

TEST(LogProbabilities, LeavesOutRowsOfSplitSequences) {
  for (const parallel::SequenceConfig& sequence : sequence_modes()) check_left_out({.sequence = sequence});
}

// 7 tokens, so that ranks have unequal numbers.
TEST(LogProbabilities, EqualsOneProcessForSplitSequences) {
  for (const parallel::SequenceConfig& sequence : sequence_modes())
    for (const int64_t tokens : {8, 7}) {
      SCOPED_TRACE(concat(sequence.mode, ", tokens ", tokens));
      check({.sequence = sequence, .tokens = tokens});
    }
}

TEST(LogProbabilities, EqualsTheFormulaOnOneProcess) {
  const at::Tensor labels = labels_of(2, 6);
  const Results want = of_one_process(labels, fused), got = of_one_process(labels, plain),
                formula = of_one_process(labels, weighted_by_formula), rows = of_one_process(labels, weighted);
  expect_same(got.loss, want.loss, "loss");
  expect_same(rows.loss, formula.loss, "loss of rows");
  expect_same(rows.hidden_gradient, formula.hidden_gradient, "gradient of the hidden state");
  for (const auto& [name, gradient] : want.gradients) {
    expect_same(got.gradients.at(name), gradient, name);
    expect_same(rows.gradients.at(name), formula.gradients.at(name), name);
  }
}

TEST(LogProbabilities, ReturnsZeroForAnIgnoredLabel) {
  nn::Parameters parameters(tensor::MeshCoordinates{}, {.dtype = at::kBFloat16});
  nn::SerialLayers make(parameters);
  const auto head = make.lm_head("head", kHidden, kVocabulary, {});
  const auto classifier = make.classifier("head.classes", kHidden, kVocabulary, 0.02);
  const at::Tensor labels = labels_of(3, 1), hidden = values({3, 1, kHidden}, "x").to(at::kBFloat16);
  for (nn::LossHead* of : {head.get(), classifier.get()}) {
    const at::Tensor found = of->log_probabilities(hidden, labels, {});
    ASSERT_EQ(found.scalar_type(), at::kFloat);
    ASSERT_EQ(found.sizes(), labels.sizes());
    EXPECT_TRUE(at::equal(found.ge(0), labels.eq(ops::kIgnoredLabel))) << found;
    EXPECT_EQ(found[2].item<float>(), 0);
  }
}

/// Records the number of elements of the largest tensor that an operator of this thread returns during its lifetime.
class LargestResult {
 public:
  LargestResult() {
    largest = 0;
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(start, end).needsOutputs(true));
  }
  ~LargestResult() { at::removeCallback(handle_); }
  LargestResult(const LargestResult&) = delete;
  LargestResult& operator=(const LargestResult&) = delete;
  int64_t operator()() const { return largest; }

 private:
  static std::unique_ptr<at::ObserverContext> start(const at::RecordFunction&) { return nullptr; }
  static void end(const at::RecordFunction& f, at::ObserverContext*) {
    for (const c10::IValue& output : f.outputs())
      if (output.isTensor() && output.toTensor().defined()) largest = std::max(largest, output.toTensor().numel());
  }
  static thread_local int64_t largest;

  at::CallbackHandle handle_;
};
thread_local int64_t LargestResult::largest = 0;

/// Number of logits of two rows of tokens for a rank's words, and sizes of the largest tensors recorded.
struct Large {
  static constexpr int64_t kTokens = 160, kWords = int64_t{1} << 17, kWidth = 4;
  int64_t logits = 0, in_log_probabilities = 0, in_whole_logits = 0;
};

// Each rank of "data" has its own two rows; the gradients of all slices must be sent as one.
Large largest_of(const TensorConfig& config, int64_t data) {
  Large found;
  comm::run_ranks(static_cast<int>(config.size * data), [&](comm::World& world) {
    std::vector<comm::Mesh::Axis> axes{comm::Mesh::batch("data", static_cast<int>(data))};
    for (const comm::Mesh::Axis& axis : parallel::tensor_axes(config)) axes.push_back(axis);
    comm::Mesh mesh(world, axes);
    nn::Parameters parameters(mesh.coordinates(), {});
    const Layout layout = parallel::make_layout(config, mesh);
    parallel::TensorLayers make(parameters, layout);
    const auto head = make.lm_head("head", Large::kWidth, Large::kWords, {.deviation = 1});
    memory::ChunkStore store(parameters, mesh, {.capacity = 1 << 20});
    parallel::GradientReducer reducer(store, {.sums = at::kFloat});
    const auto longs = at::TensorOptions().dtype(at::kLong);
    const at::Tensor labels =
        at::arange(2 * Large::kTokens, longs).view({2, Large::kTokens}) * 255 + mesh.index("data");
    const at::Tensor whole = values({2, Large::kTokens, Large::kWidth}, concat("x", mesh.index("data"))).to(at::kFloat);
    const at::Tensor x = parallel::part_of(layout, layout.outside, whole).contiguous();
    Large own{.logits = 2 * Large::kTokens * Large::kWords / mesh.coordinates().size(layout.inside.columns)};
    const auto run = [&](const LossOf& loss) {
      const at::Tensor leaf = x.detach().requires_grad_();
      reducer.zero();
      reducer.begin(true);
      const at::Tensor sum = loss(*head, leaf, labels, {});
      sum.backward();
      reducer.finish();
      return std::vector<at::Tensor>{sum.detach(), leaf.grad(), (*parameters.begin()).value.grad().clone()};
    };
    const std::vector<at::Tensor> want = run(fused);
    {
      const LargestResult largest;
      const std::vector<at::Tensor> got = run(plain);
      own.in_log_probabilities = largest();
      for (size_t i = 0; i < want.size(); ++i)
        // MKL adds all words in one chain on some processors. Its error is up to four times that of a sum by parts.
        expect_close(got[i], want[i], 16 * (Large::kWidth + Large::kWords + 2 * Large::kTokens), concat("result ", i));
    }
    {
      const at::NoGradGuard no_grad;
      const LargestResult largest;
      head->logits(x, {});
      own.in_whole_logits = largest();
    }
    if (world.rank() == 0) found = own;
  });
  return found;
}

TEST(LogProbabilities, NeverMakesAllLogitsAtOnce) {
  for (const auto& [config, data] : std::vector<std::pair<TensorConfig, int64_t>>{
           {{}, 1}, {{}, 2}, {{.size = 2}, 1}, {{.size = 2, .sequence = true}, 1}}) {
    SCOPED_TRACE(concat(name_of(config), ", data ", data));
    const Large found = largest_of(config, data);
    EXPECT_LT(found.in_log_probabilities, found.logits);
    EXPECT_GT(found.in_log_probabilities, Large::kWords * Large::kWidth) << "no logits were seen";
    EXPECT_GE(found.in_whole_logits, found.logits) << "whole logits were not seen";
  }
}

}  // namespace
}  // namespace colossal::test::log_probabilities_test
