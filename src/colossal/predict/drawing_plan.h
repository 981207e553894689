// Predicts what drawing pictures or clips needs on a cluster, from shapes alone.
//
//   const DrawnWork work{.cells = {64, 64}, .count = 4, .at_once = 1, .passes = 25, .is_guided = true};
//   const DrawingPlan plan = predict::plan_drawing(source, work, {.layout = layout}, profile, program);
//   std::puts(predict::to_text(plan).c_str());
#pragma once
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <vector>

#include "colossal/distributed/config.h"
#include "colossal/ops/convolution.h"
#include "colossal/plan/profile.h"
#include "colossal/run/config.h"
#include "colossal/run/objectives/diffusion/pipeline_source.h"
#include "colossal/run/program.h"

namespace colossal::predict {

/// The pictures or clips that are drawn.
struct DrawnWork {
  ops::PictureSize cells{};  ///< of a picture or a frame, as the model draws it
  int64_t frames = 0;        ///< of a clip, in pixels; 0 = pictures
  int64_t latents = 0;       ///< frames of a clip, as the model draws it
  int64_t count = 1;
  int64_t at_once = 1;  ///< pictures that one replica draws together, at most
  int64_t passes = 25;  ///< of the model, for a picture
  bool is_guided = true;
  int64_t clip_skip = 0;
  bool in_tiles = false;  ///< decoded in tiles (models/autoencoder_tiles.h)
};

/// How the pipeline is loaded.
struct DrawnLoading {
  /// Of the model. The weights of text encoder and decoder are whole on each rank
  distributed::ParallelConfig layout{};
  int64_t guidance_ranks = 1;         ///< 2 = two such layouts, each for one of both passes of guidance
  at::ScalarType dtype = at::kFloat;  ///< of all weights
  run::MemoryConfig memory{};         ///< budgets of the model's weights, as for run::StreamedWeights
  int64_t ranks() const { return guidance_ranks * layout.ranks(); }
};

/// A part of the pipeline on the rank that needs the most.
struct DrawnPart {
  std::string name;        ///< "text encoder", "model" or "decoder"
  int64_t peak_bytes = 0;  ///< of its weights on the device and of the tensors of one pass without gradients
  int64_t weights = 0;     ///< of the weights on the device
  bool is_freed = false;   ///< its weights are in memory only while it computes
};

struct DrawingPlan {
  std::string cluster;
  bool fits = false;
  double seconds = 0;       ///< for all pictures, without loading
  double step_seconds = 0;  ///< of a pass of the model, with both halves of guidance
  double sent = 0;          ///< elements that all ranks together send in a step
  int64_t tokens = 0;       ///< patches of a picture, or of all frames of a clip, which the model reads
  /// Elements that all ranks together send in a forward pass of one clip to switch between axes (nn/axis_switch.h),
  /// with sequence.mode dsp. A guided step has two passes. 0 = none
  double switched = 0;
  int64_t ranks = 1;
  int64_t peak_bytes = 0;   ///< of a rank: the most that a part needs while it computes, with the weights of others
  int64_t limit_bytes = 0;  ///< that tensors of a rank may take on the cluster
  std::vector<DrawnPart> parts;
  std::vector<std::string> assumptions;
};

/// Records a pass of each part on tensors without data, model and decoder on each rank of the layout, and prices it.
/// Ranks share the rows of a picture as they do when they decode it (diffusion/drawer.h). An autoencoder of pictures
/// decodes clips frame by frame, and one of clips in chunks of time on one rank. With budgets of memory the
/// text encoder is in memory only while it reads a caption, and pictures of any size are decoded by rows. `source`: its
/// parts may be presets. No weight is read.
/// Time: the bookkeeping of a pass on each rank. No communication.
/// Errors ("draw"): more than kRecordedRanks ranks; ("memory") a budget that is too small. Errors of plan::Cluster, of
/// run::find_source() and of layouts that the model refuses.
DrawingPlan plan_drawing(const run::PipelineSource& source, const DrawnWork& work, const DrawnLoading& loading,
                         const plan::Profile& profile, const run::Program& program);

/// Returns the plan for people, and as one JSON object: fits, seconds, step_seconds, sent, tokens, switched,
/// peak_bytes, limit_bytes and parts [{name, peak_bytes}].
std::string to_text(const DrawingPlan& plan);
std::string to_json(const DrawingPlan& plan);

}  // namespace colossal::predict
