// The lengths that clips draw, and batches of clips of one length each.
#include "colossal/data/videos/clip_lengths.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "colossal/base/seed.h"
#include "colossal/data/videos/clip_rows.h"
#include "support/thrown_message.h"

namespace colossal::data::clip_lengths_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr tensor::ReplicaRows kRows{.batch_size = 8, .micro_batches = 2, .replicas = 2};

TEST(ClipLengths, FillUpTheirLists) {
  const ClipLengths lengths = completed({.frames = {1, 17, 51}}, kRows);
  EXPECT_THAT(lengths.keep, ElementsAre(1, 1, 1));
  EXPECT_THAT(lengths.batch_sizes, ElementsAre(8, 8, 8));
}

TEST(ClipLengths, RefuseWhatDoesNotFit) {
  const auto refusal = [](const ClipLengths& lengths) {
    return test::thrown_message([&] { completed(lengths, kRows); });
  };
  EXPECT_THAT(refusal({.frames = {1, 17, 51}, .keep = {1, 0.5}, .batch_sizes = {8, 8, 8}}),
              HasSubstr("frames, keep and batch_sizes must have as many numbers: got 3, 2 and 3"));
  EXPECT_THAT(refusal({.frames = {}}), HasSubstr("got 0, 0 and 0"));
  for (const std::vector<int64_t>& frames : {std::vector<int64_t>{17, 1}, {0, 17}, {17, 17}})
    EXPECT_THAT(refusal({.frames = frames}), HasSubstr("lengths of at least 1, in ascending order"));
  EXPECT_THAT(refusal({.frames = {1, 17}, .keep = {1, 0}}), HasSubstr("at most 1: got 0 for 17 frames; set data.keep"));
  EXPECT_THAT(refusal({.frames = {1}, .keep = {1.5}}), HasSubstr("got 1.5 for 1 frames"));
  EXPECT_THAT(refusal({.frames = {1, 17}, .batch_sizes = {8, 6}}),
              HasSubstr("micro-batches, 2 x 2: got 6 for 17 frames; set data.batch_sizes, for instance to 8"));
}

TEST(ClipLengths, CountTheFramesOfAVideo) {
  EXPECT_EQ(frames_reached(2, 24), 48);
  EXPECT_EQ(frames_reached(0.125, 8), 1);
  EXPECT_EQ(frames_reached(0.126, 8), 1) << "a rounding of the header is no frame";
  EXPECT_EQ(frames_reached(0.2, 8), 2);
  EXPECT_EQ(frames_reached(0, 24), 0);
  EXPECT_EQ(frames_reached(1e30, 24), int64_t{1} << 53) << "a header may say anything";
  EXPECT_EQ(frames_reached(51 * 1001 / 24000.0, 24000.0 / 1001), 51);
}

TEST(ClipLengths, TakeTheLongestThatIsReachedAndKept) {
  const ClipLengths all = completed({.frames = {4, 17, 51}}, kRows);
  EXPECT_EQ(length_of_clip(all, 51, 1), 2u);
  EXPECT_EQ(length_of_clip(all, 50, 1), 1u);
  EXPECT_EQ(length_of_clip(all, 3, 1), std::nullopt);
  const ClipLengths some = completed({.frames = {4, 17, 51}, .keep = {0.8, 0.5, 0.25}}, kRows);
  std::map<int, int> drawn;
  int changes = 0;
  for (int64_t clip = 0; clip < 4000; ++clip) {
    const auto length = length_of_clip(some, 60, seed_of_clip(3, 0, clip));
    EXPECT_EQ(length, length_of_clip(some, 60, seed_of_clip(3, 0, clip)));
    changes += length != length_of_clip(some, 60, seed_of_clip(3, 1, clip));
    ++drawn[length ? static_cast<int>(*length) : -1];
  }
  EXPECT_NEAR(drawn[2], 1000, 120);
  EXPECT_NEAR(drawn[1], 1500, 130);
  EXPECT_NEAR(drawn[0], 1200, 130);
  EXPECT_NEAR(drawn[-1], 300, 70);
  EXPECT_GT(changes, 2000) << "each epoch draws anew";
}

TEST(ClipLengths, BeginAnywhereInTheVideo) {
  std::set<int64_t> starts;
  for (uint64_t seed = 0; seed < 200; ++seed) starts.insert(start_of_clip(20, 17, splitmix64(seed)));
  EXPECT_THAT(starts, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(test::thrown_message([] { start_of_clip(16, 17, 0); }), HasSubstr("17 frames needs a video"));
}

/// 40 clips of 1 to 40 frames in two sizes, by turns.
std::shared_ptr<const ClipRows> forty_clips(const ClipLengths& lengths) {
  std::vector<MeasuredClip> clips;
  for (int64_t i = 0; i < 40; ++i) clips.push_back({.reached = i + 1, .shape = i % 2});
  return std::make_shared<const ClipRows>(clips, lengths, ClipRowsOptions{.shapes = 2, .fps = 24, .seed = 5});
}

const ClipLengths kDrawn{.frames = {4, 17, 33}, .keep = {0.9, 0.5, 0.5}, .batch_sizes = {7, 4, 2}};

BucketOrder order_of(const std::shared_ptr<const ClipRows>& clips) {
  return BucketOrder(streams_of(clips), {.rows_of_bucket = clips->batch_sizes(), .seed = 9});
}

TEST(ClipRows, NamesTheLengthThatNoClipReaches) {
  EXPECT_THAT(test::thrown_message([] { forty_clips(completed({.frames = {1, 41}}, kRows)); }),
              HasSubstr("empty bucket: no clip has 41 frames at 24 a second; the longest has 40; take 41 out of "
                        "data.frames, or lower data.fps"));
}

// Stored latents of a long run are those of a few places.
TEST(ClipRows, BeginAtNewPlacesForSomeEpochsAndThenAtTheSame) {
  const auto clips = forty_clips({.frames = {4}, .keep = {1}, .batch_sizes = {4}});
  std::set<int64_t> starts;
  for (int64_t epoch = 0; epoch < 3 * ClipRows::kStarts; ++epoch)
    for (const ClipUse& use : clips->uses(epoch)) {
      EXPECT_EQ(use.start, clips->start_of(use.bucket, {.epoch = epoch, .picture = use.clip}));
      EXPECT_LE(use.start + 4, use.clip + 1) << "the clip ends within the video";
      if (use.clip == 39) starts.insert(use.start);
    }
  EXPECT_GE(starts.size(), 4u);
  EXPECT_LE(static_cast<int64_t>(starts.size()), ClipRows::kStarts);
}

TEST(ClipRows, RefuseToWaitForABatchThatHardlyComes) {
  EXPECT_THAT(test::thrown_message([] { forty_clips({.frames = {4}, .keep = {1e-7}, .batch_sizes = {4}}); }),
              HasSubstr("keep must leave a batch in 1000 epochs at least: got one in"));
}

TEST(ClipRows, MayHaveNothingInTheFirstEpoch) {
  const std::vector<MeasuredClip> one(1, MeasuredClip{.reached = 4});
  for (uint64_t seed = 0;; ++seed) {
    const auto clips = std::make_shared<const ClipRows>(
        one, ClipLengths{.frames = {4}, .keep = {0.1}, .batch_sizes = {1}}, ClipRowsOptions{.seed = seed});
    if (clips->before(0, 1) > 0) continue;
    const BucketOrder order = order_of(clips);
    int64_t epoch = 0;
    while (order.batches(epoch) == 0) ++epoch;
    EXPECT_EQ(order.visit(order.batch(epoch, 0), 0).epoch, epoch);
    EXPECT_GT(epoch, 0);
    break;
  }
}

TEST(ClipLengths, HaveALengthOfTheLargestBatches) {
  EXPECT_EQ(largest_length({.frames = {1, 17, 51}, .batch_sizes = {16, 8, 2}}), 1u);
  EXPECT_EQ(largest_length({.frames = {1, 17, 51}, .batch_sizes = {102, 6, 2}}), 2u) << "the longest of equal ones";
}

TEST(ClipRows, GiveEachDrawnClipOnceAndLetRestsWait) {
  constexpr int64_t kEpochs = 9;
  const auto clips = forty_clips(kDrawn);
  const BucketOrder order = order_of(clips);
  std::vector<std::set<std::pair<int64_t, int64_t>>> read(6);  // of each bucket the epochs and clips
  for (int64_t epoch = 0; epoch < kEpochs; ++epoch)
    for (int64_t i = 0; i < order.batches(epoch); ++i) {
      const BucketBatch batch = order.batch(epoch, i);
      for (int64_t row = 0; row < clips->batch_sizes().at(static_cast<size_t>(batch.bucket)); ++row) {
        const Visit visit = order.visit(batch, row);
        EXPECT_LE(visit.epoch, epoch);
        EXPECT_EQ(visit.picture % 2, batch.bucket % 2) << "the size of the bucket";
        EXPECT_GE(visit.picture + 1, clips->frames_of(batch.bucket));
        EXPECT_TRUE(read[static_cast<size_t>(batch.bucket)].insert({visit.epoch, visit.picture}).second);
      }
    }
  for (int64_t bucket = 0; bucket < 6; ++bucket) {
    std::set<std::pair<int64_t, int64_t>> drawn;
    for (int64_t epoch = 0; epoch < kEpochs; ++epoch)
      for (int64_t clip = bucket % 2; clip < 40; clip += 2)
        if (length_of_clip(kDrawn, clip + 1, seed_of_clip(5, epoch, clip)) == static_cast<size_t>(bucket / 2))
          drawn.insert({epoch, clip});
    const auto& own = read[static_cast<size_t>(bucket)];
    EXPECT_TRUE(std::includes(drawn.begin(), drawn.end(), own.begin(), own.end())) << bucket;
    EXPECT_LT(drawn.size() - own.size(), static_cast<size_t>(clips->batch_sizes()[bucket])) << bucket;
    EXPECT_EQ(clips->before(bucket, kEpochs), static_cast<int64_t>(drawn.size()));
  }
}

TEST(ClipRows, NeedNothingButTheEpochToGoOn) {
  const BucketOrder all = order_of(forty_clips(kDrawn)), resumed = order_of(forty_clips(kDrawn));
  for (int64_t epoch = 0; epoch < 7; ++epoch) all.batches(epoch);
  ASSERT_EQ(resumed.batches(6), all.batches(6));
  for (int64_t i = 0; i < all.batches(6); ++i) {
    EXPECT_EQ(resumed.batch(6, i), all.batch(6, i));
    EXPECT_EQ(resumed.visit(resumed.batch(6, i), 1), all.visit(all.batch(6, i), 1));
  }
}

TEST(ClipRows, CountEachClipOfAnEvaluationOnce) {
  const auto clips = forty_clips(kDrawn);
  const BucketOrder order(streams_of(clips),
                          {.rows_of_bucket = clips->batch_sizes(), .seed = 9, .shuffle = false, .counts_once = true});
  std::map<int64_t, std::set<int64_t>> counted;  // the clips of each bucket
  int filled = 0;
  for (int64_t i = 0; i < order.batches(0); ++i) {
    const BucketBatch batch = order.batch(0, i);
    for (int64_t row = 0; row < clips->batch_sizes()[static_cast<size_t>(batch.bucket)]; ++row) {
      const Visit visit = order.visit(batch, row);
      if (!visit.counts) ++filled;
      if (visit.counts) EXPECT_TRUE(counted[batch.bucket].insert(visit.picture).second) << "it counts twice";
    }
  }
  EXPECT_GT(filled, 0) << "no batch was filled up";
  for (int64_t bucket = 0; bucket < clips->buckets(); ++bucket)
    EXPECT_EQ(static_cast<int64_t>(counted[bucket].size()), clips->before(bucket, 1)) << bucket;
}

TEST(ClipRows, CountBucketsAndWhatIsLeftOut) {
  const auto lines =
      forty_clips(completed({.frames = {4, 33}, .batch_sizes = {4, 8}}, kRows))->counts(0, {"64x48", "48x64"});
  EXPECT_THAT(lines,
              ElementsAre("bucket 64x48 of 4 frames: 14 clips, 3 batches of 4",
                          "bucket 48x64 of 4 frames: 15 clips, 3 batches of 4",
                          "bucket 64x48 of 33 frames: 4 clips, 0 batches of 8",
                          "bucket 48x64 of 33 frames: 4 clips, 0 batches of 8",
                          "3 of 40 clips are left out in epoch 0: 3 have fewer than 4 frames at 24 a second, and "
                          "data.keep left out 0"));
}

}  // namespace
}  // namespace colossal::data::clip_lengths_test
