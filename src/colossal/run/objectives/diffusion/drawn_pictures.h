// The pictures or videos from which a model learns to draw, before they are encoded: which there are, how each is
// cropped, and which are held out. What only clips have is in drawn_clips.h.
//
//   const DrawnPictures pictures = open_drawn_pictures(config, keys, pipeline);
//   const data::PictureSize crop = pictures.at(i).crops[0];
//   pictures.at(i).id(crop);                                  // the same for the same bytes and the same crop
//   const at::Tensor pixels = pixels_of(pictures, i, crop);   // [3, h, w] in [-1, 1]
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "colossal/data/pictures/buckets.h"
#include "colossal/data/pictures/captioned.h"
#include "colossal/data/videos/clip_rows.h"
#include "colossal/run/config.h"
#include "colossal/run/objectives/diffusion/diffusion_keys.h"
#include "colossal/run/objectives/diffusion/pipeline_source.h"

namespace colossal::run {

/// What is known of a picture without its pixels.
struct DrawnPicture {
  std::string content{};  ///< checksum of its file
  std::string control{};  ///< checksum of its control picture; empty = drawn shapes, or the run reads none
  /// Sizes in pixels to which the part around its middle is resampled: one, or of a prior one for each bucket that
  /// shows the picture
  std::vector<data::PictureSize> crops{};
  int64_t label = 0;    ///< of a model that is told a class
  int64_t reached = 0;  ///< frames at the rate of the clips, 1 of a picture; 0 = the model draws pictures
  std::vector<data::BucketShape> parts{};  ///< clips that a cache needs of it (add_parts()); empty = not known

  /// Returns what identifies the pixels of a crop.
  std::string id(const data::PictureSize& crop) const { return content + "-" + to_string(crop); }
  /// Returns what says that all frames can be decoded.
  std::string id_of_whole() const { return "whole-" + content; }
};

struct DrawnPictures {
  std::shared_ptr<data::CaptionedPictures> files{};
  std::vector<DrawnPicture> pictures{};           ///< one for each file
  std::vector<int64_t> training, held_out{};      ///< their indices; held_out is empty if the run does not evaluate
  std::vector<data::PictureSize> buckets{};       ///< sizes of the crops of training
  std::vector<std::string> class_names{};         ///< of a folder of classes or of drawn shapes
  std::vector<std::string> notices{};             ///< lines for the user about pictures that were left out
  double fps = 0;                                 ///< rate of the clips; 0 = the model draws pictures
  std::shared_ptr<const data::ClipRows> clips{};  ///< of `training`, in its order (choose_clips())
  int64_t held_out_frames = 1;                    ///< length of the clips held out

  const DrawnPicture& at(int64_t index) const { return pictures.at(static_cast<size_t>(index)); }
  /// Returns what identifies the pixels of a part of a picture or video, of one of the buckets.
  std::string id(int64_t index, const data::BucketShape& part) const;
};

/// Opens data.path: pictures with captions for a model that reads text (data::open_captioned), with classes for another
/// one. A model of clips also gets videos. A picture is held out with the probability data.held_out, drawn from its
/// name; drawn shapes are held out in addition. Pictures of training are cropped to their buckets, those held out to
/// the size of the run. `reads_captions`: false = pictures and videos may lack captions.
/// Errors ("data"): those of open_captioned() and bucket_sizes(); no picture to train with.
/// Cost: reads each file once, for its checksum, unless the folder of latents, or `latents` of the run folder, has it
///       (FileChecksums).
DrawnPictures open_drawn_pictures(const Config& config, const DrawnDataKeys& keys, const PipelineSource& pipeline,
                                  bool reads_captions = true);

/// Opens data.prior, all of whose pictures are shown, in the buckets of the pictures of `training`
/// (data::prior_of_buckets). With data.on_error = "skip" those that cannot be decoded are left out (skip_broken()),
/// because others may then show in their bucket. `is_known` gets the pictures with all buckets as crops. Requires:
/// data.prior is set.
DrawnPictures open_prior(const Config& config, const DrawnDataKeys& keys, const PipelineSource& pipeline,
                         const DrawnPictures& training, const std::function<bool(const DrawnPicture&)>& is_known = {});

/// Returns the size of the pictures of a run in pixels: data.size, or that of the model.
/// Errors ("data"): no width and height; sides off the grid of the model, with the nearest.
data::PictureSize size_of_pictures(const DrawnDataKeys& keys, const PipelineSource& pipeline);

/// Leaves out pictures and videos that cannot be decoded, with notices. `is_known`: returns true for a picture that was
/// decoded before; null = none was. Errors ("data"): no picture of training is left. Cost: decodes the others.
void skip_broken(DrawnPictures& pictures, const std::function<bool(const DrawnPicture&)>& is_known = {});

/// Checks that each picture has a control picture, and sets DrawnPicture::control. With data.on_error = "skip" each
/// must also be decoded and have the size of its picture, and pictures without such a one are left out, with notices.
/// Errors ("data"): a picture without one, with the name of the first and their number; no picture of training is left.
/// Cost: reads all control pictures, and decodes them to skip faulty ones. None for drawn shapes.
void check_controls(const Config& config, DrawnPictures& pictures);

/// Returns the pixels of a picture, [3, h, w] in [-1, 1].
at::Tensor signed_pixels(const data::Picture& picture);

/// Decodes a picture and resamples the part around its middle to `crop`, [3, h, w] in [-1, 1]. Errors ("data"), with
/// the name of the file: those of bytes() and decode_picture().
at::Tensor pixels_of(const DrawnPictures& pictures, int64_t index, const data::PictureSize& crop);

/// Does the same with the control picture of that picture, [3, h, w] in [0, 1]. Errors ("data"): those of
/// CaptionedPictures::control_bytes() and decode_picture(); a control picture of another size than its picture.
at::Tensor control_pixels_of(const DrawnPictures& pictures, int64_t index, const data::PictureSize& crop);

/// Returns the control picture of the first picture of data.path that has one, at the size of the run, for samples.
/// Errors: as open_drawn_pictures(), and those of control_pixels_of(), with data.on_error = "skip" of the last picture.
at::Tensor first_control(const Config& config, const DrawnDataKeys& keys, const PipelineSource& pipeline);

/// Returns the bytes of the first picture of data.path that can be decoded, the image prompt of samples. Errors: as
/// open_drawn_pictures(), and those of decode_picture(), with data.on_error = "skip" of the last picture.
std::string first_picture(const Config& config, const DrawnDataKeys& keys, const PipelineSource& pipeline);

}  // namespace colossal::run
