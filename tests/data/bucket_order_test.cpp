// The order of batches of buckets: each row is read once, in whatever epoch its bucket has a batch for it.
#include "colossal/data/pictures/bucket_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <tuple>

#include "support/thrown_message.h"

namespace colossal::data::bucket_order_test {
namespace {

using testing::HasSubstr;

/// The pictures of a random set: for each bucket the repeats of its pictures. Pictures are numbered over all buckets.
std::vector<BucketRows> random_buckets(uint32_t seed, size_t buckets, int64_t most, int64_t most_repeats) {
  std::mt19937 random(seed);
  std::vector<BucketRows> rows(buckets);
  int64_t picture = 0;
  for (BucketRows& bucket : rows)
    for (int64_t n = static_cast<int64_t>(random()) % (most + 1); n > 0; --n)
      bucket.add(picture++, 1 + static_cast<int64_t>(random()) % most_repeats);
  rows.front().add(picture, 2);
  return rows;
}

using Row = std::tuple<int64_t, int64_t, int64_t>;  // epoch, picture, occurrence

Row row_of(const Visit& visit) { return {visit.epoch, visit.picture, visit.occurrence}; }

/// Returns all rows that the pictures of a bucket have in an epoch.
std::set<Row> all_rows(const RowStream& bucket, int64_t epoch) {
  std::set<Row> rows;
  for (int64_t i = 0; i < bucket.rows(); ++i) {
    const Visit visit = bucket.at(i, 0, false);
    rows.insert({epoch, visit.picture, visit.occurrence});
  }
  return rows;
}

TEST(BucketRows, HasARowForEachRepeat) {
  BucketRows rows;
  rows.add(7, 1);
  rows.add(3, 2);
  EXPECT_EQ(rows.pictures(), 2);
  EXPECT_EQ(rows.rows(), 3);
  EXPECT_EQ(rows.at(0, 0, false), (Visit{0, 7, 0}));
  EXPECT_EQ(rows.at(1, 0, false), (Visit{0, 3, 0}));
  EXPECT_EQ(rows.at(2, 0, false), (Visit{0, 3, 1}));
  EXPECT_EQ(rows.at(5, 0, false), (Visit{1, 3, 1}));
}

TEST(BucketRows, RefusesRepeatsOutOfRange) {
  BucketRows rows;
  EXPECT_THAT(test::thrown_message([&] { rows.add(3, 0); }), HasSubstr("must be at least 1: got 0 of picture 3"));
  rows.add(0, int64_t{1} << 31);
  EXPECT_THAT(test::thrown_message([&] { rows.add(1, 1); }), HasSubstr("at most 2^31 together: got 2147483649"));
  EXPECT_THAT(test::thrown_message([&] { rows.add(1, INT64_MAX); }), HasSubstr("at most 2^31"));
  EXPECT_EQ(rows.pictures(), 1);
  EXPECT_THAT(test::thrown_message([&] { BucketOrder({rows, rows}, {.rows = 1}); }), HasSubstr("at most 2^31"));
}

// After each epoch: what was read is read once; of what was not, each bucket has less than a batch, all from its last
// rows, and they come first when the bucket has a batch again.
TEST(BucketOrder, ReadsEachRowOnceAndLetsRestsWait) {
  for (const auto& [seed, rows, most, repeats] :
       {std::tuple{1u, 4, 20, 1}, {2u, 8, 5, 1}, {3u, 3, 9, 4}, {4u, 1, 9, 3}, {5u, 64, 9, 2}}) {
    const BucketOrder order(random_buckets(seed, 5, most, repeats), {.rows = rows, .seed = seed});
    std::vector<std::set<Row>> read(order.buckets().size()), all(order.buckets().size());
    std::vector<std::map<int64_t, std::vector<Row>>> batches(order.buckets().size());
    for (int64_t epoch = 0; epoch < 8; ++epoch) {
      for (int64_t i = 0; i < order.batches(epoch); ++i) {
        const BucketBatch batch = order.batch(epoch, i);
        const auto bucket = static_cast<size_t>(batch.bucket);
        for (int64_t row = 0; row < rows; ++row) {
          const Visit visit = order.visit(batch, row);
          EXPECT_TRUE(visit.counts);
          EXPECT_LE(visit.epoch, epoch);
          EXPECT_TRUE(read[bucket].insert(row_of(visit)).second) << "a row was read twice";
          batches[bucket][batch.number].push_back(row_of(visit));
        }
      }
      for (size_t bucket = 0; bucket < read.size(); ++bucket) {
        all[bucket].merge(all_rows(*order.buckets()[bucket], epoch));
        EXPECT_TRUE(std::includes(all[bucket].begin(), all[bucket].end(), read[bucket].begin(), read[bucket].end()))
            << "a row belongs to another bucket";
        EXPECT_LT(all[bucket].size() - read[bucket].size(), static_cast<size_t>(rows)) << "more waits than a rest";
      }
    }
    for (const auto& stream : batches) {
      int64_t number = 0, epoch = 0;
      for (const auto& [n, rows_of_batch] : stream) {
        EXPECT_EQ(n, number++);
        for (const Row& row : rows_of_batch) {
          EXPECT_GE(std::get<0>(row), epoch) << "a row of an earlier epoch did not come first";
          epoch = std::get<0>(row);
        }
      }
    }
  }
}

std::vector<Row> rows_of_epoch(const BucketOrder& order, int64_t epoch, int64_t rows) {
  std::vector<Row> read;
  for (int64_t i = 0; i < order.batches(epoch); ++i)
    for (int64_t row = 0; row < rows; ++row) read.push_back(row_of(order.visit(order.batch(epoch, i), row)));
  return read;
}

TEST(BucketOrder, ShufflesPicturesAndBatchesAnewInEachEpoch) {
  const std::vector<BucketRows> buckets = random_buckets(6, 4, 40, 1);
  const BucketOrder order(buckets, {.rows = 2, .seed = 6});
  const auto pictures = [](const std::vector<Row>& rows) {
    std::vector<int64_t> all;
    for (const auto& [epoch, picture, occurrence] : rows) all.push_back(picture);
    return all;
  };
  EXPECT_NE(pictures(rows_of_epoch(order, 0, 2)), pictures(rows_of_epoch(order, 1, 2)));
  EXPECT_EQ(rows_of_epoch(order, 1, 2), rows_of_epoch(BucketOrder(buckets, {.rows = 2, .seed = 6}), 1, 2));
  EXPECT_NE(rows_of_epoch(order, 1, 2), rows_of_epoch(BucketOrder(buckets, {.rows = 2, .seed = 7}), 1, 2));
  int changes = 0;
  for (int64_t i = 1; i < order.batches(0); ++i) changes += order.batch(0, i).bucket != order.batch(0, i - 1).bucket;
  EXPECT_GT(changes, order.batches(0) / 3) << "batches of a bucket come one after another";
  const auto first_of_bucket = [&](int64_t epoch) {
    std::vector<int64_t> firsts;
    for (int64_t i = 0; i < order.batches(epoch); ++i) firsts.push_back(order.batch(epoch, i).bucket);
    return firsts;
  };
  EXPECT_NE(first_of_bucket(0), first_of_bucket(1));
}

TEST(BucketOrder, ShufflesEachBucketAndEachEpochDifferently) {
  std::vector<BucketRows> buckets(2);
  for (int64_t picture = 0; picture < 20; ++picture) {
    buckets[0].add(picture, 1);
    buckets[1].add(picture, 1);
  }
  const BucketOrder order(buckets, {.rows = 20});
  std::vector<int64_t> first, second, next_epoch;
  for (int64_t row = 0; row < 20; ++row) {
    first.push_back(order.visit({.bucket = 0}, row).picture);
    second.push_back(order.visit({.bucket = 1}, row).picture);
    next_epoch.push_back(order.visit({.epoch = 1, .bucket = 0, .number = 1}, row).picture);
  }
  EXPECT_NE(first, second);
  EXPECT_NE(first, next_epoch);
}

TEST(BucketOrder, GoesBucketByBucketWithoutShuffle) {
  std::vector<BucketRows> buckets(2);
  for (const int64_t picture : {1, 2, 4}) buckets[0].add(picture, 1);
  for (const int64_t picture : {0, 3}) buckets[1].add(picture, 1);
  const BucketOrder order(buckets, {.rows = 2, .shuffle = false});
  EXPECT_EQ(rows_of_epoch(order, 0, 2), (std::vector<Row>{{0, 1, 0}, {0, 2, 0}, {0, 0, 0}, {0, 3, 0}}));
  EXPECT_EQ(rows_of_epoch(order, 1, 2),
            (std::vector<Row>{{0, 4, 0}, {1, 1, 0}, {1, 2, 0}, {1, 4, 0}, {1, 0, 0}, {1, 3, 0}}));
}

TEST(BucketOrder, ReadsEachRowOnceInTheOrderOfPicturesIfItCountsOnce) {
  std::vector<BucketRows> buckets(3);
  for (const int64_t picture : {2, 3, 4, 6, 9}) buckets[0].add(picture, 1);
  for (const int64_t picture : {0, 1, 5}) buckets[2].add(picture, 1);
  const BucketOrder order(buckets, {.rows = 2, .shuffle = false, .counts_once = true});
  std::vector<std::pair<int64_t, bool>> read;
  for (int64_t i = 0; i < order.batches(0); ++i)
    for (int64_t row = 0; row < 2; ++row) {
      const Visit visit = order.visit(order.batch(0, i), row);
      read.push_back({visit.picture, visit.counts});
    }
  EXPECT_EQ(read, (std::vector<std::pair<int64_t, bool>>{{0, true},
                                                         {1, true},
                                                         {2, true},
                                                         {3, true},
                                                         {4, true},
                                                         {6, true},
                                                         {5, true},
                                                         {0, false},
                                                         {9, true},
                                                         {2, false}}));
  EXPECT_EQ(order.batches(1), order.batches(0));
  EXPECT_FALSE(order.visit(order.batch(1, 0), 0).counts) << "the second epoch counts nothing";
}

TEST(BucketOrder, RefusesWhatItDoesNotHave) {
  BucketRows rows;
  rows.add(0, 5);
  EXPECT_THAT(test::thrown_message([&] { BucketOrder({rows}, {.rows = 0}); }), HasSubstr("at least 1 row"));
  EXPECT_THAT(test::thrown_message([&] { BucketOrder({BucketRows(), BucketRows()}, {.rows = 1}); }),
              HasSubstr("there must be pictures"));
  const BucketOrder order({rows}, {.rows = 2});
  EXPECT_EQ(order.rows(), 5);
  EXPECT_THAT(test::thrown_message([&] { order.batch(0, 2); }), HasSubstr("epoch 0 has 2 batches: got batch 2"));
  EXPECT_THAT(test::thrown_message([&] { order.batch(1, -1); }), HasSubstr("epoch 1 has 3 batches: got batch -1"));
}

}  // namespace
}  // namespace colossal::data::bucket_order_test
