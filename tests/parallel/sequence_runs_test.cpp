// The tokens that each rank of parallel.sequence holds. All ranks have equally many tokens (within 1). For the
// attention of the model's own layers they also have equally many pairs of a query and a key (within 2 %). The
// documents are as long as in a real corpus.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <iterator>
#include <numeric>

#include "colossal/base/error.h"
#include "colossal/comm/simulated_world.h"
#include "colossal/nn/attention.h"
#include "colossal/nn/tokens.h"
#include "colossal/ops/attention/mask.h"
#include "colossal/parallel/sequence/exchange.h"
#include "colossal/parallel/sequence/runs.h"
#include "support/paths.h"
#include "support/thrown_message.h"

namespace colossal::test::sequence_runs_test {
namespace {

using parallel::AttentionLayers;
using parallel::kUneven;
using parallel::pairs_of;
using parallel::runs_of;
using parallel::size_of;

/// Returns the number of pairs of the busiest rank, divided by the mean over ranks.
double uneven(const std::vector<double>& pairs) {
  return *std::max_element(pairs.begin(), pairs.end()) * static_cast<double>(pairs.size()) /
         std::accumulate(pairs.begin(), pairs.end(), 0.0);
}

/// Returns a stream of document ids, split into rows: int64 [rows, tokens]. length() gives the length of the next
/// document, in tokens; the last one is truncated.
at::Tensor packed(int64_t rows, int64_t tokens, const std::function<int64_t()>& length) {
  const at::Tensor stream = at::zeros({rows * tokens}, at::kLong);
  for (int64_t first = 0, id = 0; first < rows * tokens; ++id) {
    const int64_t end = std::min(rows * tokens, first + length());
    stream.slice(0, first, end).fill_(id);
    first = end;
  }
  return stream.view({rows, tokens});
}

/// Returns rows of many short documents and few long ones: the logarithms of lengths are normally distributed, with
/// this standard deviation.
at::Tensor log_normal(int64_t rows, int64_t tokens, double median, double deviation) {
  auto generator = at::detail::createCPUGenerator(11);
  return packed(rows, tokens, [&] {
    const double draw = at::randn({}, generator, at::TensorOptions().dtype(at::kDouble)).item<double>();
    return std::max<int64_t>(1, std::llround(median * std::exp(deviation * draw)));
  });
}

/// Returns the document lengths of a real corpus, in tokens; dialogue_lengths.txt names its source.
std::vector<int64_t> dialogue_lengths() {
  std::ifstream file(source_dir() + "/tests/parallel/dialogue_lengths.txt");
  std::string comment;
  while (file.peek() == '#') std::getline(file, comment);
  return {std::istream_iterator<int64_t>(file), {}};
}

/// Returns the documents of that corpus in order, as rows of `tokens`. The rest that fills no row is left out.
at::Tensor dialogues(int64_t tokens) {
  const std::vector<int64_t> lengths = dialogue_lengths();
  const int64_t all = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  size_t next = 0;
  return packed(all / tokens, tokens, [&] { return lengths.at(next++); });
}

TEST(SequenceRuns, DifferByAtMostOneTokenInZigzag) {
  for (const int64_t ranks : {1, 2, 3, 5})
    for (const int64_t shares : {1, 2, 3})
      for (int64_t tokens = ranks * shares; tokens < 40; ++tokens) {
        const nn::SequenceCut cut = parallel::zigzag(tokens, ranks, shares);
        std::vector<int64_t> together, apart;
        for (int64_t rank = 0; rank < ranks; ++rank) together.push_back(size_of(runs_of(cut, rank, ranks)));
        for (int64_t rank = 0; rank < ranks * shares; ++rank)
          apart.push_back(size_of(runs_of(cut, rank, ranks * shares)));
        const auto [least, most] = std::minmax_element(together.begin(), together.end());
        EXPECT_LE(*most - *least, 1) << tokens << " tokens, " << ranks << " ranks of " << shares;
        EXPECT_GE(*std::min_element(apart.begin(), apart.end()), 1)
            << tokens << " tokens, " << ranks << " of " << shares;
        if (tokens % (2 * ranks * shares) == 0) EXPECT_THAT(apart, testing::Each(tokens / (ranks * shares)));
      }
}

// No rank has over 1.02 times the mean number of pairs, on every number of ranks; a zigzag of a single row gives one
// rank more. Each rank has as many tokens as under a zigzag, for any documents.
TEST(SequenceRuns, BalancesDocumentsByTheirPairs) {
  constexpr int64_t kTokens = 16384 + 5;
  for (const at::Tensor& rows : {log_normal(3, kTokens, 600, 1.2), dialogues(kTokens)})
    for (const int64_t count : {1, 3})
      for (const int64_t ranks : {2, 3, 4, 8}) {
        const at::Tensor documents = rows.narrow(0, 0, count);
        const nn::SequenceCut cut = parallel::balanced(documents, {{}}, ranks),
                              plain = parallel::zigzag(kTokens, ranks);
        EXPECT_LE(uneven(pairs_of(cut, documents, {{}})), kUneven) << count << " rows, " << ranks << " ranks";
        if (count == 1) EXPECT_GT(uneven(pairs_of(plain, documents, {{}})), kUneven) << ranks << " ranks";
        for (int64_t rank = 0; rank < ranks; ++rank)
          EXPECT_EQ(size_of(runs_of(cut, rank, ranks)), size_of(runs_of(plain, rank, ranks)));
      }
}

// Each row of the corpus is balanced alone. That is harder: a shorter row has fewer documents that can even out.
TEST(SequenceRuns, BalancesEveryRowOfACorpus) {
  const at::Tensor rows = dialogues(8192);
  ASSERT_GT(rows.size(0), 150);
  for (int64_t row = 0; row < rows.size(0); ++row)
    for (const int64_t ranks : {2, 4, 8}) {
      const at::Tensor documents = rows.narrow(0, row, 1);
      EXPECT_LE(uneven(pairs_of(parallel::balanced(documents, {{}}, ranks), documents, {{}})), kUneven)
          << "row " << row << ", " << ranks << " ranks";
    }
}

/// Kinds of attention, and a model of five layers with a window for each one without (Gemma 3).
const std::vector<AttentionLayers> kModels{
    {{.window = 64}},
    {{.causal = false}},
    {{.causal = false, .window = 48}},
    {{.window = 64}, {.window = 64}, {.window = 64}, {.window = 64}, {.window = 64}, {}}};

std::string name_of(const AttentionLayers& layers) {
  return concat(layers.size(), " layers, the first ", layers[0].causal ? "causal" : "full", " with window ",
                layers[0].window);
}

// A plan uses the pairs that the mask of attention allows, layer by layer.
TEST(SequenceRuns, CountsThePairsThatTheMaskAllows) {
  const at::Tensor documents = log_normal(2, 300, 70, 1), q = at::zeros({2, 1, 300, 1});
  for (const AttentionLayers& layers : kModels)
    for (const nn::SequenceCut& cut : {parallel::zigzag(300, 3), parallel::balanced(documents, layers, 3)}) {
      const std::vector<double> pairs = pairs_of(cut, documents, layers);
      for (int64_t rank = 0; rank < 3; ++rank) {
        int64_t want = 0;
        for (const nn::AttentionOptions& options : layers)
          for (const ops::PositionRun& run : runs_of(cut, rank, 3)) {
            ops::AttentionMask mask{.causal = options.causal, .documents = documents, .window = options.window};
            mask.queries = {run}, mask.query_documents = documents.narrow(1, run.first, run.size);
            want += ops::attention_scores(q.narrow(2, run.first, run.size), q, mask).isfinite().sum().item<int64_t>();
          }
        EXPECT_EQ(pairs[rank], static_cast<double>(want)) << name_of(layers) << ", rank " << rank;
      }
    }
}

// A plan made for causal attention without a window leaves these layers unbalanced on some row.
TEST(SequenceRuns, BalancesForTheAttentionOfTheModel) {
  const at::Tensor rows = dialogues(8192);
  for (const AttentionLayers& layers : kModels) {
    double others = 0;
    for (int64_t row = 0; row < rows.size(0); ++row)
      for (const int64_t ranks : {2, 4, 8}) {
        const at::Tensor documents = rows.narrow(0, row, 1);
        EXPECT_LE(uneven(pairs_of(parallel::balanced(documents, layers, ranks), documents, layers)), kUneven)
            << name_of(layers) << ", row " << row << ", " << ranks << " ranks";
        others = std::max(others, uneven(pairs_of(parallel::balanced(documents, {{}}, ranks), documents, layers)));
      }
    EXPECT_GT(others, kUneven) << name_of(layers);
  }
}

// A causal window makes a zigzag uneven, because the first tokens of a row see fewer keys than the window has.
TEST(SequenceRuns, BalancesOneDocumentUnderAWindow) {
  const at::Tensor one = at::zeros({1, 4096}, at::kLong);
  for (const bool causal : {true, false}) {
    const AttentionLayers layers{{.causal = causal, .window = 512}};
    for (const int64_t ranks : {4, 8}) {
      const auto cut = parallel::sequence_cut({.size = ranks, .mode = "ring"}, 4096, {}, layers);
      EXPECT_LE(uneven(pairs_of(cut, one, layers)), kUneven) << ranks << " ranks";
      if (causal) EXPECT_GT(uneven(pairs_of(parallel::zigzag(4096, ranks), one, layers)), kUneven) << ranks << " ranks";
    }
  }
  EXPECT_EQ(parallel::sequence_cut({.size = 4}, 4096, {}, {{.causal = false}}).held, parallel::zigzag(4096, 4).held);
}

/// Returns the number of pairs that rank r computes at step t of ring attention, as [r][t], for one row and causal
/// attention.
std::vector<std::vector<double>> pairs_of_steps(const nn::SequenceCut& cut, const at::Tensor& documents,
                                                int64_t ranks) {
  const int64_t tokens = documents.size(1);
  std::vector<int64_t> owner(tokens);
  for (int64_t rank = 0; rank < ranks; ++rank)
    for (const ops::PositionRun& run : runs_of(cut, rank, ranks))
      std::fill_n(owner.begin() + run.first, run.size, rank);
  std::vector<std::vector<double>> pairs(ranks, std::vector<double>(ranks));
  std::vector<double> keys(ranks);  // keys of the document so far, by the rank that has them
  const auto* ids = documents.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < tokens; ++i) {
    if (i > 0 && ids[i] != ids[i - 1]) std::fill(keys.begin(), keys.end(), 0);
    ++keys[owner[i]];
    for (int64_t t = 0; t < ranks; ++t) pairs[owner[i]][t] += keys[(owner[i] - t + ranks) % ranks];
  }
  return pairs;
}

/// Returns the end time of a ring, divided by the mean number of pairs of a rank, if only pairs took time, one unit
/// each. A rank starts step t after it has finished step t - 1 and both neighbours have started step t - 1: during that
/// step parts travel between neighbours.
double slowest_path(const std::vector<std::vector<double>>& pairs) {
  const size_t ranks = pairs.size();
  std::vector<double> begun(ranks), done(ranks);
  double sum = 0;
  for (size_t t = 0; t < ranks; ++t) {
    std::vector<double> begins(ranks);
    for (size_t r = 0; t > 0 && r < ranks; ++r)
      begins[r] = std::max({done[r], begun[(r + 1) % ranks], begun[(r + ranks - 1) % ranks]});
    for (size_t r = 0; r < ranks; ++r) done[r] = begins[r] + pairs[r][t], sum += pairs[r][t];
    begun = begins;
  }
  return *std::max_element(done.begin(), done.end()) * static_cast<double>(ranks) / sum;
}

// Pairs are balanced in total. They are not balanced step by step, but a rank waits only for its neighbours, and other
// steps compensate for a long one: see docs/explanation/sequence-parallel.md.
TEST(SequenceRuns, KeepsRingsNearlyBusy) {
  for (const auto& [ranks, most] : {std::pair{2, 1.02}, {4, 1.12}, {8, 1.2}}) {
    const at::Tensor rows = dialogues(16384);
    double dealt = 0, plain = 0;
    for (int64_t row = 0; row < rows.size(0); ++row) {
      const at::Tensor one = rows.narrow(0, row, 1);
      dealt += slowest_path(pairs_of_steps(parallel::balanced(one, {{}}, ranks), one, ranks));
      plain += slowest_path(pairs_of_steps(parallel::zigzag(16384, ranks), one, ranks));
    }
    const auto count = static_cast<double>(rows.size(0));
    EXPECT_LT(dealt / count, most) << ranks << " ranks";
    EXPECT_GT(plain / count, dealt / count + 0.1) << ranks << " ranks";
    RecordProperty(concat("dealt_", ranks), concat(dealt / count));
    RecordProperty(concat("zigzag_", ranks), concat(plain / count));
  }
}

// The layers report their attention options to a copy of the layout; with_cut() of the original plans for them.
TEST(SequenceRuns, PlansForTheLayersOfALayout) {
  const auto world = comm::make_simulated_world(1, 4);
  const parallel::SequenceConfig config{4, "gather"};
  comm::Mesh mesh(*world, parallel::sequence_axes(config));
  const at::Tensor documents = dialogues(8192).narrow(0, 0, 2);
  for (const AttentionLayers& layers : kModels) {
    const parallel::Layout layout = parallel::with_sequence(parallel::make_layout({}, mesh), config);
    const parallel::Layout copy = layout;  // TensorLayers keeps such a copy
    for (size_t i = 0; i < layers.size(); ++i) copy.attention(static_cast<int64_t>(i), {8, 2, 2, 4}, layers[i]);
    const auto cut = layout.with_cut({.documents = documents}, 8192).cut;
    EXPECT_EQ(cut->held, parallel::balanced(documents, layers, 4).held) << name_of(layers);
    EXPECT_NE(cut->held, parallel::balanced(documents, {{}}, 4).held) << name_of(layers);
  }
}

// `shares` neighbours hold the tokens of one rank: their pairs are balanced as a sum, their tokens one by one.
TEST(SequenceRuns, BalancesNeighboursThatShareTogether) {
  const at::Tensor documents = log_normal(1, 6007, 300, 1);
  for (const int64_t shares : {2, 3}) {
    const nn::SequenceCut cut = parallel::balanced(documents, {{}}, 2, shares),
                          plain = parallel::zigzag(6007, 2, shares);
    std::vector<double> pairs = pairs_of(cut, documents, {{}}), together(2);
    for (size_t i = 0; i < pairs.size(); ++i) together[i / shares] += pairs[i];
    EXPECT_LE(std::max(together[0], together[1]) * 2 / (together[0] + together[1]), kUneven);
    for (int64_t rank = 0; rank < 2 * shares; ++rank)
      EXPECT_EQ(size_of(runs_of(cut, rank, 2 * shares)), size_of(runs_of(plain, rank, 2 * shares)));
  }
}

TEST(SequenceRuns, AssignsRunsOfBothEndsInZigzag) {
  const nn::SequenceCut cut = parallel::zigzag(12, 3);
  EXPECT_THAT(cut.lengths, testing::Each(2));
  EXPECT_THAT(cut.held,
              testing::ElementsAre(testing::ElementsAre(0, 5), testing::ElementsAre(1, 4), testing::ElementsAre(2, 3)));
  EXPECT_EQ(runs_of(cut, 2, 3).size(), 1u) << "runs that touch are one";
  EXPECT_EQ(parallel::balanced(at::zeros({2, 12}, at::kLong), {{}}, 3).held, cut.held) << "one document a row";
  EXPECT_THAT(thrown_message([] { parallel::zigzag(3, 4); }),
              testing::HasSubstr("each of the 4 ranks that split a row must have a token of it: got 3"));
}

}  // namespace
}  // namespace colossal::test::sequence_runs_test
