// The clips of each bucket, which change from epoch to epoch with the lengths that clips draw.
//
//   const data::ClipRowsOptions options{.shapes = 3, .seed = 1};
//   const auto clips = std::make_shared<const data::ClipRows>(measured, lengths, options);
//   const data::BucketOrder order(data::streams_of(clips), {.rows_of_bucket = clips->batch_sizes(), .seed = 1});
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "colossal/data/pictures/bucket_order.h"
#include "colossal/data/videos/clip_lengths.h"

namespace colossal::data {

/// The measures of a clip, by which it gets its bucket.
struct MeasuredClip {
  int64_t reached = 1;  ///< frames at the rate of the clips (frames_reached()); 1 for a picture
  int64_t shape = 0;    ///< index of its size among those of the buckets (nearest_bucket())
};

/// A clip as an epoch uses it.
struct ClipUse {
  int64_t clip = 0, bucket = 0;
  int64_t start = 0;  ///< number of its first frame in its video
};

/// Options of ClipRows.
struct ClipRowsOptions {
  int64_t shapes = 1;  ///< number of sizes
  double fps = 24;     ///< for messages
  uint64_t seed = 0;
};

/// The rows of all buckets. Bucket `length * shapes + shape` has the clips of one length and one size. In each epoch a
/// clip has one row in the bucket of the length that it draws (length_of_clip()), or none.
///
/// Everything is a function of (seed, epoch), so a position needs no more than that. The place in its video at which a
/// clip begins is drawn anew in the first kStarts epochs and then again as in these, so that stored latents of a long
/// run are those of a few places.
/// Memory: 8 bytes a clip of the last few epochs, and 8 bytes a bucket of all.
/// Cost:   the first use of an epoch draws the lengths of all clips in it and in the epochs before, once.
/// Thread safety: const members may be called from several threads.
class ClipRows {
 public:
  static constexpr int64_t kStarts = 8;

  /// `lengths` have all their lists (completed()).
  /// Errors ("data"): there are no clips; those of check_lengths_reached(); a shape outside [0, options.shapes); a
  ///                  `keep` that leaves so few clips that a batch would take kMaxEpochs epochs.
  ClipRows(std::vector<MeasuredClip> clips, ClipLengths lengths, const ClipRowsOptions& options);

  int64_t shapes() const { return options_.shapes; }
  int64_t buckets() const { return static_cast<int64_t>(lengths_.frames.size()) * options_.shapes; }
  /// Returns the frames of the clips of a bucket.
  int64_t frames_of(int64_t bucket) const { return lengths_.frames[static_cast<size_t>(bucket / options_.shapes)]; }
  /// Returns the rows of a batch of each bucket (BucketOrderOptions::rows_of_bucket).
  std::vector<int64_t> batch_sizes() const;

  /// Returns a JSON object of what must be the same whenever a position in these rows is restored: "clips", a checksum
  /// of all that decides the rows.
  nlohmann::json traits() const;

  /// Returns what RowStream has, of one bucket. at() knows the rows before the last epoch that before() was asked for.
  int64_t before(int64_t bucket, int64_t epoch) const;
  Visit at(int64_t bucket, int64_t row, uint64_t seed, bool shuffle) const;
  /// Returns true if no clip can ever be in the bucket.
  bool is_empty(int64_t bucket) const { return expected_.at(static_cast<size_t>(bucket)) == 0; }
  /// Returns the number of the first frame of the clip that is visited in a bucket (start_of_clip()).
  int64_t start_of(int64_t bucket, const Visit& visit) const;
  /// Returns all clips that an epoch uses.
  std::vector<ClipUse> uses(int64_t epoch) const;

  /// Returns a line for people about each bucket that has clips in an epoch, and one about the clips that are left out:
  /// "bucket 424x240 of 17 frames: 120 clips, 30 batches". `shapes` has the names of the sizes.
  std::vector<std::string> counts(int64_t epoch, const std::vector<std::string>& shapes) const;

 private:
  static constexpr double kMaxEpochs = 1000;
  using Epoch = std::vector<std::vector<int64_t>>;  // the clips of each bucket
  void expect_clips();
  Epoch draw(int64_t epoch) const;
  std::shared_ptr<const Epoch> clips_of(int64_t epoch) const;
  std::vector<int64_t> rows_before(int64_t epoch) const;

  std::vector<MeasuredClip> clips_;
  ClipLengths lengths_;
  ClipRowsOptions options_;
  std::vector<double> expected_;  // mean number of clips in an epoch, for each bucket
  mutable std::mutex mutex_;
  mutable std::map<int64_t, std::shared_ptr<const Epoch>> recent_;
  mutable std::vector<std::vector<int64_t>> before_;  // for each epoch, of each bucket the rows of all earlier epochs
};

/// Returns the stream of each bucket, for BucketOrder.
BucketOrder::Streams streams_of(const std::shared_ptr<const ClipRows>& clips);

}  // namespace colossal::data
