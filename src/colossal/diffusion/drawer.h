// Draws what a user asks for with a loaded pipeline, and makes PNG files of it: commands, the server and Python share
// it.
//
//   PipelineParts parts(source, world, device, {}, program);
//   diffusion::Drawer drawer(source, *loaded.model, parts, mesh, "3f2a91bc04");
//   drawer.draw({.drawn = "star", .count = 2}, {}, [](const DrawnPicture& one) { write_file("a.png", one.png); });
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "colossal/comm/mesh.h"
#include "colossal/diffusion/clip_length.h"
#include "colossal/diffusion/draw_options.h"
#include "colossal/diffusion/drawing.h"
#include "colossal/diffusion/drawn_picture.h"
#include "colossal/diffusion/pipeline_parts.h"
#include "colossal/distributed/distributed_model.h"
#include "colossal/run/objectives/diffusion/pipeline_source.h"

namespace colossal::diffusion {

/// Error for latents that could not be decoded, for lack of memory for instance. They can be decoded later.
class DecodingFailed : public Error {
 public:
  DecodingFailed(const std::string& message, at::Tensor latents, int64_t seed)
      : Error("draw", message), latents(std::move(latents)), seed(seed) {}
  at::Tensor latents;  ///< [n, C, h, w], or [n, C, frames, h, w] of clips, as the model drew them
  int64_t seed;        ///< of the first
};

/// What a drawing begins from besides its options, the same on every rank.
struct GivenPictures {
  /// Standard normal noise [count, C, h, w], or [count, C, frames, h, w] of clips; undefined = drawn from the seeds
  at::Tensor latents{};
  std::function<bool()> stop_requested{};  ///< Drawing::stop_requested
  GivenFiles files{};                      ///< pictures that options name, which are no files
};

class Drawer {
 public:
  /// `mesh` has the axes of the model's layout, and may have run::kGuidanceAxis, of which each rank has the whole
  /// model; the ranks along "data" divide the pictures. `checksum`: of the model, for the texts of pictures; may be
  /// empty. Everything given must outlive the drawer.
  Drawer(const run::PipelineSource& source, distributed::DistributedModel& model, PipelineParts& parts,
         comm::Mesh& mesh, std::string checksum);

  /// Checks options without drawing. Errors ("draw"): a class that the model does not have; a prompt or clip_skip for a
  /// model of classes, and a class for one of prompts; a negative prompt or rescaling without guidance; a size off the
  /// grid of the model, with the nearest, or beyond its positions; a control picture without a ControlNet, a picture to
  /// resemble without an IP-adapter, and the reverse; those of check_clip_options(), run::plan_of() and of the tensors'
  /// sizes. ("data"): given files that cannot be decoded.
  static void check(const run::PipelineSource& source, const DrawOptions& options, const GivenPictures& given);

  /// Draws options.count pictures and calls `take` for each in order, on rank 0 of the mesh. Picture k has the seed
  /// options.seed + k, and does not depend on the pictures beside it. Of clips it calls `take` for each frame of each
  /// clip in order, as soon as it is decoded (decode_clip()).
  /// Communication: that of draw() in each step; then one all_gather of the latents and one of the pixels over "data".
  ///                Ranks of a replica share the rows of its pictures in the autoencoder, and all ranks share them if
  ///                there are fewer pictures than replicas (models/autoencoder_kl_rows.h). All ranks call it.
  /// Errors: those of check(), read_given_picture(), decode_clip() and of the parts; on all ranks DecodingFailed and
  ///         those of `take`.
  void draw(const DrawOptions& options, const GivenPictures& given,
            const std::function<void(const DrawnPicture&)>& take);

 private:
  struct Request;
  Request request_of(const DrawOptions& options, const GivenPictures& given);
  void read_image(const DrawOptions& options, Request& request);
  void read_control(const DrawOptions& options, Request& request);
  void read_image_prompt(const DrawOptions& options, Request& request);
  void read_frames(const DrawOptions& options, Request& request);
  void draw_clips(const Request& request, const std::function<void(const DrawnPicture&)>& take);
  at::Tensor drawn_by_all(const Request& request, int64_t first, int64_t count);
  at::Tensor decoded(const at::Tensor& own, const at::Tensor& all, int64_t seed, bool in_tiles);
  at::Tensor gathered(const at::Tensor& own, int64_t count) const;
  std::string parameters_of(const DrawOptions& options, int64_t seed, const at::Tensor& pixels) const;

  const run::PipelineSource& source_;
  distributed::DistributedModel& model_;
  PipelineParts& parts_;
  comm::Mesh& mesh_;
  std::string checksum_;
};

/// How a drawing is divided into passes of the model.
struct DrawnParts {
  ops::PictureSize cells;  ///< of a picture or a frame, as the model draws it
  ClipLength length;       ///< of a clip
  int64_t at_once = 1;     ///< pictures or clips that a replica draws together, at most
  double guidance = 1;     ///< 1 = one pass a step, not two
};
/// Returns it for a drawing with these options, which need not name what is drawn. Errors ("draw"): a size off the grid
/// of the model.
DrawnParts parts_of_drawing(const run::PipelineSource& source, const DrawOptions& options);

/// Returns the first digits of a checksum of the newest checkpoint of a run, or of a folder's weights; "" = none.
std::string checksum_of_model(const std::string& from);

}  // namespace colossal::diffusion
