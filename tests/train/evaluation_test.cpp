// The hits that an evaluation counts, and the size of the logits that it computes for that.
#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string_view>

#include "colossal/comm/run_ranks.h"
#include "colossal/data/batch_fields.h"
#include "colossal/train/engine.h"
#include "support/course.h"
#include "support/parity.h"

namespace colossal::train::evaluation_test {
namespace {

constexpr int64_t kRows = 16, kSequence = 8, kVocabulary = int64_t{1} << 18;  // 2^25 logits

struct Seen {
  int64_t largest = 0;            ///< largest number of logits in one tensor
  std::vector<at::Tensor> found;  ///< predictions, for one slice of the tokens at a time
};
thread_local Seen* seen = nullptr;

/// Records the tensors of which this thread computes the argmax, during its lifetime.
class Answers {
 public:
  explicit Answers(Seen& to) {
    seen = &to;
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(start, end).needsInputs(true).needsOutputs(true));
  }
  ~Answers() { at::removeCallback(handle_); }

 private:
  static bool is_watched(const at::RecordFunction& f) { return std::string_view(f.name()) == "aten::argmax"; }
  static std::unique_ptr<at::ObserverContext> start(const at::RecordFunction& f) {
    if (is_watched(f)) seen->largest = std::max(seen->largest, f.inputs()[0].toTensor().numel());
    return nullptr;
  }
  static void end(const at::RecordFunction& f, at::ObserverContext*) {
    if (is_watched(f)) seen->found.push_back(f.outputs()[0].toTensor().clone());
  }

  at::CallbackHandle handle_;
};

struct Outcome {
  Seen seen;
  double accuracy = 0;
};

Outcome evaluated(int tensor, const at::Tensor& labels) {
  Outcome outcome;
  comm::run_ranks(tensor, [&](comm::World& world) {
    run::Config config;
    config.parallel.tensor.size = tensor;
    config.parallel.tensor.sequence = tensor > 1;
    models::ModelShape shape = test::tiny_bert();
    shape.vocabulary = kVocabulary;
    const auto engine = initialize(world, config, shape);
    const tensor::Batch batch =
        data::text_batch(at::arange(kRows * kSequence, at::kLong).view({kRows, kSequence}), labels,
                         at::arange(kSequence, at::kLong).expand({kRows, kSequence}).contiguous(),
                         at::zeros({kRows, kSequence}, at::kLong));
    Seen here;
    const Answers watched(here);
    const Evaluation result = engine->evaluate(batch);
    if (world.rank() == 0) outcome = {here, result.sums.at(1) / result.weight};
  });
  return outcome;
}

// In the sequence form a rank has a range of each row's tokens, and a slice of logits contains ranges of all ranks.
TEST(Evaluation, SlicesLogitsAndCountsAsOneProcess) {
  const Outcome one = evaluated(1, at::zeros({kRows, kSequence}, at::kLong));
  const at::Tensor answers = at::cat(one.seen.found).view({kRows, kSequence});
  ASSERT_FALSE(answers.eq(answers.select(1, 0).unsqueeze(1)).all().item<bool>()) << "all alike: no order to see";
  EXPECT_EQ(evaluated(1, answers).accuracy, 1);
  const Outcome two = evaluated(2, answers);
  EXPECT_EQ(two.accuracy, 1);
  EXPECT_LE(two.seen.largest, int64_t{1} << 24);
  EXPECT_GT(two.seen.found.size(), 1u);
}

}  // namespace
}  // namespace colossal::train::evaluation_test
