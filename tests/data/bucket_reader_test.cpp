// Batches of buckets: the same for any layout, restorable at any position, with a prior, and for evaluations.
#include "colossal/data/pictures/bucket_reader.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "support/thrown_message.h"

namespace colossal::data::bucket_reader_test {
namespace {

using tensor::Dim;
using testing::ElementsAre;
using testing::HasSubstr;

const std::vector<PictureSize> kBuckets = bucket_sizes({.size = {64, 64}, .multiple = 16});

/// Pictures without pixels. Their fields are the picture's number and seed (its lower 62 bits), the set that it is of,
/// a weight of 1, and a tensor of the bucket's size.
struct Pictures : SizedSamples {
  std::vector<PictureSize> sizes;
  std::vector<int64_t> repeats_of_each;
  int64_t set = 0, unreadable = -1;

  /// Pictures of random sizes, with 1 to `most_repeats` repeats.
  static std::shared_ptr<Pictures> random(int64_t count, int64_t most_repeats = 1, uint32_t seed = 1) {
    std::mt19937 numbers(seed);
    const auto pictures = std::make_shared<Pictures>();
    for (int64_t i = 0; i < count; ++i) {
      const auto side = [&] { return 20 + static_cast<int64_t>(numbers() % 100); };
      pictures->sizes.push_back({side(), side()});
      pictures->repeats_of_each.push_back(1 + static_cast<int64_t>(numbers()) % most_repeats);
    }
    return pictures;
  }
  int64_t count() const override { return static_cast<int64_t>(sizes.size()); }
  PictureSize size(int64_t index) const override { return sizes.at(static_cast<size_t>(index)); }
  int64_t repeats(int64_t index) const override { return repeats_of_each.at(static_cast<size_t>(index)); }
  tensor::Batch make(int64_t rows, const BucketShape& bucket) const override {
    tensor::Batch batch;
    for (const char* name : {"picture", "seed", "set"}) batch.add(name, {at::zeros({rows}, at::kLong), {Dim::Row}});
    batch.add("weights", {at::zeros({rows}, at::kFloat), {Dim::Row}});
    batch.add("latents", {at::zeros({rows, bucket.size.height / 16, bucket.size.width / 16}, at::kFloat),
                          {Dim::Row, Dim::Other, Dim::Other}});
    return batch;
  }
  void fill(int64_t index, uint64_t seed, const BucketShape& bucket, tensor::Batch& batch, int64_t row) const override {
    require(index != unreadable, "data", "picture ", index, " is damaged");
    require(batch.at("latents").size(1) * 16 == bucket.size.height, "test", "the bucket is not that of the batch");
    const auto set_row = [&](const char* name, int64_t value) {
      batch.at(name).mutable_data_ptr<int64_t>()[row] = value;
    };
    set_row("picture", index);
    set_row("seed", static_cast<int64_t>(seed >> 2));
    set_row("set", set);
    batch.at("weights").mutable_data_ptr<float>()[row] = 1;
    batch.at("latents").select(0, row).fill_(static_cast<float>(index));
  }
  nlohmann::json traits() const override { return {{"pictures", count()}}; }
  std::vector<std::string> take_notices() const override { return {concat("notice of set ", set)}; }
};

std::vector<int64_t> values(const tensor::Batch& batch, const char* field) {
  const at::Tensor& tensor = batch.at(field);
  return {tensor.const_data_ptr<int64_t>(), tensor.const_data_ptr<int64_t>() + tensor.numel()};
}

BucketReaderOptions options_of(BatchOptions batches) {
  return {.batches = batches, .buckets = kBuckets, .zeroed = {"weights"}};
}

std::unique_ptr<BucketReader> reader_of(const BatchOptions& batches, std::shared_ptr<const Pictures> pictures,
                                        std::shared_ptr<const Pictures> prior = nullptr) {
  return std::make_unique<BucketReader>(std::move(pictures), std::move(prior), options_of(batches));
}

bool equal(const tensor::Batch& a, const tensor::Batch& b) {
  bool all = a.fields().size() == b.fields().size();
  for (const auto& [name, field] : a.fields()) all = all && field.tensor.equal(b.at(name));
  return all;
}

/// Returns a prior of `count` pictures.
std::shared_ptr<Pictures> prior_of(int64_t count) {
  const auto prior = Pictures::random(count, 1, 9);
  prior->set = 1;
  return prior;
}

TEST(BucketReader, MakesBatchesOfOneBucket) {
  const auto pictures = Pictures::random(100, 3);
  const auto reader = reader_of({.batch_size = 4, .seed = 3}, pictures);
  std::set<std::vector<int64_t>> shapes;
  for (int i = 0; i < 80; ++i) {
    const tensor::Batch batch = reader->next({});
    const at::Tensor& latents = batch.at("latents");
    for (const int64_t picture : values(batch, "picture")) {
      const PictureSize bucket = kBuckets[nearest_bucket(kBuckets, pictures->size(picture))];
      EXPECT_EQ(latents.size(1) * 16, bucket.height);
      EXPECT_EQ(latents.size(2) * 16, bucket.width);
    }
    shapes.insert(latents.sizes().vec());
  }
  EXPECT_GT(shapes.size(), 4u);
}

/// Videos of 1 to 60 frames, of random sizes. A further field has the frames of the bucket.
struct Clips : Pictures {
  tensor::Batch make(int64_t rows, const BucketShape& bucket) const override {
    tensor::Batch batch = Pictures::make(rows, bucket);
    batch.add("clip", {at::zeros({rows, bucket.frames}, at::kFloat), {Dim::Row, Dim::Other}});
    return batch;
  }
  static std::shared_ptr<Clips> of(int64_t count) {
    const auto clips = std::make_shared<Clips>();
    static_cast<Pictures&>(*clips) = *Pictures::random(count);
    return clips;
  }
  BucketReaderOptions options(const BatchOptions& batches) const {
    std::vector<MeasuredClip> measured;
    for (int64_t i = 0; i < count(); ++i)
      measured.push_back({.reached = 1 + i % 60, .shape = static_cast<int64_t>(nearest_bucket(kBuckets, size(i)))});
    const ClipLengths lengths{.frames = {1, 17, 51}, .keep = {1, 0.5, 0.5}, .batch_sizes = {8, 4, 2}};
    const ClipRowsOptions rows{.shapes = static_cast<int64_t>(kBuckets.size()), .seed = batches.seed};
    return {
        .batches = batches, .buckets = kBuckets, .clips = std::make_shared<const ClipRows>(measured, lengths, rows)};
  }
};

TEST(BucketReader, MakesBatchesOfClipsOfOneLength) {
  const auto clips = Clips::of(240);
  const BatchOptions one{.batch_size = 8, .seed = 3}, first{.batch_size = 8, .rank = 0, .ranks = 2, .seed = 3},
      second{.batch_size = 8, .rank = 1, .ranks = 2, .seed = 3};
  BucketReader reader(clips, clips->options(one)), left(clips, clips->options(first)),
      right(clips, clips->options(second));
  std::map<int64_t, int64_t> rows;  // of each length
  nlohmann::json middle;
  for (int i = 0; i < 120; ++i) {
    if (i == 100) middle = reader.position();
    const tensor::Batch batch = reader.next({});
    const int64_t frames = batch.at("clip").size(1);
    EXPECT_EQ(batch.rows(), frames == 1 ? 8 : frames == 17 ? 4 : 2);
    for (const int64_t clip : values(batch, "picture")) EXPECT_GE(1 + clip % 60, frames);
    rows[frames] += batch.rows();
    std::vector<int64_t> both = values(left.next({}), "seed");
    for (const int64_t seed : values(right.next({}), "seed")) both.push_back(seed);
    EXPECT_EQ(both, values(batch, "seed"));
  }
  EXPECT_THAT(rows, testing::SizeIs(3));
  BucketReader resumed(clips, clips->options(one));
  resumed.seek(middle);
  for (int i = 100; i < 120; ++i) resumed.next({});
  EXPECT_TRUE(equal(resumed.next({}), reader.next({})));
  EXPECT_THAT(reader.counts(), testing::Contains(HasSubstr(" of 17 frames: ")));
  EXPECT_EQ(resumed.traits(), reader.traits());
  EXPECT_THAT(test::thrown_message([&] { BucketReader(clips, clips, clips->options(one)); }),
              HasSubstr("clips have no prior; leave it out"));
  const BatchOptions three{.batch_size = 8, .ranks = 4, .seed = 3};
  EXPECT_THAT(test::thrown_message([&] { BucketReader(clips, clips->options(three)); }), HasSubstr("got 2 rows, 4"));
}

// Until epoch e ends, e times its repeats of a picture are read, but for rows that wait. All seeds are distinct.
TEST(BucketReader, ReadsEachPictureAsOftenAsItsRepeats) {
  const auto pictures = Pictures::random(60, 4);
  const auto reader = reader_of({.batch_size = 8, .seed = 3}, pictures);
  std::map<int64_t, int64_t> times;
  std::set<int64_t> seeds;
  int64_t rows = 0;
  for (int64_t epoch = 1; epoch <= 5; ++epoch) {
    while (reader->position()["epoch"] < epoch) {
      const tensor::Batch batch = reader->next({});
      for (const int64_t picture : values(batch, "picture")) ++times[picture];
      for (const int64_t seed : values(batch, "seed")) seeds.insert(seed);
      rows += 8;
    }
    EXPECT_EQ(static_cast<int64_t>(seeds.size()), rows);
    EXPECT_GT(rows, epoch * reader->samples() - 8 * static_cast<int64_t>(kBuckets.size()));
    EXPECT_LE(rows, epoch * reader->samples());
    for (int64_t i = 0; i < pictures->count(); ++i) {
      EXPECT_LE(times[i], epoch * pictures->repeats(i));
      EXPECT_GT(times[i], epoch * pictures->repeats(i) - 8) << "more than a rest of its bucket waits";
    }
  }
}

/// Returns the global batch that the batches of all ranks are parts of.
tensor::Batch global_batch(const std::vector<std::unique_ptr<BucketReader>>& ranks, int64_t micro_batches,
                           int64_t batch_size) {
  std::vector<tensor::Batch> parts;
  for (const auto& reader : ranks) parts.push_back(reader->next({}));
  tensor::Batch global;
  for (const auto& [name, field] : parts[0].fields()) {
    std::vector<int64_t> sizes = field.tensor.sizes().vec();
    sizes[0] = batch_size;
    at::Tensor whole = at::empty(sizes, field.tensor.options());
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      const tensor::ReplicaRows own{batch_size, micro_batches, static_cast<int64_t>(rank),
                                    static_cast<int64_t>(ranks.size())};
      for (int64_t row = 0; row < own.count(); ++row)
        whole.select(0, own.global(row)).copy_(parts[rank].at(name).select(0, row));
    }
    tensor::Field joined = field;
    joined.tensor = whole;
    global.add(name, joined);
  }
  return global;
}

TEST(BucketReader, MakesTheSameBatchesForAnyRanksMicroBatchesAndThreads) {
  const auto pictures = Pictures::random(50, 2);
  for (const auto& prior : {std::shared_ptr<Pictures>(), prior_of(7)})
    for (const int ranks : {1, 2, 4})
      for (const int64_t micro_batches : {1, 2}) {
        const auto one = reader_of({.batch_size = 8, .seed = 5}, pictures, prior);
        std::vector<std::unique_ptr<BucketReader>> all;
        for (int rank = 0; rank < ranks; ++rank)
          all.push_back(reader_of({.batch_size = 8,
                                   .rank = rank,
                                   .ranks = ranks,
                                   .micro_batches = micro_batches,
                                   .seed = 5,
                                   .threads = 1 + rank},
                                  pictures, prior));
        for (int i = 0; i < 20; ++i) {
          EXPECT_TRUE(equal(global_batch(all, micro_batches, 8), one->next({}))) << ranks << " x " << micro_batches;
          for (const auto& reader : all) EXPECT_EQ(reader->position(), one->position());
        }
      }
}

TEST(BucketReader, RepeatsBatchesFromAnyPosition) {
  const auto pictures = Pictures::random(30, 2);
  for (const auto& prior : {std::shared_ptr<Pictures>(), prior_of(7)}) {
    const auto reader = reader_of({.batch_size = 6, .seed = 2}, pictures, prior);
    std::vector<std::pair<nlohmann::json, tensor::Batch>> batches;
    for (int i = 0; i < 40; ++i) {
      nlohmann::json position = reader->position();
      batches.emplace_back(std::move(position), reader->next({}));
    }
    EXPECT_GE(batches.back().first["epoch"], 2);
    for (size_t i : {39, 0, 17, 5, 38, 1, 20}) {
      const auto fresh = reader_of({.batch_size = 6, .seed = 2}, pictures, prior);
      for (BucketReader* each : {reader.get(), fresh.get()}) {
        each->seek(nlohmann::json::parse(batches[i].first.dump()));
        EXPECT_EQ(each->position(), batches[i].first);
        EXPECT_TRUE(equal(each->next({}), batches[i].second)) << i;
      }
    }
  }
}

TEST(BucketReader, ResumesUnderAnotherNumberOfRanks) {
  const auto pictures = Pictures::random(40, 2);
  Batches through(reader_of({.batch_size = 4, .seed = 8}, pictures, prior_of(5)), false);
  for (int before : {0, 1, 13, 30}) {
    for (int i = 0; i < before; ++i) through.next();
    const nlohmann::json state = nlohmann::json::parse(through.state().dump());
    Batches resumed(reader_of({.batch_size = 4, .rank = 1, .ranks = 2, .seed = 8}, pictures, prior_of(5)), false);
    resumed.next();
    resumed.restore(state);
    EXPECT_EQ(resumed.state(), state);
    for (int i = 0; i < 6; ++i) {
      const tensor::Batch half = resumed.next();
      EXPECT_TRUE(equal(half, through.next().part(2, 2))) << before << " + " << i;
    }
  }
}

TEST(BucketReader, StaysAtItsPositionAfterAnError) {
  const auto pictures = Pictures::random(20);
  const auto reader = reader_of({.batch_size = 4, .threads = 3}, pictures),
             whole = reader_of({.batch_size = 4}, pictures);
  reader->next({});
  whole->next({});
  const nlohmann::json before = reader->position();
  const auto damaged = std::const_pointer_cast<Pictures>(pictures);
  const tensor::Batch wanted = whole->next({});
  damaged->unreadable = values(wanted, "picture")[2];
  for (int attempt = 0; attempt < 2; ++attempt) {
    EXPECT_THAT(test::thrown_message([&] { reader->next({}); }), HasSubstr("is damaged"));
    EXPECT_EQ(reader->position(), before);
  }
  damaged->unreadable = -1;
  EXPECT_TRUE(equal(reader->next({}), wanted));
}

/// Samples of the same pictures without buckets.
struct PlainPictures : Samples {
  explicit PlainPictures(std::shared_ptr<const Pictures> own) : pictures(std::move(own)) {}
  int64_t count() const override { return pictures->count(); }
  tensor::Batch make(int64_t rows) const override { return pictures->make(rows, {64, 64}); }
  void fill(int64_t index, uint64_t seed, tensor::Batch& batch, int64_t row) const override {
    pictures->fill(index, seed, {64, 64}, batch, row);
  }
  nlohmann::json traits() const override { return pictures->traits(); }
  std::shared_ptr<const Pictures> pictures;
};

TEST(BucketReader, GivesPicturesTheSeedsOfSamples) {
  const auto pictures = Pictures::random(12);
  Batches plain(std::make_shared<PlainPictures>(pictures), {.batch_size = 4, .seed = 6});
  BucketReader reader(pictures, {.batches = {.batch_size = 4, .seed = 6}, .buckets = {{64, 64}}});
  std::set<std::pair<int64_t, int64_t>> expected, seen;
  for (int i = 0; i < 6; ++i) {
    const tensor::Batch a = plain.next(), b = reader.next({});
    for (size_t row = 0; row < 4; ++row) {
      expected.insert({values(a, "picture")[row], values(a, "seed")[row]});
      seen.insert({values(b, "picture")[row], values(b, "seed")[row]});
    }
  }
  EXPECT_EQ(seen, expected);
  EXPECT_EQ(seen.size(), 24u);
}

TEST(BucketReader, WaitsForEpochsUntilABatchIsFull) {
  const auto pictures = std::make_shared<Pictures>();
  pictures->sizes = {{64, 64}, {64, 64}, {32, 96}};
  pictures->repeats_of_each = {1, 1, 1};
  const auto reader = reader_of({.batch_size = 8}, pictures);
  EXPECT_EQ(reader->position(), (nlohmann::json{{"epoch", 3}, {"batch", 0}}));
  EXPECT_THAT(values(reader->next({}), "picture"), testing::UnorderedElementsAre(0, 0, 0, 0, 1, 1, 1, 1));
  EXPECT_EQ(reader->position(), (nlohmann::json{{"epoch", 7}, {"batch", 0}}));
  EXPECT_EQ(reader->samples(), 3);
}

TEST(BucketReader, CountsPicturesAndBatches) {
  const auto pictures = std::make_shared<Pictures>();
  pictures->sizes = {{10, 10}, {20, 20}, {32, 96}, {10, 10}, {10, 10}};
  pictures->repeats_of_each = {2, 1, 1, 3, 1};
  EXPECT_THAT(reader_of({.batch_size = 2}, pictures)->counts(),
              ElementsAre("bucket 32x96: 1 picture, 0 batches, 1 row waits for the next epoch",
                          "bucket 64x64: 4 pictures in 7 rows, 3 batches, 1 row waits for the next epoch"));
  EXPECT_THAT(reader_of({.batch_size = 2}, pictures, prior_of(3))->counts(),
              ElementsAre("bucket 32x96: 1 picture and 3 of the prior, 1 batch",
                          "bucket 64x64: 4 pictures in 7 rows and 3 of the prior, 7 batches"));
  EXPECT_THAT(reader_of({.batch_size = 3, .shuffle = false, .counts_once = true}, pictures)->counts(),
              ElementsAre("bucket 32x96: 1 picture, 1 batch", "bucket 64x64: 4 pictures, 2 batches"));
}

TEST(BucketReader, CountsEachHeldOutPictureOnce) {
  const auto pictures = Pictures::random(41, 3);
  for (const int rank : {0, 1}) {
    const auto reader =
        reader_of({.batch_size = 4, .rank = rank, .ranks = 2, .shuffle = false, .counts_once = true}, pictures);
    const auto all = reader_of({.batch_size = 4, .shuffle = false, .counts_once = true}, pictures);
    EXPECT_EQ(all->samples() % 4, 0);
    std::map<int64_t, int64_t> counted;
    for (int64_t i = 0; i < all->samples() / 4; ++i) {
      const tensor::Batch batch = all->next({});
      EXPECT_TRUE(equal(reader->next({}), batch.part(2 * rank, 2)));
      for (size_t row = 0; row < 4; ++row)
        if (batch.at("weights")[static_cast<int64_t>(row)].item<float>() > 0) ++counted[values(batch, "picture")[row]];
    }
    EXPECT_EQ(counted.size(), 41u);
    for (const auto& [picture, times] : counted) EXPECT_EQ(times, 1) << picture;
    EXPECT_EQ(all->next({}).at("weights").sum().item<float>(), 0) << "nothing counts twice";
  }
}

TEST(BucketReader, GivesIgnoredFieldsTheirValue) {
  struct Labelled : Pictures {
    tensor::Batch make(int64_t rows, const BucketShape& bucket) const override {
      tensor::Batch batch = Pictures::make(rows, bucket);
      batch.add("labels", {at::ones({rows, 2}, at::kLong), {Dim::Row, Dim::Other}, -100});
      return batch;
    }
  };
  const auto pictures = std::make_shared<Labelled>();
  pictures->sizes = {{64, 64}, {64, 64}, {64, 64}};
  pictures->repeats_of_each = {1, 1, 1};
  BucketReader reader(pictures,
                      {.batches = {.batch_size = 4, .shuffle = false, .counts_once = true}, .buckets = kBuckets});
  const at::Tensor labels = reader.next({}).at("labels");
  EXPECT_TRUE(labels.narrow(0, 0, 3).eq(1).all().item<bool>());
  EXPECT_TRUE(labels.narrow(0, 3, 1).eq(-100).all().item<bool>());
}

// Row 2 i is a training picture, row 2 i + 1 one of the prior, and each cycle through the prior's pictures of a bucket
// has each once.
TEST(BucketReader, TakesHalfOfEachBatchFromThePriorInCycles) {
  const auto pictures = Pictures::random(50), prior = prior_of(13);
  BucketPictures of_prior;
  {
    std::vector<PictureSize> own, others;
    for (int64_t i = 0; i < pictures->count(); ++i) own.push_back(pictures->size(i));
    for (int64_t i = 0; i < prior->count(); ++i) others.push_back(prior->size(i));
    of_prior = prior_of_buckets(kBuckets, pictures_of_buckets(kBuckets, own), others);
  }
  const auto reader = reader_of({.batch_size = 4, .seed = 5}, pictures, prior);
  std::map<size_t, std::map<int64_t, int64_t>> times;
  std::set<int64_t> seeds;
  int64_t rows = 0;
  for (; reader->position()["epoch"] < 6; rows += 4) {
    const tensor::Batch batch = reader->next({});
    EXPECT_THAT(values(batch, "set"), ElementsAre(0, 1, 0, 1));
    const std::vector<int64_t> shown = values(batch, "picture");
    const size_t bucket = nearest_bucket(kBuckets, pictures->size(shown[0]));
    for (const size_t row : {1, 3}) ++times[bucket][shown[row]];
    for (const int64_t seed : values(batch, "seed")) seeds.insert(seed);
  }
  EXPECT_EQ(static_cast<int64_t>(seeds.size()), rows) << "the noise of two rows is equal";
  EXPECT_GT(rows / 2, 6 * 50 - 2 * static_cast<int64_t>(kBuckets.size()));
  for (const auto& [bucket, each] : times) {
    int64_t least = INT64_MAX, most = 0;
    for (const int64_t picture : of_prior[bucket]) {
      const int64_t n = each.contains(picture) ? each.at(picture) : 0;
      least = std::min(least, n), most = std::max(most, n);
    }
    for (const auto& [picture, n] : each) EXPECT_THAT(of_prior[bucket], testing::Contains(picture));
    EXPECT_LE(most - least, 1) << "bucket " << bucket;
  }
  EXPECT_THAT(reader->take_notices(), ElementsAre("notice of set 0", "notice of set 1"));
}

TEST(BucketReader, RefusesOptionsThatDoNotFit) {
  const auto pictures = Pictures::random(5);
  const auto refusal = [&](const BatchOptions& batches, const std::shared_ptr<Pictures>& prior = nullptr) {
    return test::thrown_message([&] { reader_of(batches, pictures, prior); });
  };
  EXPECT_THAT(refusal({.batch_size = 3}, prior_of(2)),
              HasSubstr("prior needs an even batch_size, because half of each batch is its own: got 3"));
  EXPECT_THAT(refusal({.batch_size = 1}, prior_of(2)), HasSubstr("even batch_size"));
  EXPECT_THAT(refusal({.batch_size = 2}, prior_of(0)), HasSubstr("the prior must have pictures"));
  EXPECT_THAT(refusal({.batch_size = 2, .counts_once = true}, prior_of(2)), HasSubstr("an evaluation has no prior"));
  EXPECT_THAT(refusal({.batch_size = 3, .ranks = 2}), HasSubstr("batch_size must be divisible"));
  EXPECT_THAT(refusal({.batch_size = 0}), HasSubstr("batch_size"));
  EXPECT_THAT(test::thrown_message([&] { reader_of({.batch_size = 1}, Pictures::random(0)); }),
              HasSubstr("there must be pictures"));
  const auto unmarked = [&](std::vector<std::string> zeroed) {
    return test::thrown_message([&] {
      BucketReader(pictures,
                   {.batches = {.batch_size = 2, .counts_once = true}, .buckets = kBuckets, .zeroed = zeroed});
    });
  };
  EXPECT_THAT(unmarked({}), HasSubstr("needs a field that marks rows which do not count"));
  EXPECT_THAT(unmarked({"weight"}), HasSubstr("weight"));
  EXPECT_THAT(unmarked({"weights"}), testing::IsEmpty());
}

TEST(BucketReader, RefusesAPositionOfOtherBatches) {
  const auto pictures = Pictures::random(30);
  Batches batches(reader_of({.batch_size = 4, .seed = 8}, pictures, prior_of(3)), false);
  batches.next();
  const auto refused = [&](const std::function<void(nlohmann::json&)>& edit) {
    nlohmann::json state = batches.state();
    edit(state);
    return test::thrown_message([&] { batches.restore(state); });
  };
  EXPECT_EQ(refused([](auto&) {}), "");
  EXPECT_THAT(refused([](auto& s) { s["batch_size"] = 2; }), HasSubstr("batch_size was 2, now it is 4"));
  EXPECT_THAT(refused([](auto& s) { s["buckets"]["64x64"] = 1000; }), HasSubstr("64x64 was 1000, now it is"));
  EXPECT_THAT(refused([](auto& s) { s["prior"]["pictures"] = 9; }), HasSubstr("pictures was 9, now it is 3"));
  EXPECT_THAT(refused([](auto& s) { s["prior"]["buckets"] = 9; }), HasSubstr("buckets was 9"));
  EXPECT_THAT(refused([](auto& s) { s["pictures"] = 9; }), HasSubstr("pictures was 9"));
  EXPECT_THAT(refused([](auto& s) { s["seed"] = 9; }), HasSubstr("seed was 9, now it is 8"));
  EXPECT_THAT(refused([](auto& s) { s["batch"] = 1000; }), HasSubstr("damaged: epoch 0, batch 1000"));
  EXPECT_THAT(refused([](auto& s) { s["batch"] = -1; }), HasSubstr("damaged"));
  EXPECT_THAT(refused([](auto& s) { s["epoch"] = int64_t{1} << 31; }), HasSubstr("damaged"));
  EXPECT_THAT(refused([](auto& s) { s.erase("epoch"); }), HasSubstr("damaged"));
}

}  // namespace
}  // namespace colossal::data::bucket_reader_test
