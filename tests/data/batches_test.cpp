#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/data/texts/samples.h"
#include "support/thrown_message.h"

namespace colossal::data::batches_test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

struct TextOptions {
  int64_t sequence = 0, batch_size = 0;
  int rank = 0, ranks = 1;
  uint64_t seed = 0;
  bool shuffle = true;
  Documents documents = Documents::Separate;
  int64_t micro_batches = 1;
};

struct TextBatches : Batches {
  TextBatches(Corpus corpus, const TextOptions& o)
      : Batches(std::make_shared<TextSamples>(std::move(corpus), o.sequence, o.documents),
                {.batch_size = o.batch_size,
                 .rank = o.rank,
                 .ranks = o.ranks,
                 .micro_batches = o.micro_batches,
                 .seed = o.seed,
                 .shuffle = o.shuffle}) {}
};

/// Returns a corpus of the tokens 0, 1, 2, ..., so a token is equal to its position.
Corpus counting(int64_t size) {
  std::vector<uint32_t> tokens(size);
  std::iota(tokens.begin(), tokens.end(), 0);
  return Corpus::of(std::move(tokens), -1, size);
}

std::vector<int64_t> values(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.contiguous().view({-1});
  return {flat.const_data_ptr<int64_t>(), flat.const_data_ptr<int64_t>() + flat.numel()};
}

/// Returns the tokens of `count` global batches, which are the rows of all ranks in rank order.
std::vector<std::vector<int64_t>> global_batches(int64_t size, TextOptions options, int ranks, int count) {
  std::vector<std::vector<int64_t>> batches(count);
  for (int rank = 0; rank < ranks; ++rank) {
    options.rank = rank;
    options.ranks = ranks;
    TextBatches mine(counting(size), options);
    for (auto& batch : batches) {
      const std::vector<int64_t> rows = values(mine.next().at("ids"));
      batch.insert(batch.end(), rows.begin(), rows.end());
    }
  }
  return batches;
}

TEST(Batches, EqualsOneRankOnSeveralRanks) {
  const TextOptions options{.sequence = 3, .batch_size = 4, .seed = 9};
  const auto serial = global_batches(100, options, 1, 30);  // 33 samples, so 30 batches cross three ends of epochs
  EXPECT_EQ(global_batches(100, options, 2, 30), serial);
  EXPECT_EQ(global_batches(100, options, 4, 30), serial);
}

// 12 rows of 3 tokens, in micro-batches of 4 rows: replica 1 of 2 has the last two rows of each.
TEST(Batches, TakesAPartOfEachMicroBatchAlsoAfterAResume) {
  TextOptions options{.sequence = 3, .batch_size = 12, .seed = 9, .micro_batches = 3};
  TextBatches serial(counting(100), options);
  options.rank = 1, options.ranks = 2;
  TextBatches half(counting(100), options), resumed(counting(100), options);
  for (int step = 0; step < 6; ++step) {  // 33 samples: the third batch crosses the end of the epoch
    const nlohmann::json state = nlohmann::json::parse(half.state().dump());
    const at::Tensor whole = serial.next().at("ids"), own = half.next().at("ids");
    EXPECT_TRUE(own.equal(at::cat({whole.slice(0, 2, 4), whole.slice(0, 6, 8), whole.slice(0, 10, 12)}))) << step;
    EXPECT_EQ(half.state(), serial.state()) << "the position does not depend on ranks or micro-batches";
    resumed.restore(state);
    EXPECT_TRUE(resumed.next().at("ids").equal(own)) << step;
  }
}

TEST(Batches, VisitsEachSampleOncePerEpochAndRollsOver) {
  const TextOptions options{.sequence = 1, .batch_size = 4, .seed = 1};
  std::vector<int64_t> stream;
  for (const auto& batch : global_batches(11, options, 2, 15)) stream.insert(stream.end(), batch.begin(), batch.end());
  ASSERT_EQ(stream.size(), 60u);  // 6 epochs of 10 samples; only every second one ends with a batch
  std::set<std::vector<int64_t>> orders;
  for (int epoch = 0; epoch < 6; ++epoch) {
    const std::vector<int64_t> order(stream.begin() + epoch * 10, stream.begin() + epoch * 10 + 10);
    EXPECT_EQ(std::set<int64_t>(order.begin(), order.end()).size(), 10u);
    orders.insert(order);
  }
  EXPECT_GT(orders.size(), 4u) << "epochs are shuffled anew";
}

TEST(Batches, ResumesInTheMiddleOfAnEpoch) {
  const TextOptions options{.sequence = 2, .batch_size = 6, .rank = 1, .ranks = 2, .seed = 4};
  for (int before : {0, 1, 4, 9}) {
    TextBatches through(counting(50), options);
    for (int i = 0; i < before; ++i) through.next();
    const nlohmann::json state = nlohmann::json::parse(through.state().dump());
    TextOptions other = options;
    TextBatches resumed(counting(50), other);
    resumed.next();
    resumed.restore(state);
    EXPECT_EQ(resumed.state(), state);
    for (int i = 0; i < 10; ++i)
      EXPECT_TRUE(resumed.next().at("ids").equal(through.next().at("ids"))) << before << " + " << i;
  }
}

TEST(Batches, LoadsItsStateUnderAnotherNumberOfRanks) {
  TextBatches one(counting(50), {.sequence = 2, .batch_size = 4, .rank = 0, .ranks = 1, .seed = 4});
  TextBatches two(counting(50), {.sequence = 2, .batch_size = 4, .rank = 1, .ranks = 2, .seed = 4});
  one.next();
  two.next();
  EXPECT_EQ(one.state(), two.state());
  two.next();
  two.restore(one.state());
  EXPECT_TRUE(two.next().at("ids").equal(one.next().at("ids").narrow(0, 2, 2)));
}

TEST(Batches, RunsEvaluationInOrderAndRewinds) {
  TextBatches batches(counting(9), {.sequence = 2, .batch_size = 2, .shuffle = false});
  EXPECT_THAT(values(batches.next().at("ids")), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(values(batches.next().at("ids")), ElementsAre(4, 5, 6, 7));
  batches.rewind();
  const tensor::Batch first = batches.next();
  EXPECT_THAT(values(first.at("ids")), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(values(first.at("labels")), ElementsAre(1, 2, 3, 4));
}

TEST(Batches, IgnoresRowsOfTheNextEpochIfSamplesCountOnce) {
  const auto samples = std::make_shared<TextSamples>(counting(7), 2, Documents::Joined);  // 3 samples
  for (int rank = 0; rank < 2; ++rank) {
    Batches batches(samples, {.batch_size = 4, .rank = rank, .ranks = 2, .shuffle = false, .counts_once = true});
    const tensor::Batch first = batches.next();
    if (rank == 0)
      EXPECT_THAT(values(first.at("labels")), ElementsAre(1, 2, 3, 4));
    else
      EXPECT_THAT(values(first.at("labels")), ElementsAre(5, 6, kIgnored, kIgnored));
    EXPECT_THAT(values(batches.next().at("labels")), testing::Each(kIgnored));
    batches.rewind();
    EXPECT_TRUE(batches.next().at("labels").equal(first.at("labels")));
  }
}

constexpr int64_t kEnd = 9;
Corpus three_documents() { return Corpus::of({1, 2, kEnd, 3, kEnd, 4, 5, 6, 7}, kEnd, 10); }

TEST(Batches, SeparatesDocuments) {
  TextBatches batches(three_documents(), {.sequence = 8, .batch_size = 1});
  const tensor::Batch batch = batches.next();
  EXPECT_EQ(batch.at("ids").sizes(), (std::vector<int64_t>{1, 8}));
  EXPECT_THAT(values(batch.at("ids")), ElementsAre(1, 2, kEnd, 3, kEnd, 4, 5, 6));
  EXPECT_THAT(values(batch.at("labels")), ElementsAre(2, kEnd, kIgnored, kEnd, kIgnored, 5, 6, 7));
  EXPECT_THAT(values(batch.at("positions")), ElementsAre(0, 1, 2, 0, 1, 0, 1, 2));
  EXPECT_THAT(values(batch.at("documents")), ElementsAre(0, 0, 0, 1, 1, 2, 2, 2));
}

TEST(Batches, JoinsDocumentsInOneStream) {
  TextBatches batches(three_documents(), {.sequence = 8, .batch_size = 1, .documents = Documents::Joined});
  const tensor::Batch batch = batches.next();
  EXPECT_THAT(values(batch.at("labels")), ElementsAre(2, kEnd, 3, kEnd, 4, 5, 6, 7));
  EXPECT_THAT(values(batch.at("positions")), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_FALSE(batch.find("documents").defined()) << "a token sees all others of its row";
}

TEST(Batches, MakesBatchesThatDoNotShareMemory) {
  TextBatches batches(counting(5), {.sequence = 2, .batch_size = 2, .shuffle = false});
  const tensor::Batch first = batches.next();
  batches.next().at("ids").fill_(-1);
  EXPECT_THAT(values(first.at("ids")), ElementsAre(0, 1, 2, 3));
}

std::string refusal(int64_t size, TextOptions options) {
  return test::thrown_message([&] { TextBatches batches(counting(size), options); });
}

TEST(Batches, RefusesDataShorterThanASequence) {
  EXPECT_THAT(refusal(8, {.sequence = 8, .batch_size = 1}),
              HasSubstr("it has 8 tokens, a sequence of 8 and its last label need 9"));
  EXPECT_EQ(refusal(9, {.sequence = 8, .batch_size = 1}), "");
}

TEST(Batches, RefusesSizesThatDoNotDivide) {
  EXPECT_THAT(refusal(9, {.sequence = 2, .batch_size = 3, .ranks = 2}),
              HasSubstr("batch_size must be divisible by the replicas times the micro-batches: got 3 rows, 2 replicas, "
                        "1 micro-batches"));
  EXPECT_THAT(refusal(9, {.sequence = 2, .batch_size = 0}), HasSubstr("batch_size"));
  EXPECT_THAT(refusal(9, {.sequence = 0, .batch_size = 1}), HasSubstr("sequence"));
  EXPECT_THAT(refusal(9, {.sequence = 2, .batch_size = 2, .rank = 2, .ranks = 2}),
              HasSubstr("the replica must be in [0, 2): got 2"));
}

TEST(Batches, RefusesAStateOfOtherData) {
  TextBatches batches(counting(50), {.sequence = 2, .batch_size = 4, .seed = 4});
  batches.next();
  const auto refused = [&](const std::function<void(nlohmann::json&)>& edit) -> std::string {
    nlohmann::json state = batches.state();
    edit(state);
    return test::thrown_message([&] { batches.restore(state); });
  };
  EXPECT_EQ(refused([](auto&) {}), "");
  EXPECT_THAT(refused([](auto& s) { s["files"]["memory"] = "3 bytes"; }),
              AllOf(HasSubstr("the data or its keys changed: memory was 3 bytes, now it is 200 bytes with checksum "),
                    HasSubstr("--overwrite")));
  EXPECT_THAT(refused([](auto& s) { s["files"]["a.txt"] = "3 bytes"; }),
              HasSubstr("its keys changed: a.txt is gone; restore"));
  EXPECT_THAT(refused([](auto& s) { s["files"] = {{"\x1b", 1}, {"b", 1}, {"c", 1}, {"d", 1}}; }),
              HasSubstr("its keys changed: ? is gone; b is gone; c is gone; and 2 more; restore"));
  EXPECT_THAT(refused([](auto& s) { s["sequence"] = 3; }), HasSubstr("its keys changed: sequence was 3, now it is 2"));
  EXPECT_THAT(refused([](auto& s) { s["vocabulary"] = 3; }), HasSubstr("vocabulary was 3"));
  EXPECT_THAT(refused([](auto& s) { s["seed"] = 5; }), HasSubstr("seed"));
  EXPECT_THAT(refused([](auto& s) { s.erase("vocabulary"); }),
              HasSubstr("the checkpoint has no vocabulary of its data: it was saved by an older version, "));
  EXPECT_THAT(refused([](auto& s) { s["position"] = 24; }), HasSubstr("damaged"));
  EXPECT_THAT(refused([](auto& s) { s["position"] = -1; }), HasSubstr("damaged"));
  EXPECT_THAT(refused([](auto& s) { s.erase("epoch"); }), HasSubstr("damaged"));
  EXPECT_THAT(refused([](auto& s) { s = 3; }), HasSubstr("damaged"));
}

// Tokens 3 to 7 of each row have ids outside the vocabulary, so reading them is an error.
TEST(Batches, ReadsOnlyWantedTokens) {
  constexpr int64_t kSequence = 12, kWords = 37;
  std::vector<uint32_t> tokens(3 * kSequence + 1);
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = i % kSequence >= 3 && i % kSequence < 8 ? kWords + 1 : static_cast<uint32_t>(i);
  const auto batches = [&](Documents documents) {
    return std::make_unique<TextBatches>(
        Corpus::of(tokens, -1, kWords),
        TextOptions{.sequence = kSequence, .batch_size = 3, .shuffle = false, .documents = documents});
  };
  const std::vector<tensor::TokenRun> wanted{{0, 2}, {9, 3}};
  const auto joined = batches(Documents::Joined);
  joined->want(wanted);
  for (int i = 0; i < 2; ++i) {
    const tensor::Batch batch = joined->next();
    const at::Tensor place = at::arange(3 * kSequence, at::kLong).view({3, kSequence});
    for (const tensor::TokenRun& run : wanted) {
      const auto own = [&](const at::Tensor& t) { return t.narrow(1, run.first, run.size); };
      EXPECT_TRUE(at::equal(own(batch.at("ids")), own(place)));
      EXPECT_TRUE(at::equal(own(batch.at("labels")), own(place + 1)));
    }
    EXPECT_TRUE(at::equal(batch.at("positions"), place.remainder(kSequence))) << "of whole rows";
    EXPECT_EQ(batch.at("labels").eq(kIgnored).sum().item<int64_t>(), 0) << "as many labels count as in whole rows";
  }
  const auto separate = batches(Documents::Separate);
  separate->want(wanted);
  EXPECT_THROW(separate->next(), Error) << "borders may be anywhere";
}

TEST(Batches, RethrowsAnErrorOfTheReaderInNext) {
  TextBatches batches(Corpus::of({0, 1, 2, 3, 99, 5, 6}, -1, 10), {.sequence = 2, .batch_size = 1, .shuffle = false});
  EXPECT_THAT(values(batches.next().at("ids")), ElementsAre(0, 1));
  for (int attempt = 0; attempt < 2; ++attempt) {
    try {
      batches.next();
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("has id 99, but the vocabulary has 10"));
    }
  }
}

}  // namespace
}  // namespace colossal::data::batches_test
