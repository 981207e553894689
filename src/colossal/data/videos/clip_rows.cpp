#include "colossal/data/videos/clip_rows.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "colossal/base/checksum.h"
#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/base/number.h"
#include "colossal/data/order.h"

namespace colossal::data {
namespace {

constexpr size_t kRecentEpochs = 4;  // whose clips are kept: batches have rows of this epoch and a few before

class ClipStream final : public RowStream {
 public:
  ClipStream(std::shared_ptr<const ClipRows> clips, int64_t bucket) : clips_(std::move(clips)), bucket_(bucket) {}
  int64_t before(int64_t epoch) const override { return clips_->before(bucket_, epoch); }
  Visit at(int64_t row, uint64_t seed, bool shuffle) const override { return clips_->at(bucket_, row, seed, shuffle); }
  int64_t pictures() const override { return rows(); }
  bool is_empty() const override { return clips_->is_empty(bucket_); }

 private:
  std::shared_ptr<const ClipRows> clips_;
  int64_t bucket_;
};

}  // namespace

ClipRows::ClipRows(std::vector<MeasuredClip> clips, ClipLengths lengths, const ClipRowsOptions& options)
    : clips_(std::move(clips)), lengths_(std::move(lengths)), options_(options) {
  std::vector<int64_t> reached;
  for (const MeasuredClip& clip : clips_) {
    require(clip.shape >= 0 && clip.shape < options_.shapes, "data", "the size of a clip must be one of ",
            options_.shapes, ": got ", clip.shape);
    reached.push_back(clip.reached);
  }
  check_lengths_reached(lengths_, reached, options_.fps);
  expect_clips();
  before_.emplace_back(static_cast<size_t>(buckets()), 0);
}

/// Finds how many clips a bucket has on average. A reader looks for the next batch epoch by epoch, so one must come
/// soon.
void ClipRows::expect_clips() {
  expected_.assign(static_cast<size_t>(buckets()), 0);
  for (const MeasuredClip& clip : clips_) {
    double left = 1;  // probability that no longer length takes the clip
    for (size_t i = lengths_.frames.size(); i-- > 0;) {
      if (clip.reached < lengths_.frames[i]) continue;
      expected_[i * static_cast<size_t>(options_.shapes) + static_cast<size_t>(clip.shape)] += left * lengths_.keep[i];
      left *= 1 - lengths_.keep[i];
    }
  }
  const std::vector<int64_t> sizes = batch_sizes();
  double batches = 0;
  for (size_t i = 0; i < sizes.size(); ++i) batches += expected_[i] / static_cast<double>(sizes[i]);
  require(batches * kMaxEpochs >= 1, "data", "keep must leave a batch in ", kMaxEpochs, " epochs at least: got one in ",
          1 / batches, " on average; raise data.keep or lower data.batch_sizes");
}

int64_t ClipRows::start_of(int64_t bucket, const Visit& visit) const {
  const uint64_t seed = seed_of_clip(options_.seed, visit.epoch % kStarts, visit.picture);
  return start_of_clip(clips_.at(static_cast<size_t>(visit.picture)).reached, frames_of(bucket), seed);
}

std::vector<ClipUse> ClipRows::uses(int64_t epoch) const {
  const std::unique_lock lock(mutex_);
  const auto clips = clips_of(epoch);
  std::vector<ClipUse> all;
  for (size_t i = 0; i < clips->size(); ++i) {
    const auto bucket = static_cast<int64_t>(i);
    for (const int64_t clip : (*clips)[i])
      all.push_back({clip, bucket, start_of(bucket, {.epoch = epoch, .picture = clip})});
  }
  return all;
}

std::vector<int64_t> ClipRows::batch_sizes() const {
  std::vector<int64_t> sizes;
  for (int64_t bucket = 0; bucket < buckets(); ++bucket)
    sizes.push_back(lengths_.batch_sizes.at(static_cast<size_t>(bucket / options_.shapes)));
  return sizes;
}

nlohmann::json ClipRows::traits() const {
  std::string lines = concat(options_.seed, " ", options_.fps, " ", options_.shapes, "\n");
  for (size_t i = 0; i < lengths_.frames.size(); ++i)
    lines += concat(lengths_.frames[i], " ", print_number(lengths_.keep[i]), " ", lengths_.batch_sizes[i], "\n");
  for (const MeasuredClip& clip : clips_) lines += concat(clip.reached, " ", clip.shape, "\n");
  return {{"clips", checksum(lines)}};
}

ClipRows::Epoch ClipRows::draw(int64_t epoch) const {
  Epoch drawn(static_cast<size_t>(buckets()));
  for (size_t i = 0; i < clips_.size(); ++i) {
    const auto clip = static_cast<int64_t>(i);
    const auto length = length_of_clip(lengths_, clips_[i].reached, seed_of_clip(options_.seed, epoch, clip));
    if (length)
      drawn[*length * static_cast<size_t>(options_.shapes) + static_cast<size_t>(clips_[i].shape)].push_back(clip);
  }
  return drawn;
}

std::shared_ptr<const ClipRows::Epoch> ClipRows::clips_of(int64_t epoch) const {
  auto& found = recent_[epoch];
  if (!found) found = std::make_shared<const Epoch>(draw(epoch));
  const auto clips = found;
  if (recent_.size() > kRecentEpochs)
    recent_.erase(recent_.begin()->first == epoch ? std::prev(recent_.end()) : recent_.begin());
  return clips;
}

std::vector<int64_t> ClipRows::rows_before(int64_t epoch) const {
  while (static_cast<int64_t>(before_.size()) <= epoch) {
    std::vector<int64_t> rows = before_.back();
    const auto clips = clips_of(static_cast<int64_t>(before_.size()) - 1);
    for (size_t bucket = 0; bucket < rows.size(); ++bucket)
      rows[bucket] += static_cast<int64_t>((*clips)[bucket].size());
    before_.push_back(std::move(rows));
  }
  return before_[static_cast<size_t>(epoch)];
}

int64_t ClipRows::before(int64_t bucket, int64_t epoch) const {
  const std::lock_guard lock(mutex_);
  return rows_before(epoch).at(static_cast<size_t>(bucket));
}

Visit ClipRows::at(int64_t bucket, int64_t row, uint64_t seed, bool shuffle) const {
  const std::lock_guard lock(mutex_);
  const auto own = static_cast<size_t>(bucket);
  const auto found = std::partition_point(before_.begin(), before_.end(),
                                          [&](const std::vector<int64_t>& before) { return before.at(own) <= row; });
  require(found != before_.end(), "data", "row ", row, " of bucket ", bucket, " is of an epoch after ",
          before_.size() - 1, ", for which nobody asked");
  const int64_t epoch = found - before_.begin() - 1;
  const auto clips = clips_of(epoch);
  const int64_t place = row - before_[static_cast<size_t>(epoch)][own],
                count = static_cast<int64_t>((*clips)[own].size());
  const int64_t chosen = shuffle ? Order(count, seed, epoch)(place) : place;
  return {.epoch = epoch, .picture = (*clips)[own][static_cast<size_t>(chosen)]};
}

std::vector<std::string> ClipRows::counts(int64_t epoch, const std::vector<std::string>& shapes) const {
  const std::vector<int64_t> sizes = batch_sizes();
  std::vector<std::string> lines;
  int64_t used = 0;
  for (int64_t bucket = 0; bucket < buckets(); ++bucket) {
    const int64_t clips = before(bucket, epoch + 1) - before(bucket, epoch), size = sizes[static_cast<size_t>(bucket)];
    used += clips;
    if (clips == 0) continue;
    lines.push_back(concat("bucket ", shapes.at(static_cast<size_t>(bucket % options_.shapes)), " of ",
                           frames_of(bucket), frames_of(bucket) == 1 ? " frame: " : " frames: ", clips,
                           clips == 1 ? " clip" : " clips", ", ",
                           before(bucket, epoch + 1) / size - before(bucket, epoch) / size, " batches of ", size));
  }
  const auto all = static_cast<int64_t>(clips_.size());
  const int64_t too_short = std::count_if(
      clips_.begin(), clips_.end(), [&](const MeasuredClip& clip) { return clip.reached < lengths_.frames.front(); });
  if (used < all)
    lines.push_back(concat(all - used, " of ", all, " clips are left out in epoch ", epoch, ": ", too_short,
                           " have fewer than ", lengths_.frames.front(), " frames at ", options_.fps,
                           " a second, and data.keep left out ", all - used - too_short));
  return lines;
}

BucketOrder::Streams streams_of(const std::shared_ptr<const ClipRows>& clips) {
  BucketOrder::Streams streams;
  for (int64_t bucket = 0; bucket < clips->buckets(); ++bucket)
    streams.push_back(std::make_shared<const ClipStream>(clips, bucket));
  return streams;
}

}  // namespace colossal::data
