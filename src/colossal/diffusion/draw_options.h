// The options with which a picture is drawn. Commands take them as flags, lines of JSON and programs under the same
// names.
//
//   DrawOptions options{.prompt = "a red circle", .steps = 50};
//   options.check();
#pragma once
#include <cstdint>
#include <map>
#include <string>

#include "colossal/base/fields.h"
#include "colossal/ops/convolution.h"
#include "colossal/run/objectives/diffusion/pipeline_source.h"

namespace colossal::diffusion {

/// Pictures as the bytes of PNG or JPEG files, by the names that options have for them in place of paths.
using GivenFiles = std::map<std::string, std::string>;

struct DrawOptions {
  std::string prompt, negative;  ///< captions: of the picture, and of what guidance leads away from
  std::string drawn;             ///< "class": name or number of a class, of a model without captions
  std::string size;              ///< "512x512": width and height in pixels; empty = those of the model
  int64_t count = 1, seed = 1, steps = 25;
  std::string sampler, spacing;  ///< empty = those of the pipeline
  bool karras = false;
  double eta = 0, guidance = 0, rescale = 0;  ///< guidance: 0 = that of the pipeline
  int64_t clip_skip = 0;                      ///< last blocks of the text encoder that are left out
  std::string image, mask;                    ///< files: a picture to begin from, and where it is painted anew
  std::string control_image;                  ///< file: the control picture of a model with a ControlNet
  std::string ip_image;                       ///< file: the image prompt of a model with an IP-adapter
  double strength = 0.8;                      ///< with an image: share of the steps that run
  bool tiles = false;                         ///< decode and encode in tiles, approximately
  int64_t frames = 0;                         ///< length of a clip; 0 = that for which the model is made
  double fps = 0;                             ///< frames a second of a clip; 0 = kDefaultRate
  std::string last;                           ///< file: the last frame of a clip, whose first one is `image`
  std::string approximate;                    ///< "pab" = AttentionBroadcast; empty = exact
  void fields(Fields& f);

  /// Errors ("draw"): numbers out of range; options that do not fit each other. `where` begins the message, such as the
  /// line of a file; may be empty.
  void check(const std::string& where = "") const;
  /// Returns the options of the sampler.
  run::GivenSampler given() const { return {sampler, spacing, steps, karras, eta, image.empty() ? 1 : strength}; }
  /// Returns the size in pixels; zeros = that of the model. Errors ("draw"): a text that is no size.
  ops::PictureSize pixels() const;
};

}  // namespace colossal::diffusion
