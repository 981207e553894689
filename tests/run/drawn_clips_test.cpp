// Clips of training before they are encoded: their pixels, what an epoch uses, what is held out, and their names.
#include "colossal/run/objectives/diffusion/drawn_clips.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <set>

#include "colossal/base/seed.h"
#include "colossal/data/pictures/shapes.h"
#include "colossal/data/videos/clip_writer.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::run::drawn_clips_test {
namespace {

using data::BucketShape;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

class DrawnClips : public testing::Test {
 protected:
  DrawnClips() {
    config_.data.path = folder_.path();
    config_.data.held_out = 0;
    source_.sizes = {.channels = 3, .height = 8, .width = 8, .text = 8, .captions = {{.preset = "clip-text-tiny"}}};
    source_.sizes.frames = 4;
    source_.captions = {{"clip-text-tiny", "bytes"}};
    keys_.fps = 8;
  }
  /// Writes a clip whose frame i has the brightness 10 i.
  void write(const std::string& name, int64_t frames, int64_t width = 8) const {
    data::ClipWriter clip(folder_.write(name + ".gif", ""), {width, 8, 8});
    for (int64_t i = 0; i < frames; ++i)
      clip.add({width, 8, std::vector<uint8_t>(static_cast<size_t>(width * 24), static_cast<uint8_t>(10 * i))});
    clip.finish();
    folder_.write(name + ".txt", "words");
  }
  DrawnPictures open() const { return open_drawn_pictures(config_, keys_, source_); }
  data::ClipLengths lengths(int64_t rows = 2) const { return lengths_of_clips(keys_, source_, {rows}); }

  test::TemporaryFolder folder_;
  Config config_;
  PipelineSource source_;
  DrawnDataKeys keys_;
};

TEST_F(DrawnClips, ShowTheFramesOfTheirPart) {
  write("a", 6);
  folder_.write("b.png", data::encode_png({8, 8, std::vector<uint8_t>(192, 30)}));
  folder_.write("b.txt", "a picture");
  const DrawnPictures drawn = open();
  EXPECT_THAT(drawn.pictures,
              ElementsAre(testing::Field(&DrawnPicture::reached, 6), testing::Field(&DrawnPicture::reached, 1)));
  const at::Tensor part = pixels_of_part(drawn, 0, {{8, 8}, 3, 2});
  ASSERT_EQ(part.sizes(), at::IntArrayRef({3, 3, 8, 8}));
  for (int64_t frame = 0; frame < 3; ++frame)
    EXPECT_TRUE(part.select(1, frame).eq(static_cast<float>(10 * (2 + frame) / 127.5 - 1)).all().item<bool>()) << frame;
  EXPECT_EQ(pixels_of_part(drawn, 0, {{4, 2}, 2}).sizes(), at::IntArrayRef({3, 2, 2, 4}));
  const at::Tensor picture = pixels_of_part(drawn, 1, {{8, 8}, 1});
  ASSERT_EQ(picture.sizes(), at::IntArrayRef({3, 1, 8, 8}));
  EXPECT_TRUE(at::equal(picture.select(1, 0), pixels_of(drawn, 1, {8, 8})));
  EXPECT_THAT(test::thrown_message([&] { pixels_of_part(drawn, 0, {{8, 8}, 20}); }),
              testing::AllOf(HasSubstr("a.gif is cut short"), HasSubstr("set data.on_error = \"skip\"")));
}

TEST_F(DrawnClips, BeginWithThePictureOfTheSameShape) {
  config_.data.path = "builtin-shapes:10";
  keys_.frames = {1, 5};
  const DrawnPictures clips = open();
  source_.sizes.frames = 0;
  const DrawnPictures pictures = open();
  for (const int64_t index : {0, 7}) {
    const at::Tensor clip = pixels_of_part(clips, index, {{8, 8}, 5});
    EXPECT_TRUE(at::equal(clip.select(1, 0), pixels_of(pictures, index, {8, 8})));
    EXPECT_FALSE(at::equal(clip.select(1, 4), clip.select(1, 0)));
    EXPECT_TRUE(at::equal(pixels_of_part(clips, index, {{8, 8}, 2, 3}), clip.narrow(1, 3, 2)));
  }
}

TEST_F(DrawnClips, HaveAnIdOfTheirFramesPlaceAndRate) {
  write("a", 6);
  const DrawnPictures drawn = open();
  std::set<std::string> ids;
  for (const BucketShape& part : {BucketShape{{8, 8}, 3, 2}, {{8, 8}, 3, 1}, {{8, 8}, 2, 2}, {{4, 8}, 3, 2}})
    ids.insert(drawn.id(0, part));
  keys_.fps = 4;
  ids.insert(open().id(0, {{8, 8}, 3, 2}));
  EXPECT_THAT(ids, SizeIs(5));
  source_.sizes.frames = 0;
  config_.data.path = "builtin-shapes:4";
  const DrawnPictures pictures = open();
  EXPECT_EQ(pictures.id(0, {{8, 8}}), pictures.at(0).id({8, 8})) << "as latents of pictures are stored";
}

TEST_F(DrawnClips, NameThePartsThatARunUses) {
  for (int i = 0; i < 3; ++i) write(concat(i), 6);
  keys_.frames = {1, 4};
  keys_.keep = {1, 0.5};
  DrawnPictures drawn = open();
  choose_clips(drawn, lengths(), /*seed=*/3);
  add_parts(drawn, /*steps=*/6);
  std::set<std::string> needed;
  for (int64_t i = 0; i < 3; ++i)
    for (const BucketShape& part : drawn.at(i).parts) needed.insert(drawn.id(i, part));
  const data::BucketOrder order(data::streams_of(drawn.clips), {.rows_of_bucket = drawn.clips->batch_sizes()});
  std::set<std::string> used;
  int64_t epoch = 0;
  for (int64_t step = 0, batch = 0; step < 6; ++step, ++batch) {
    for (; batch >= order.batches(epoch); ++epoch) batch = 0;
    const data::BucketBatch from = order.batch(epoch, batch);
    for (int64_t row = 0; row < 2; ++row) {
      const data::Visit visit = order.visit(from, row);
      used.insert(drawn.id(visit.picture,
                           {{8, 8}, drawn.clips->frames_of(from.bucket), drawn.clips->start_of(from.bucket, visit)}));
    }
  }
  EXPECT_TRUE(std::includes(needed.begin(), needed.end(), used.begin(), used.end()));
  EXPECT_GT(used.size(), 4u);
  EXPECT_LE(needed.size(), 3u * static_cast<size_t>(epoch + 1)) << "and of no later epoch";
}

// Evaluations take the longest length up to that of the largest batches which a clip held out reaches.
TEST_F(DrawnClips, HoldOutThoseOfOneLength) {
  for (int i = 0; i < 4; ++i) write(concat("short-", i), 2);
  for (int i = 0; i < 4; ++i) write(concat("long-", i), 6);
  config_.data.held_out = 0.5;
  const auto held_out = [&](std::vector<int64_t> frames, std::vector<int64_t> sizes = {}) {
    keys_.frames = std::move(frames);
    keys_.batch_sizes = std::move(sizes);
    DrawnPictures drawn = open();
    const size_t all = drawn.held_out.size();
    choose_clips(drawn, lengths(), 1);
    if (drawn.held_out.size() < all) {
      EXPECT_THAT(drawn.notices, ElementsAre(HasSubstr(concat(all - drawn.held_out.size(), " of the ", all))));
    }
    for (const int64_t index : drawn.held_out) EXPECT_GE(drawn.at(index).reached, drawn.held_out_frames);
    return std::pair(drawn.held_out_frames, drawn.held_out.size());
  };
  const auto [frames, longest] = held_out({1, 5});
  EXPECT_EQ(frames, 5);
  const auto all = held_out({1, 5}, {16, 2});
  EXPECT_EQ(all.first, 1) << "batches of single frames are the largest";
  EXPECT_GT(all.second, longest);
  EXPECT_GT(longest, 0u);
}

TEST_F(DrawnClips, RefuseKeysOfClipsForPictures) {
  keys_ = {};
  source_.sizes.frames = 0;
  check_clip_keys(keys_, source_);
  keys_.batch_sizes = {4};
  EXPECT_THAT(test::thrown_message([&] { check_clip_keys(keys_, source_); }), HasSubstr("remove data.keep and"));
  source_.sizes.frames = 4;
  EXPECT_THAT(test::thrown_message([&] { lengths(); }), testing::IsEmpty());
  keys_.prior = "cats";
  EXPECT_THAT(test::thrown_message([&] { check_clip_keys(keys_, source_); }), HasSubstr("clips have no prior"));
}

}  // namespace
}  // namespace colossal::run::drawn_clips_test
