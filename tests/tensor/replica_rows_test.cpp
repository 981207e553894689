// The rows of a global batch that a replica reads, for any number of micro-batches and replicas.
#include "colossal/tensor/replica_rows.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "colossal/tensor/batch.h"
#include "support/thrown_message.h"

namespace colossal::tensor::replica_rows_test {
namespace {

using testing::ElementsAre;

std::vector<int64_t> numbers(const at::Tensor& t) {
  const at::Tensor flat = t.contiguous().view({-1});
  return {flat.const_data_ptr<int64_t>(), flat.const_data_ptr<int64_t>() + flat.numel()};
}

/// Returns a batch of `rows` rows that have their own index.
Batch numbered(int64_t rows) {
  Batch batch;
  const at::Tensor index = at::arange(rows, at::kLong);
  batch.add("ids", {index.unsqueeze(1).expand({rows, 3}).contiguous(), {Dim::Row, Dim::Token}, -100});
  batch.add("classes", {index.clone(), {Dim::Row}});
  return batch;
}

TEST(ReplicaRows, AreThePartOfEachMicroBatch) {
  const ReplicaRows rows{.batch_size = 8, .micro_batches = 2, .replica = 1, .replicas = 2};
  EXPECT_EQ(rows.count(), 4);
  EXPECT_EQ(rows.of_micro_batch(), 2);
  EXPECT_THAT(numbers(rows.of(numbered(8)).at("classes")), ElementsAre(2, 3, 6, 7));
  const ReplicaRows first{.batch_size = 8, .micro_batches = 2, .replica = 0, .replicas = 2};
  EXPECT_THAT(numbers(first.of(numbered(8)).at("classes")), ElementsAre(0, 1, 4, 5));
}

TEST(ReplicaRows, FormEachMicroBatchFromTheSameRowsForAnyReplicas) {
  constexpr int64_t kRows = 24;
  for (const int64_t micro_batches : {1, 2, 3, 4})
    for (const int64_t replicas : {1, 2, 3, 6})
      for (int64_t i = 0; i < micro_batches && kRows % (micro_batches * replicas) == 0; ++i) {
        std::vector<int64_t> found;
        for (int64_t replica = 0; replica < replicas; ++replica) {
          const ReplicaRows rows{kRows, micro_batches, replica, replicas};
          const Batch own = rows.of(numbered(kRows)), part = own.part(i * rows.of_micro_batch(), rows.of_micro_batch());
          const std::vector<int64_t> mine = numbers(part.at("classes"));
          for (size_t k = 0; k < mine.size(); ++k)
            EXPECT_EQ(rows.global(i * rows.of_micro_batch() + static_cast<int64_t>(k)), mine[k]);
          EXPECT_EQ(numbers(part.at("ids").select(1, 2)), mine);
          found.insert(found.end(), mine.begin(), mine.end());
        }
        std::vector<int64_t> want(kRows / micro_batches);
        std::iota(want.begin(), want.end(), i * kRows / micro_batches);
        EXPECT_EQ(found, want) << micro_batches << " micro-batches, " << replicas << " replicas, micro-batch " << i;
      }
}

TEST(ReplicaRows, AreConsecutiveViewsWithOneMicroBatch) {
  Batch whole = numbered(6);
  whole.wanted = {{0, 2}};
  const Batch own = ReplicaRows{.batch_size = 6, .replica = 2, .replicas = 3}.of(whole);
  EXPECT_THAT(numbers(own.at("classes")), ElementsAre(4, 5));
  EXPECT_TRUE(own.at("ids").is_alias_of(whole.at("ids")));
  EXPECT_EQ(own.field("ids").ignored, -100);
  EXPECT_EQ(own.wanted, whole.wanted);
}

TEST(ReplicaRows, RefuseSizesThatDoNotDivide) {
  const auto refused = [](const ReplicaRows& rows) {
    return test::thrown_message([&] { rows.of(numbered(rows.batch_size)); });
  };
  EXPECT_EQ(refused({.batch_size = 6, .micro_batches = 2, .replica = 0, .replicas = 2}),
            "[data] batch_size must be divisible by the replicas times the micro-batches: got 6 rows, 2 replicas, 2 "
            "micro-batches; change training.batch_size");
  EXPECT_EQ(refused({.batch_size = 4, .replica = 2, .replicas = 2}), "[data] the replica must be in [0, 2): got 2");
  EXPECT_EQ(test::thrown_message([] { ReplicaRows{.batch_size = 4}.of(numbered(5)); }),
            "[data] the global batch must have 4 rows: got 5");
}

}  // namespace
}  // namespace colossal::tensor::replica_rows_test
