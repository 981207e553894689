#include "colossal/data/videos/clip_lengths.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/base/seed.h"
#include "colossal/data/pictures/buckets.h"
#include "colossal/data/videos/video.h"

namespace colossal::data {

ClipLengths completed(const ClipLengths& given, const tensor::ReplicaRows& rows) {
  ClipLengths lengths = given;
  const size_t count = lengths.frames.size();
  if (lengths.keep.empty()) lengths.keep.assign(count, 1);
  if (lengths.batch_sizes.empty()) lengths.batch_sizes.assign(count, rows.batch_size);
  require(count >= 1 && lengths.keep.size() == count && lengths.batch_sizes.size() == count, "data",
          "frames, keep and batch_sizes must have as many numbers: got ", count, ", ", lengths.keep.size(), " and ",
          lengths.batch_sizes.size(), "; change data.keep or data.batch_sizes");
  require(lengths.frames.front() >= 1 && std::adjacent_find(lengths.frames.begin(), lengths.frames.end(),
                                                            std::greater_equal<>()) == lengths.frames.end(),
          "data", "frames must be lengths of at least 1, in ascending order: got ", join(lengths.frames),
          "; set data.frames");
  const int64_t divisor = rows.replicas * rows.micro_batches;
  for (size_t i = 0; i < count; ++i) {
    require(lengths.keep[i] > 0 && lengths.keep[i] <= 1, "data", "keep must be above 0 and at most 1: got ",
            lengths.keep[i], " for ", lengths.frames[i], " frames; set data.keep");
    const int64_t size = lengths.batch_sizes[i];
    require(size >= 1 && size % divisor == 0, "data", "batch_sizes must be divisible by the replicas times the ",
            "micro-batches, ", rows.replicas, " x ", rows.micro_batches, ": got ", size, " for ", lengths.frames[i],
            " frames; set data.batch_sizes, for instance to ", nearest_multiple(size, divisor));
  }
  return lengths;
}

size_t largest_length(const ClipLengths& lengths) {
  size_t largest = 0;
  const auto frames = [&](size_t i) { return lengths.batch_sizes.at(i) * lengths.frames.at(i); };
  for (size_t i = 1; i < lengths.frames.size(); ++i)
    if (frames(i) >= frames(largest)) largest = i;
  return largest;
}

int64_t frames_reached(double seconds, double fps) {
  constexpr double kMost = 0x1p53;  // headers of unknown origin may promise any length
  return static_cast<int64_t>(std::clamp(std::ceil((seconds - kStampError) * fps), 0.0, kMost));
}

uint64_t seed_of_clip(uint64_t seed, int64_t epoch, int64_t clip) {
  return derive_seed(derive_seed(derive_seed(seed, "clips"), static_cast<uint64_t>(epoch)),
                     static_cast<uint64_t>(clip));
}

std::optional<size_t> length_of_clip(const ClipLengths& lengths, int64_t reached, uint64_t clip_seed) {
  const uint64_t seed = derive_seed(clip_seed, "length");
  for (size_t i = lengths.frames.size(); i-- > 0;)
    if (reached >= lengths.frames[i] && uniform_of_seed(derive_seed(seed, i)) < lengths.keep[i]) return i;
  return std::nullopt;
}

int64_t start_of_clip(int64_t reached, int64_t frames, uint64_t clip_seed) {
  require(frames >= 1 && frames <= reached, "data", "a clip of ", frames, " frames needs a video with as many: got ",
          reached);
  const double places = static_cast<double>(reached - frames + 1);
  return static_cast<int64_t>(uniform_of_seed(derive_seed(clip_seed, "start")) * places);
}

void check_lengths_reached(const ClipLengths& lengths, const std::vector<int64_t>& reached, double fps) {
  require(!reached.empty(), "data", "there must be clips: got none");
  const int64_t longest = *std::max_element(reached.begin(), reached.end());
  for (const int64_t frames : lengths.frames)
    require(frames <= longest, "data", "empty bucket: no clip has ", frames, " frames at ", fps,
            " a second; the longest ", "has ", longest, "; take ", frames, " out of data.frames, or lower data.fps");
}

}  // namespace colossal::data
