// Lengths of clips: at which of a few numbers of frames each video is used in an epoch.
//
//   const auto lengths = data::completed({.frames = {1, 17, 51}, .keep = {1, 0.5, 0.5}}, {.batch_size = 8});
//   const int64_t reached = data::frames_reached(/*seconds=*/2, /*fps=*/24);                    // 48
//   const auto length = data::length_of_clip(lengths, reached, data::seed_of_clip(7, 0, 12));   // 1: 17 frames, or 0
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "colossal/tensor/replica_rows.h"

namespace colossal::data {

/// The lengths, and what belongs to each of them (data.frames, data.keep, data.batch_sizes).
struct ClipLengths {
  std::vector<int64_t> frames{1};  ///< ascending; 1 is a picture
  /// For each length the probability, above 0, with which a clip that reaches it is used at it; empty = 1.
  std::vector<double> keep{};
  std::vector<int64_t> batch_sizes{};  ///< rows of a global batch for each length; empty = `rows` for all
};

/// Returns the lengths with all lists filled up, for batches that are divided as `rows`.
/// Errors ("data"): lists of unequal lengths; frames that do not ascend from at least 1; a probability outside (0, 1];
///                  a batch size that is no multiple of the replicas times the micro-batches.
ClipLengths completed(const ClipLengths& lengths, const tensor::ReplicaRows& rows);

/// Returns the index of the length whose batches have the most frames, and of several the longest one. Memory and plans
/// are those of its batches. `lengths`: with all lists (completed()).
size_t largest_length(const ClipLengths& lengths);

/// Returns how many frames a video of `seconds` has at a rate: those at 0, 1 / fps, 2 / fps, ... before its end, at
/// most 2^53.
int64_t frames_reached(double seconds, double fps);

/// Returns the seed from which a clip draws what it does in an epoch.
uint64_t seed_of_clip(uint64_t seed, int64_t epoch, int64_t clip);

/// Returns the index of the length at which a clip of `reached` frames is used: the longest that it reaches and that
/// `keep`, drawn from the clip's seed, keeps; nothing = the clip is left out in this epoch.
std::optional<size_t> length_of_clip(const ClipLengths& lengths, int64_t reached, uint64_t clip_seed);

/// Returns the number of the frame at which a clip of `frames` frames begins in a video of `reached` frames, drawn from
/// the clip's seed. Each place at which it ends in time is equally probable.
int64_t start_of_clip(int64_t reached, int64_t frames, uint64_t clip_seed);

/// Checks that each length is reached by a clip. `reached` has the frames of each clip at the rate `fps`, for the
/// message. Errors ("data"): an empty bucket; the message has the frames of the longest clip.
void check_lengths_reached(const ClipLengths& lengths, const std::vector<int64_t>& reached, double fps);

}  // namespace colossal::data
