// Latents of pictures before training: the pictures and their crops, the cache, its samples, and what its key has.
#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <set>
#include <thread>

#include "colossal/base/checksum.h"
#include "colossal/base/file.h"
#include "colossal/data/pictures/picture.h"
#include "colossal/models/caption_parts.h"
#include "colossal/run/objectives/diffusion/drawn_pictures.h"
#include "colossal/run/objectives/diffusion/latent_cache.h"
#include "colossal/run/objectives/diffusion/latent_samples.h"
#include "colossal/run/objectives/diffusion/latents_of_run.h"
#include "colossal/text/captions.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::run::latents_test {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr int64_t kMaxBytes = 1 << 20;

at::Tensor numbers(double first, const std::vector<int64_t>& sizes) {
  return at::full(sizes, first, at::kFloat) + at::arange(sizes.back()) / 8;
}

class LatentCaches : public testing::Test {
 protected:
  LatentCache open(const LatentCacheKey& key = {"a", "b", "F32"}) const { return {folder_.path(), key}; }
  /// Writes a shard and returns its path without the end of its name.
  std::string add(const std::string& id) const {
    open().add({{id, numbers(1, {4, 2, 2})}, {LatentCache::mirrored_name(id), numbers(2, {4, 2, 2})}});
    for (const auto& file : fs::directory_iterator(folder_.path()))
      if (file.path().extension() == ".json") return (file.path().parent_path() / file.path().stem()).string();
    return "";
  }
  test::TemporaryFolder folder_;
};

TEST_F(LatentCaches, HaveWhatWasAdded) {
  LatentCache cache = open();
  EXPECT_FALSE(cache.has_picture("x"));
  add("x");
  const tensor::Batch star = models::caption_batch(numbers(3, {1, 5, 4}), numbers(5, {1, 3}), numbers(6, {1, 5}));
  cache.add(LatentCache::tensors_of("a star", star));
  cache.add(LatentCache::tensors_of("", models::caption_batch(numbers(4, {1, 5, 4}))));
  cache.add({});
  EXPECT_FALSE(cache.has_picture("x")) << "before refresh()";
  cache.refresh();
  const LatentCache again = open();
  for (const LatentCache* one : {&std::as_const(cache), &again}) {
    EXPECT_TRUE(one->has_picture("x") && one->has_caption("a star") && one->has_caption(""));
    EXPECT_FALSE(one->has_picture("y") || one->has_caption("a heart") || one->has_picture("a star"));
    EXPECT_TRUE(at::equal(one->picture("x", false), numbers(1, {4, 2, 2})));
    EXPECT_TRUE(at::equal(one->picture("x", true), numbers(2, {4, 2, 2})));
    const tensor::Batch found = one->caption("a star");
    ASSERT_EQ(found.fields().size(), star.fields().size());
    for (const auto& [name, field] : star.fields()) EXPECT_TRUE(at::equal(found.at(name), field.tensor)) << name;
    EXPECT_EQ(one->caption("").fields().size(), 1);
    EXPECT_THAT(test::thrown_message([&] { one->picture("y", false); }), HasSubstr("must have y"));
  }
}

TEST_F(LatentCaches, LackShardsOfAnotherKey) {
  add("x");
  EXPECT_TRUE(open().has_picture("x"));
  for (const LatentCacheKey& key :
       {LatentCacheKey{"c", "b", "F32"}, LatentCacheKey{"a", "c", "F32"}, LatentCacheKey{"a", "b", "F64"}}) {
    EXPECT_FALSE(open(key).has_picture("x"));
    open(key).add({{"x", numbers(7, {1})}});
    EXPECT_TRUE(at::equal(open(key).picture("x", false), numbers(7, {1})));
  }
  EXPECT_TRUE(at::equal(open().picture("x", false), numbers(1, {4, 2, 2}))) << "the other keys have their own shards";
}

TEST_F(LatentCaches, LackDamagedShardsUntilTheyAreMadeAgain) {
  const std::string shard = add("x"), tensors = shard + ".safetensors", note = shard + ".json";
  const std::string whole = read_file(tensors, kMaxBytes), words = read_file(note, kMaxBytes);
  std::string flipped = whole;
  flipped.back() = static_cast<char>(flipped.back() ^ 1);
  const auto lacks = [&](const std::string& file, const std::string& bytes) {
    write_file(file, bytes);
    const bool is_lacking = !open().has_picture("x");
    EXPECT_FALSE(is_lacking && (add("x"), !open().has_picture("x"))) << "made again";
    return is_lacking;
  };
  EXPECT_TRUE(lacks(tensors, flipped));
  EXPECT_TRUE(lacks(tensors, whole.substr(0, whole.size() - 3)));
  EXPECT_TRUE(lacks(tensors, ""));
  EXPECT_TRUE(lacks(note, ""));
  EXPECT_TRUE(lacks(note, "[]"));
  EXPECT_TRUE(lacks(note, R"({"key": 3, "checksum": []})"));
  fs::remove(note);
  EXPECT_FALSE(open().has_picture("x")) << "the note is written last";
  write_file(note, words);
  EXPECT_TRUE(open().has_picture("x"));
  fs::remove(tensors);
  EXPECT_FALSE(open().has_picture("x"));
}

TEST_F(LatentCaches, TakeShardsOfTwoWritersAtOnce) {
  const auto write = [&](int64_t rank) {
    for (int64_t i = 0; i < 20; ++i)
      open().add({{"both", numbers(1, {64})}, {concat("own-", rank, "-", i), numbers(static_cast<double>(i), {64})}});
    open().add({{"both", numbers(1, {64})}});  // a shard of this name comes from each
  };
  std::thread other([&] { write(1); });
  write(0);
  other.join();
  const LatentCache cache = open();
  for (const int64_t rank : {0, 1})
    for (int64_t i = 0; i < 20; ++i)
      EXPECT_TRUE(at::equal(cache.picture(concat("own-", rank, "-", i), false), numbers(static_cast<double>(i), {64})));
  EXPECT_TRUE(at::equal(cache.picture("both", false), numbers(1, {64})));
  EXPECT_THAT(test::thrown_message([&] { LatentCache(folder_ / "no such folder", {}).picture("x", false); }),
              HasSubstr("must have x"));
}

/// Pictures of a folder, for a model of latents of 4 x 4 cells of 2 pixels.
class Pictures : public testing::Test {
 protected:
  Pictures() {
    config_.data.path = folder_.path();
    config_.data.held_out = 0;
    source_.sizes = {.channels = 4, .height = 4, .width = 4, .text = 8, .captions = {{.preset = "clip-text-tiny"}}};
    source_.factor = 2;
    source_.captions = {{"clip-text-tiny", "bytes"}};
    source_.vae = "autoencoder-kl-tiny";
    keys_.buckets = 2;
  }
  void write(const std::string& name, int64_t width, int64_t height, uint8_t value,
             const std::string& caption = "a star") const {
    folder_.write(
        name + ".png",
        data::encode_png({width, height, std::vector<uint8_t>(static_cast<size_t>(width * height * 3), value)}));
    folder_.write(name + ".txt", caption);
  }
  DrawnPictures open() const { return open_drawn_pictures(config_, keys_, source_); }
  /// Returns the names of pictures.
  static std::set<std::string> names(const DrawnPictures& pictures, const std::vector<int64_t>& indices) {
    std::set<std::string> all;
    for (const int64_t i : indices) all.insert(pictures.files->at(i).name);
    return all;
  }
  test::TemporaryFolder folder_;
  Config config_;
  PipelineSource source_;
  DrawnDataKeys keys_;
};
using data::PictureSize;

// A stamp that is known stands for the content of its file, which is then not read.
TEST_F(Pictures, KnowFilesThatStay) {
  const test::TemporaryFolder stored;
  const auto hour_ago = std::filesystem::file_time_type::clock::now() - std::chrono::hours(1);
  const auto age = [&](const std::string& name) { std::filesystem::last_write_time(folder_ / name, hour_ago); };
  for (int i = 0; i < 3; ++i) write(concat(i), 8, 8, static_cast<uint8_t>(50 * i));
  keys_.latents = stored / "latents";
  const std::string path = stored / "latents/checksums.jsonl", first = open().at(0).content;
  EXPECT_FALSE(std::filesystem::exists(path)) << "changed just now: they may change again at the same time";
  for (const char* name : {"0.png", "1.png", "2.png"}) age(name);
  const DrawnPictures pictures = open();
  EXPECT_EQ(pictures.at(0).content, first);
  std::string lines = read_file(path, 1 << 20);
  lines.replace(lines.find(first), first.size(), "of-the-store");
  write_file(path, lines + "damaged\n[1]\n");
  EXPECT_EQ(open().at(0).content, "of-the-store");
  write("0", 8, 8, 7);  // as many bytes, at the same time
  age("0.png");
  const DrawnPictures changed = open();
  EXPECT_NE(changed.at(0).content, first);
  EXPECT_EQ(changed.at(0).content, file_checksum(folder_ / "0.png"));
  EXPECT_EQ(changed.at(1).content, pictures.at(1).content);
  keys_.latents = "none";
  config_.run.folder = stored / "run";
  EXPECT_EQ(open().at(0).content, changed.at(0).content);
  EXPECT_TRUE(std::filesystem::exists(stored / "run/latents/checksums.jsonl"));
}

TEST_F(Pictures, StayOutByTheirNames) {
  for (int i = 0; i < 60; ++i) write(concat("picture-", i), 8, 8, static_cast<uint8_t>(i));
  config_.data.held_out = 0.3;
  const DrawnPictures pictures = open();
  const std::set<std::string> out = names(pictures, pictures.held_out);
  EXPECT_NEAR(static_cast<double>(out.size()), 18, 12);
  EXPECT_EQ(pictures.training.size() + out.size(), 60u);
  write("a-further-one", 8, 8, 99);
  const DrawnPictures more = open();
  std::set<std::string> still = names(more, more.held_out);
  still.erase("a-further-one.png");
  EXPECT_EQ(still, out) << "a further picture moves no other one";
  config_.data.held_out = 0.5;
  const DrawnPictures half = open();
  const std::set<std::string> greater = names(half, half.held_out);
  EXPECT_TRUE(std::includes(greater.begin(), greater.end(), out.begin(), out.end()));
  config_.training.evaluate_batches = 0;
  EXPECT_THAT(open().held_out, IsEmpty());
  config_.training.evaluate_batches = 1;
  config_.data.held_out = 1;
  EXPECT_THAT(test::thrown_message([&] { open(); }), HasSubstr("set data.held_out lower"));
}

TEST_F(Pictures, HaveAnIdOfTheirBytesAndTheirCrop) {
  write("a", 8, 8, 1);
  write("b", 8, 8, 2);
  const DrawnPictures first = open();
  ASSERT_THAT(first.pictures, SizeIs(2));
  const PictureSize square{8, 8};
  EXPECT_THAT(first.at(0).crops, ElementsAre(square));
  EXPECT_NE(first.at(0).id(square), first.at(1).id(square));
  EXPECT_NE(first.at(0).id(square), first.at(0).id({12, 4}));
  fs::rename(folder_ / "a.png", folder_ / "c.png");
  fs::rename(folder_ / "a.txt", folder_ / "c.txt");
  write("c", 8, 8, 1, "a heart");
  EXPECT_EQ(open().at(1).id(square), first.at(0).id(square)) << "the name and the caption do not matter";
  write("b", 8, 8, 3);
  EXPECT_NE(open().at(0).id(square), first.at(1).id(square));
}

TEST_F(Pictures, FitTheirBucketAndHeldOutOnesTheSize) {
  for (int i = 0; i < 12; ++i) write(concat("wide-", i), 32, 8, static_cast<uint8_t>(200));
  config_.data.held_out = 0.4;
  const DrawnPictures pictures = open();
  ASSERT_THAT(pictures.held_out, testing::Not(IsEmpty()));
  EXPECT_THAT(pictures.at(pictures.training.at(0)).crops, ElementsAre(PictureSize{16, 4}));
  EXPECT_THAT(pictures.at(pictures.held_out.at(0)).crops, ElementsAre(PictureSize{8, 8}));
  const at::Tensor pixels = pixels_of(pictures, 0, {16, 4});
  EXPECT_EQ(pixels.sizes(), at::IntArrayRef({3, 4, 16}));
  EXPECT_TRUE(at::allclose(pixels, at::full_like(pixels, 200 / 127.5 - 1)));
  keys_.buckets = 0;
  EXPECT_THAT(open().buckets, ElementsAre(PictureSize{8, 8}));
  keys_.buckets = 3;
  EXPECT_THAT(test::thrown_message([&] { open(); }), HasSubstr("buckets"));
  keys_.size = {8};
  EXPECT_THAT(test::thrown_message([&] { open(); }), HasSubstr("a width and a height: got 1 numbers"));
}

// A picture is cropped to each bucket that shows it; the bucket nearest to its own shape may have nothing to learn.
TEST_F(Pictures, OfferAPriorInTheBucketsOfThoseToLearn) {
  write("own", 8, 8, 1);
  folder_.write("class/metadata.jsonl", R"({"file_name": "wide.png", "text": "a dog"}
{"file_name": "square.png", "text": "a dog"})");
  const auto png = [](int64_t width, int64_t height) {
    return data::encode_png({width, height, std::vector<uint8_t>(static_cast<size_t>(width * height * 3), 7)});
  };
  folder_.write("class/wide.png", png(32, 8));
  folder_.write("class/square.png", png(8, 8));
  config_.data.path = folder_.write("metadata.jsonl", R"({"file_name": "own.png", "text": "my dog"})");
  keys_.prior = folder_ / "class";
  const DrawnPictures prior = open_prior(config_, keys_, source_, open());
  EXPECT_THAT(prior.training, ElementsAre(0, 1));
  for (const DrawnPicture& one : prior.pictures) EXPECT_THAT(one.crops, ElementsAre(PictureSize{8, 8}));
  write("wide", 32, 8, 1);
  write("tall", 8, 32, 1);
  folder_.write("metadata.jsonl", R"({"file_name": "wide.png", "text": "my dog"}
{"file_name": "tall.png", "text": "my dog"})");
  const DrawnPictures shared = open_prior(config_, keys_, source_, open());
  std::set<std::string> sizes;
  for (const DrawnPicture& one : shared.pictures)
    for (const PictureSize& crop : one.crops) sizes.insert(data::to_string(crop));
  EXPECT_THAT(sizes, ElementsAre("16x4", "4x16")) << "each bucket has some";
}

TEST_F(Pictures, LeaveOutThoseWithBrokenPixels) {
  write("a", 8, 8, 1);
  write("b", 8, 8, 2);
  std::string png = read_file(folder_ / "b.png", kMaxBytes);
  png[png.size() - 17] ^= 1;  // the last byte of its pixels
  folder_.write("b.png", png);
  DrawnPictures pictures = open();
  ASSERT_THAT(pictures.training, SizeIs(2)) << "its header is whole";
  EXPECT_THAT(test::thrown_message([&] { pixels_of(pictures, 1, {8, 8}); }),
              testing::AllOf(HasSubstr("b.png"), HasSubstr("set data.on_error = \"skip\"")));
  const std::string of_broken = pictures.at(1).content;
  skip_broken(pictures, [&](const DrawnPicture& one) { return one.content == of_broken; });
  EXPECT_THAT(pictures.training, SizeIs(2)) << "what is known is not decoded again";
  skip_broken(pictures);
  EXPECT_THAT(pictures.training, ElementsAre(0));
  ASSERT_THAT(pictures.notices, SizeIs(1));
  EXPECT_THAT(pictures.notices.front(), testing::AllOf(testing::StartsWith("skipped: "), HasSubstr("b.png")));
  keys_.prior = config_.data.path;
  config_.data.on_error = "skip";
  const DrawnPictures prior = open_prior(config_, keys_, source_, pictures);
  EXPECT_THAT(prior.training, ElementsAre(0));
  EXPECT_THAT(prior.at(1).crops, IsEmpty());
  LatentCache cache(folder_ / "latents", {});
  cache.add({{concat(of_broken, "-", data::to_string(pictures.buckets.back())), at::zeros({2})}});
  cache.refresh();
  EXPECT_THAT(open_prior(config_, keys_, source_, pictures, encoded_in(cache, false)).training, SizeIs(2))
      << "what was encoded is not decoded again";
  folder_.write("a.png", png);
  pictures = open();
  EXPECT_THAT(test::thrown_message([&] { skip_broken(pictures); }), HasSubstr("none that can be decoded; skipped: "));
}

TEST_F(Pictures, HaveTheCaptionsOfTheNamedColumn) {
  write("own", 8, 8, 1);
  folder_.write("metadata.jsonl", R"({"file_name": "own.png", "text": "a star", "words": "a heart"})");
  EXPECT_EQ(open().files->at(0).caption, "a star");
  config_.data.text_columns = {"words"};
  EXPECT_EQ(open().files->at(0).caption, "a heart");
  config_.data.text_columns = {"text", "words"};
  EXPECT_THAT(test::thrown_message([&] { open(); }), HasSubstr("one column that has the captions: got text, words"));
}

TEST_F(Pictures, AddDrawnShapesThatAreHeldOut) {
  config_.data.path = "builtin-shapes:20";
  config_.data.held_out = 0.2;
  const DrawnPictures pictures = open();
  EXPECT_THAT(pictures.training, SizeIs(20));
  EXPECT_THAT(pictures.held_out, ElementsAre(20, 21, 22, 23));
  EXPECT_EQ(pictures.files->at(6).caption, "a star");
  EXPECT_EQ(pictures.at(6).id({8, 8}), open().at(6).id({8, 8}));
  EXPECT_NE(pictures.at(6).id({8, 8}), pictures.at(16).id({8, 8}));
}

TEST_F(Pictures, HaveTheClassNumbersOfTheModel) {
  source_.sizes.text = 0;
  source_.sizes.classes = 2;
  source_.class_names = {"star", "heart"};
  for (const char* name : {"heart/0.png", "heart/1.png", "star/0.png"})
    folder_.write(name, data::encode_png({8, 8, std::vector<uint8_t>(192, 5)}));
  const auto labels = [&] {
    std::vector<int64_t> all;
    for (const DrawnPicture& one : open().pictures) all.push_back(one.label);
    std::sort(all.begin(), all.end());
    return all;
  };
  EXPECT_THAT(labels(), ElementsAre(0, 1, 1));
  EXPECT_THAT(open().buckets, ElementsAre(PictureSize{8, 8})) << "a model of classes draws one size";
  source_.class_names.clear();
  EXPECT_THAT(labels(), ElementsAre(0, 0, 1)) << "by the order of the folders";
  source_.sizes.classes = 1;
  EXPECT_THAT(test::thrown_message([&] { open(); }), HasSubstr("set model.classes"));
  source_.sizes.classes = 2;
  keys_.size = {12, 8};
  EXPECT_THAT(test::thrown_message([&] { open(); }), HasSubstr("must be that of the model, 8x8"));
}

/// Samples of three pictures whose latents are made up.
class LatentRows : public Pictures {
 protected:
  LatentRows() {
    for (int i = 0; i < 3; ++i) write(concat(i), 8, 8, static_cast<uint8_t>(i), concat("caption ", i));
    options_.noised.keys = completed({}, {.target = "sample", .schedule = "scaled-linear", .guidance = 1});
    options_.noised.channels = 4;
    options_.noised.text = 8;
    options_.vae = {.channels = 4, .factor = 2, .scaling = 2, .shift = 0.5};
  }
  /// Picture i has the mean i + 1, mirrored 100 + i, and the deviation 0.5.
  LatentSamples samples() const {
    const auto pictures = std::make_shared<DrawnPictures>(open());
    auto cache = std::make_shared<LatentCache>(folder_ / "latents", LatentCacheKey{});
    std::map<std::string, at::Tensor> values;
    const auto add_caption = [&](const std::string& caption, double value) {
      values.merge(LatentCache::tensors_of(caption, models::caption_batch(at::full({1, 77, 8}, value, at::kFloat))));
    };
    add_caption("", -1);
    const at::Tensor deviation = at::full({4, 4, 4}, std::log(0.25), at::kFloat);
    for (int64_t i = 0; i < pictures->files->count(); ++i) {
      const std::string id = pictures->at(i).id({8, 8});
      const auto mean = static_cast<double>(i);
      values[id] = at::cat({at::full({4, 4, 4}, mean + 1, at::kFloat), deviation});
      values[LatentCache::mirrored_name(id)] = at::cat({at::full({4, 4, 4}, mean + 100, at::kFloat), deviation});
      add_caption(pictures->files->at(i).caption, mean);
    }
    cache->add(values);
    cache->refresh();
    return {pictures, cache, options_};
  }
  static tensor::Batch filled(const LatentSamples& samples, int64_t index, uint64_t seed) {
    tensor::Batch batch = samples.make(1, {{8, 8}});
    samples.fill(index, seed, {{8, 8}}, batch, 0);
    return batch;
  }
  LatentOptions options_;
};

TEST_F(LatentRows, DrawANewSampleInEveryStep) {
  options_.noised.keys.drop_label = 0;
  const LatentSamples all = samples();
  EXPECT_EQ(all.count(), 3);
  EXPECT_EQ(all.size(1), (PictureSize{8, 8}));
  EXPECT_TRUE(at::equal(filled(all, 1, 5).at(kTargets), filled(all, 1, 5).at(kTargets)));
  EXPECT_FALSE(at::equal(filled(all, 1, 5).at(kTargets), filled(all, 1, 6).at(kTargets)));
  std::vector<at::Tensor> found;
  for (uint64_t seed = 0; seed < 40; ++seed) found.push_back(filled(all, 1, seed).at(kTargets));
  const at::Tensor latents = at::stack(found);  // 2560 numbers
  EXPECT_NEAR(latents.mean().item<double>(), (2 - 0.5) * 2, 0.1);
  EXPECT_NEAR(latents.std().item<double>(), 0.5 * 2, 0.1);
  const tensor::Batch one = filled(all, 2, 5);
  EXPECT_EQ(one.at(kNoised).sizes(), at::IntArrayRef({1, 4, 4, 4}));
  EXPECT_TRUE(one.at(kText).eq(2).all().item<bool>());
}

TEST_F(LatentRows, GetTheirLatentsInTheStepThatEncodesThem) {
  options_.noised.mirror = true;
  options_.noised.keys.offset_noise = 0.1;
  options_.captions = {std::make_shared<const text::Captions>(text::make_captions("bytes"))};
  const LatentSamples encoded = samples();
  const auto pictures = std::make_shared<DrawnPictures>(open());
  const LatentCache cache(folder_ / "latents", {});
  options_.noised.unencoded = 2;
  const LatentSamples unencoded(pictures, nullptr, options_);
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const tensor::Batch want = filled(encoded, 1, seed), batch = filled(unencoded, 1, seed);
    EXPECT_FALSE(batch.find(kText).defined());
    // What the encoders would find out of the pixels and the ids.
    const bool is_mirrored = want.at(kTargets).mean().item<double>() > 50;
    const at::Tensor ids = batch.at(kIds)[0];
    const bool is_dropped = ids[2].item<int64_t>() == text::make_captions("bytes").ids().pad;
    const std::string caption = is_dropped ? "" : "caption 1";
    EXPECT_TRUE(at::equal(ids, at::tensor((*options_.captions[0])(caption).ids, at::kLong)));
    const at::Tensor moments = cache.picture(pictures->at(1).id({8, 8}), is_mirrored);
    const at::Tensor latent = drawn_latent(options_.vae, moments, batch.at(kSampleNoise)[0]);
    const tensor::Batch got = with_latents(batch, latent.unsqueeze(0), cache.caption(caption));
    ASSERT_EQ(got.fields().size(), want.fields().size());
    for (const auto& [name, field] : want.fields()) EXPECT_TRUE(at::equal(got.at(name), field.tensor)) << name;
  }
}

TEST_F(LatentRows, ShowTheEmptyCaptionByTheShareOfDroppedLabels) {
  options_.noised.keys.drop_label = 0.3;
  const LatentSamples all = samples();
  int dropped = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const at::Tensor text = filled(all, 1, seed).at(kText);
    const bool is_empty = text.eq(-1).all().item<bool>();
    EXPECT_TRUE(is_empty || text.eq(1).all().item<bool>());
    dropped += is_empty ? 1 : 0;
  }
  EXPECT_NEAR(dropped, 90, 4 * std::sqrt(300 * 0.3 * 0.7));
}

TEST_F(LatentRows, MirrorEverySecondPicture) {
  const LatentSamples plain = samples();
  options_.noised.mirror = true;
  const LatentSamples all = samples();
  int mirrored = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    EXPECT_LT(filled(plain, 1, seed).at(kTargets).mean().item<double>(), 50);
    mirrored += filled(all, 1, seed).at(kTargets).mean().item<double>() > 50 ? 1 : 0;
  }
  EXPECT_NEAR(mirrored, 50, 20);
}

TEST_F(LatentRows, MirrorControlPicturesWithTheirPictures) {
  data::Picture marked{8, 8, std::vector<uint8_t>(8 * 8 * 3, 0)};
  std::fill(marked.rgb.begin(), marked.rgb.begin() + 3, 255);  // white at the left end of the first row
  folder_.write("1.control.png", data::encode_png(marked));
  options_.noised.mirror = true;
  options_.noised.conditions = {{.name = models::kControl, .sizes = {3}, .per_cell = 2}};
  const LatentSamples all = samples();
  std::set<bool> seen;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const tensor::Batch row = filled(all, 1, seed);
    const bool is_mirrored = row.at(kTargets).mean().item<double>() > 50;
    seen.insert(is_mirrored);
    at::Tensor want = at::zeros({1, 3, 8, 8});
    want.select(2, 0).select(2, is_mirrored ? 7 : 0).fill_(1);
    EXPECT_TRUE(at::equal(row.at(models::kControl), want)) << seed;
  }
  EXPECT_THAT(seen, SizeIs(2));
}

TEST_F(LatentRows, HeldOutHaveTheMeanAndTheirCaption) {
  for (int i = 0; i < 20; ++i) write(concat("further-", i), 8, 8, static_cast<uint8_t>(50 + i), concat("further ", i));
  config_.data.held_out = 0.5;
  options_.noised.is_held_out = options_.noised.mirror = true;
  options_.noised.keys.drop_label = 1;
  const LatentSamples all = samples();
  ASSERT_GT(all.count(), 0);
  const auto index = static_cast<double>(open().held_out.at(0));
  const tensor::Batch batch = filled(all, 0, 5);
  EXPECT_TRUE(batch.at(kTargets).eq((index + 1 - 0.5) * 2).all().item<bool>());
  EXPECT_TRUE(batch.at(kText).eq(index).all().item<bool>());
  EXPECT_TRUE(at::equal(batch.at(kNoised), filled(all, 0, 6).at(kNoised))) << "whatever the seed";
}

// SDXL: height before width, of the file, of the crop's corner, and of what is learned.
TEST_F(LatentRows, TellTheSizesOfTheirPicture) {
  write("wide", 24, 16, 9);
  options_.noised.conditions = {{.name = models::kSizes, .sizes = {6}}};
  const at::Tensor sizes = filled(samples(), 3, 5).at(models::kSizes);
  EXPECT_TRUE(at::equal(sizes, at::tensor({16., 24., 0., 2., 8., 8.}, at::kFloat).unsqueeze(0))) << sizes;
}

TEST_F(LatentRows, CountByTheirWeight) {
  const double one = filled(samples(), 0, 1).at(kWeights).item<double>();
  options_.weight = 3;
  EXPECT_NEAR(filled(samples(), 0, 1).at(kWeights).item<double>(), 3 * one, 1e-6);
}

TEST_F(LatentRows, HaveTraitsThatFollowFromWhatIsLearned) {
  std::set<std::string> all{samples().traits().dump()};
  EXPECT_EQ(samples().traits().dump(), *all.begin());
  const auto is_new = [&] { return all.insert(samples().traits().dump()).second; };
  write("1", 8, 8, 1, "another caption");
  EXPECT_TRUE(is_new());
  write("1", 8, 8, 99, "another caption");
  EXPECT_TRUE(is_new());
  write("3", 8, 8, 3);
  EXPECT_TRUE(is_new());
  options_.noised.mirror = true;
  EXPECT_TRUE(is_new());
  options_.noised.keys.drop_label = 0.5;
  EXPECT_TRUE(is_new());
}

TEST_F(Pictures, GiveTheCacheOfARunItsFolderItsKeyAndItsCaptions) {
  write("a", 8, 8, 1, "a star");
  write("b", 8, 8, 2, "a heart");
  config_.run.folder = "runs/x";
  EXPECT_EQ(folder_of_latents(config_, keys_), "runs/x/latents");
  keys_.latents = "cache";
  EXPECT_EQ(folder_of_latents(config_, keys_), "cache");
  keys_.latents = "none";
  EXPECT_THAT(test::thrown_message([&] { folder_of_latents(config_, keys_); }), HasSubstr("data.latents = \"auto\""));
  source_.seed = 3;
  const LatentCacheKey key = key_of_latents(config_, source_);
  EXPECT_EQ(key.vae, "autoencoder-kl-tiny-3");
  EXPECT_EQ(key.text_encoder, "clip-text-tiny-3");
  EXPECT_EQ(key.dtype, "F32");
  config_.precision.mode = "fp64";
  EXPECT_EQ(key_of_latents(config_, source_).dtype, "F64");
  source_.sizes.captions.at(0).tokens = 256;
  EXPECT_EQ(key_of_latents(config_, source_).text_encoder, "clip-text-tiny-3-256") << "states of other tokens";
  source_.sizes.captions.at(0).tokens = 77;
  const DrawnPictures pictures = open();
  config_.training.sample_prompt = "a ring";
  EXPECT_THAT(captions_of(config_, source_, {&pictures}), ElementsAre("", "a heart", "a ring", "a star"));
  const std::vector<std::string> long_ones(7, std::string(100, 'x') + " end");
  EXPECT_THAT(caption_warnings(source_, {"a star"}), IsEmpty());
  EXPECT_THAT(caption_warnings(source_, long_ones), SizeIs(6));
  EXPECT_THAT(caption_warnings(source_, long_ones).back(), HasSubstr("2 more captions"));
  source_.sizes.text = 0;
  EXPECT_THAT(captions_of(config_, source_, {&pictures}), IsEmpty());
}

}  // namespace
}  // namespace colossal::run::latents_test
